/*-------------------------------------------------------------------------
 * script.c
 *		Choosing a script and computing its variables.
 *-------------------------------------------------------------------------
 */
#include "duet.h"

/* The number of a script, drawn by weight. */
int
script_choose(const Plan *plan, uint64_t *values)
{
	uint64_t	point = 0;
	int			i = 0;

	if (plan->nscripts > 1)
		point = draw_below(values, plan->total_weight);
	while (point >= plan->scripts[i].weight)
		point -= plan->scripts[i++].weight;
	return i;
}

/* One operation on two values; false if it has no result. */
static bool
binary(OpKind kind, int64_t a, int64_t b, uint64_t *values, int64_t *result)
{
	switch (kind)
	{
		case OP_ADD:
			return !__builtin_add_overflow(a, b, result);
		case OP_SUBTRACT:
			return !__builtin_sub_overflow(a, b, result);
		case OP_MULTIPLY:
			return !__builtin_mul_overflow(a, b, result);
		case OP_DIVIDE:
		case OP_MODULO:
			if (b == 0 || (a == INT64_MIN && b == -1))
				return false;
			*result = kind == OP_DIVIDE ? a / b : a % b;
			return true;
		default:				/* OP_RANDOM */
			if (a > b)
				return false;
			*result = (int64_t) ((uint64_t) a +
								 draw_below(values, (uint64_t) b - (uint64_t) a + 1));
			return true;
	}
}

/* Give a variable its value; false if that has none. */
bool
assign(const Command *command, int64_t *variables, uint64_t *values)
{
	int64_t		stack[MAX_STACK];
	int			top = -1;

	for (int i = 0; i < command->nops; i++)
	{
		const Op   *op = &command->ops[i];

		if (op->kind == OP_CONSTANT)
			stack[++top] = op->operand;
		else if (op->kind == OP_VARIABLE)
			stack[++top] = variables[op->operand];
		else if (op->kind == OP_NEGATE)
		{
			if (__builtin_sub_overflow((int64_t) 0, stack[top], &stack[top]))
				return false;
		}
		else
		{
			top--;
			if (!binary(op->kind, stack[top], stack[top + 1], values, &stack[top]))
				return false;
		}
	}
	variables[command->variable] = stack[0];
	return true;
}
