/*-------------------------------------------------------------------------
 * plan.c
 *		Reading the plan, which load/duet_plan.py writes.
 *
 * Words and numbers are separated by white space.  Free text is preceded by
 * its length in bytes and one separator, so that nothing needs quoting.
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "duet.h"

typedef struct Cursor
{
	char	   *start;
	char	   *at;
	char	   *end;
} Cursor;

static _Noreturn void
damaged(const Cursor *c, const char *wanted)
{
	fprintf(stderr, "the plan is damaged at byte %td: %s expected\n", c->at - c->start, wanted);
	exit(2);
}

static void *
need(size_t count, size_t size)
{
	void	   *memory = calloc(count ? count : 1, size);

	if (memory == NULL)
	{
		fprintf(stderr, "out of memory for %zu bytes\n", count * size);
		exit(1);
	}
	return memory;
}

static void
skip_space(Cursor *c)
{
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\n'))
		c->at++;
}

static bool
next_is(Cursor *c, const char *word)
{
	size_t		length = strlen(word);

	skip_space(c);
	if ((size_t) (c->end - c->at) <= length || memcmp(c->at, word, length) != 0 ||
		(c->at[length] != ' ' && c->at[length] != '\n'))
		return false;
	c->at += length;
	return true;
}

static void
expect(Cursor *c, const char *word)
{
	if (!next_is(c, word))
		damaged(c, word);
}

static int64_t
whole(Cursor *c, int64_t lowest, int64_t highest)
{
	char	   *after;
	long long	value;

	skip_space(c);
	value = strtoll(c->at, &after, 10);
	if (after == c->at || value < lowest || value > highest)
		damaged(c, "a number in range");
	c->at = after;
	return value;
}

static char *
text(Cursor *c)
{
	int64_t		length = whole(c, 0, c->end - c->at);
	char	   *copy;

	if (c->end - c->at < length + 1)
		damaged(c, "text");
	copy = need(length + 1, 1);
	memcpy(copy, c->at + 1, length);
	c->at += length + 1;
	return copy;
}

static void
read_assignment(Cursor *c, const Plan *plan, Command *command)
{
	static const char *const words[] = {
		[OP_ADD] = "add",[OP_SUBTRACT] = "subtract",[OP_MULTIPLY] = "multiply",
		[OP_DIVIDE] = "divide",[OP_MODULO] = "modulo",[OP_NEGATE] = "negate",
		[OP_RANDOM] = "random"
	};
	int			depth = 0;

	command->assigns = true;
	command->variable = whole(c, 0, plan->nvariables - 1);
	command->nops = whole(c, 1, 10000);
	command->ops = need(command->nops, sizeof(Op));
	for (int i = 0; i < command->nops; i++)
	{
		Op		   *op = &command->ops[i];

		if (next_is(c, "constant"))
			*op = (Op) {OP_CONSTANT, whole(c, INT64_MIN, INT64_MAX)};
		else if (next_is(c, "variable"))
			*op = (Op) {OP_VARIABLE, whole(c, 0, plan->nvariables - 1)};
		else
		{
			op->kind = OP_ADD;
			while (op->kind <= OP_RANDOM && !next_is(c, words[op->kind]))
				op->kind++;
			if (op->kind > OP_RANDOM)
				damaged(c, "an operation");
		}
		/* operands it takes, and the one it leaves */
		if (op->kind >= OP_ADD)
			depth -= op->kind == OP_NEGATE ? 1 : 2;
		if (depth < 0 || ++depth > MAX_STACK)
			damaged(c, "an expression that fits the stack");
	}
	if (depth != 1)
		damaged(c, "an expression with one value");
}

/* The statement with $n in place of variables, as it is prepared */
static void
number_parameters(Command *command)
{
	size_t		size = 1;
	char	   *to;

	for (int i = 0; i < command->nparts; i++)
		size += command->parts[i].text ? strlen(command->parts[i].text) : 12;
	to = command->sql = need(size, 1);
	command->params = need(command->nparts, sizeof(int));
	for (int i = 0; i < command->nparts; i++)
	{
		const Part *part = &command->parts[i];

		if (part->text)
			to = stpcpy(to, part->text);
		else
		{
			command->params[command->nparams++] = part->variable;
			to += sprintf(to, "$%d", command->nparams);
		}
	}
}

static void
read_statement(Cursor *c, const Plan *plan, Command *command)
{
	command->nparts = whole(c, 1, 10000);
	command->parts = need(command->nparts, sizeof(Part));
	for (int i = 0; i < command->nparts; i++)
	{
		if (next_is(c, "text"))
			command->parts[i].text = text(c);
		else
		{
			expect(c, "value");
			command->parts[i].variable = whole(c, 0, plan->nvariables - 1);
		}
	}
	number_parameters(command);
	if (command->nparams > MAX_PARAMETERS ||
		strlen(command->sql) + (size_t) command->nparams * MAX_DIGITS >= MAX_STATEMENT)
		damaged(c, "a shorter statement with fewer variables");
}

static void
read_script(Cursor *c, const Plan *plan, int number, Script *script)
{
	expect(c, "script");
	script->weight = whole(c, 0, 1000000);
	script->ncommands = whole(c, 1, 10000);
	script->commands = need(script->ncommands, sizeof(Command));
	for (int i = 0; i < script->ncommands; i++)
	{
		Command    *command = &script->commands[i];

		if (next_is(c, "set"))
			read_assignment(c, plan, command);
		else
		{
			expect(c, "statement");
			read_statement(c, plan, command);
			snprintf(command->name, sizeof(command->name), "duet_%d_%d", number, i);
		}
	}
	if (script->commands[script->ncommands - 1].assigns)
		damaged(c, "a statement at the end of the script");
}

static Protocol
read_protocol(Cursor *c)
{
	expect(c, "protocol");
	if (next_is(c, "simple"))
		return PROTOCOL_SIMPLE;
	if (next_is(c, "extended"))
		return PROTOCOL_EXTENDED;
	expect(c, "prepared");
	return PROTOCOL_PREPARED;
}

static Cursor
read_file(const char *path)
{
	FILE	   *file = fopen(path, "r");
	long		size;
	Cursor		c;

	if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0)
	{
		fprintf(stderr, "cannot read the plan %s: %m\n", path);
		exit(2);
	}
	rewind(file);
	c.start = c.at = need(size + 1, 1);
	c.end = c.start + fread(c.start, 1, size, file);
	fclose(file);
	return c;
}

/* The plan in a file; exits with status 2 if it is not a plan. */
Plan *
plan_read(const char *path)
{
	Cursor		c = read_file(path);
	Plan	   *plan = need(1, sizeof(Plan));

	expect(&c, "duet-plan-1");
	expect(&c, "output");
	plan->output = text(&c);
	expect(&c, "seed");
	plan->seed = whole(&c, 0, INT64_MAX);
	expect(&c, "threads");
	plan->nthreads = whole(&c, 1, MAX_THREADS);
	expect(&c, "cycles_per_1000_s");
	plan->rate = whole(&c, 0, INT64_MAX) / 1000.0;
	expect(&c, "warmup_ns");
	plan->warmup_ns = whole(&c, 0, INT64_MAX / 8);
	expect(&c, "duration_ns");
	plan->duration_ns = whole(&c, 1, INT64_MAX / 8);
	expect(&c, "drain_ns");
	plan->drain_ns = whole(&c, 0, INT64_MAX / 8);
	plan->protocol = read_protocol(&c);
	expect(&c, "clusters");
	plan->nclusters = whole(&c, 1, MAX_CLUSTERS);
	for (int i = 0; i < plan->nclusters; i++)
		plan->conninfo[i] = text(&c);
	expect(&c, "variables");
	plan->nvariables = whole(&c, 0, 10000);
	plan->initial = need(plan->nvariables, sizeof(int64_t));
	for (int i = 0; i < plan->nvariables; i++)
		plan->initial[i] = whole(&c, INT64_MIN, INT64_MAX);
	expect(&c, "client_variable");
	plan->client_variable = whole(&c, -1, plan->nvariables - 1);
	expect(&c, "scripts");
	plan->nscripts = whole(&c, 1, MAX_SCRIPTS);
	for (int i = 0; i < plan->nscripts; i++)
	{
		read_script(&c, plan, i, &plan->scripts[i]);
		plan->total_weight += plan->scripts[i].weight;
	}
	if (plan->total_weight == 0)
		damaged(&c, "a script that has a weight");
	expect(&c, "end");
	free(c.start);
	return plan;
}
