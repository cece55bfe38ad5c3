/*-------------------------------------------------------------------------
 * schedule.c
 *		Which cluster is asked when, from the seed alone.
 *
 * Each (seed, thread, cycle) has SplitMix64 streams of its own: one for the
 * order of the clusters, one for the times, one for the scripts' values.  So
 * every connection can follow the schedule by itself, however far behind its
 * neighbours it is, and all clusters get the same values in a cycle.
 *-------------------------------------------------------------------------
 */
#include <math.h>

#include "duet.h"

/* What tells the streams apart; the first is design.py's, which computes orders again. */
#define STREAM_ORDER	UINT64_C(0xD1342543DE82EF95)
#define STREAM_TIMES	UINT64_C(0xE7037ED1A0B428DB)
#define STREAM_VALUES	UINT64_C(0x8EBC6AF09C88C6E3)

uint64_t
draw(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* Uniform on 0 .. limit - 1, for limits far below 2^64; 0 means 2^64. */
uint64_t
draw_below(uint64_t *state, uint64_t limit)
{
	uint64_t	z = draw(state);

	return limit == 0 ? z : (uint64_t) (((unsigned __int128) z * limit) >> 64);
}

static uint64_t
stream(const Plan *plan, int thread, uint32_t cycle, uint64_t which)
{
	return plan->seed ^ ((((uint64_t) thread << 32) | cycle) * which);
}

uint64_t
values_stream(const Plan *plan, int thread, uint32_t cycle)
{
	return stream(plan, thread, cycle, STREAM_VALUES);
}

/* A waiting time of a Poisson process with this mean */
static int64_t
exponential(uint64_t *state, double mean)
{
	/* on (0, 1], so that the logarithm is finite */
	double		u = ((double) (draw(state) >> 11) + 1.0) * 0x1p-53;

	return (int64_t) (-log(u) * mean + 0.5);
}

static void
fill(const Plan *plan, int thread, int64_t begin_ns, Cycle *cycle)
{
	uint64_t	state = stream(plan, thread, cycle->number, STREAM_ORDER);

	for (int i = 0; i < plan->nclusters; i++)
		cycle->order[i] = i;
	for (int i = plan->nclusters - 1; i > 0; i--)
	{
		int			j = (int) draw_below(&state, i + 1);
		int			swap = cycle->order[i];

		cycle->order[i] = cycle->order[j];
		cycle->order[j] = swap;
	}

	cycle->begin_ns = cycle->next_ns = begin_ns;
	if (plan->rate > 0)
	{
		double		mean = 1e9 * plan->nthreads / (plan->rate * plan->nclusters);

		state = stream(plan, thread, cycle->number, STREAM_TIMES);
		for (int i = 0; i < plan->nclusters; i++)
			cycle->due_ns[i] = cycle->next_ns += exponential(&state, mean);
	}
}

void
cycle_first(const Plan *plan, int thread, Cycle *cycle)
{
	cycle->number = 0;
	fill(plan, thread, 0, cycle);
}

void
cycle_next(const Plan *plan, int thread, Cycle *cycle)
{
	cycle->number++;
	fill(plan, thread, cycle->next_ns, cycle);
}
