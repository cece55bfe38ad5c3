/*-------------------------------------------------------------------------
 * cores.c
 *		How far the clocks of two processors are apart.
 *
 * Two threads, each pinned to one of them, hand readings to and fro through
 * one cache line.  A reading taken after another has been received cannot be
 * earlier in true time, so each hand-over bounds the difference of the clocks
 * from one side; the tightest bounds of many are kept.
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "../common/clock.h"
#include "probe.h"

typedef struct Table
{
	_Alignas(64) _Atomic uint64_t turn; /* even: the first's; odd: the second's */
	int64_t		reading;		/* by the thread that gave the turn */
	_Alignas(64) _Atomic int over;
	_Atomic int ready;
	uint64_t	turns;
	int64_t		deadline_ns;
	bool		counter;
} Table;

typedef struct Side
{
	Table	   *table;
	int			cpu;
	uint64_t	parity;			/* turns that are this side's */
	int64_t		offset;			/* added to its readings, for tests */
	int64_t		least;			/* of its reading minus the other's */
	uint64_t	received;
	uint64_t	backward;
	int64_t		backward_largest;
	int			failed;
} Side;

static inline void
relax(void)
{
#if defined(__x86_64__)
	_mm_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Wait for this side's turn; false when it is all over. */
static bool
wait_turn(const Side *side, uint64_t *turn)
{
	Table	   *table = side->table;

	for (unsigned spins = 1;; spins++)
	{
		*turn = atomic_load_explicit(&table->turn, memory_order_acquire);
		if (*turn % 2 == side->parity)
			return *turn < table->turns;
		if (spins % 1024 == 0)
		{
			if (atomic_load(&table->over))
				return false;
			if (clock_system_ns(CLOCK_MONOTONIC) > table->deadline_ns)
				atomic_store(&table->over, 1);
		}
		relax();
	}
}

static void *
play(void *argument)
{
	Side	   *side = argument;
	Table	   *table = side->table;
	uint64_t	turn;

	side->failed = probe_pin(side->cpu);
	if (side->failed)
		atomic_store(&table->over, 1);
	atomic_fetch_add(&table->ready, 1);
	while (atomic_load(&table->ready) < 2)
		relax();
	if (atomic_load(&table->over))
		return NULL;
	while (wait_turn(side, &turn))
	{
		int64_t		other = table->reading;
		int64_t		own = clock_ticks_ordered(table->counter) + side->offset;

		if (turn > 0)			/* the first turn has received nothing */
		{
			int64_t		ticks = own - other;

			if (ticks < side->least)
				side->least = ticks;
			if (ticks < 0)
			{
				side->backward++;
				if (ticks < side->backward_largest)
					side->backward_largest = ticks;
			}
			side->received++;
		}
		table->reading = own;
		atomic_store_explicit(&table->turn, turn + 1, memory_order_release);
		if (turn + 1 == table->turns)
			break;				/* nobody will give this side another turn */
	}
	return NULL;
}

/*
 * Bounds of the second processor's clock minus the first's, from `rounds` to
 * and fro or as many as fit into limit_ns.  `offset` is added to the second's.
 */
void
probe_cores(ProbeCores *out, int first, int second, int counter, int64_t offset,
			uint64_t rounds, int64_t limit_ns)
{
	/* each turn is one hand-over, but the very first */
	Table		table = {
		.turns = 2 * rounds + 1, .counter = counter != 0,
		.deadline_ns = clock_system_ns(CLOCK_MONOTONIC) + limit_ns,
	};
	Side		a = {.table = &table, .cpu = first, .parity = 0, .least = INT64_MAX};
	Side		b = {.table = &table, .cpu = second, .parity = 1, .least = INT64_MAX,
	.offset = offset};
	pthread_t	threads[2];

	*out = (ProbeCores) {0};
	out->failed = pthread_create(&threads[0], NULL, play, &a);
	if (out->failed)
		return;
	out->failed = pthread_create(&threads[1], NULL, play, &b);
	if (out->failed)
	{
		atomic_store(&table.over, 1);
		atomic_store(&table.ready, 2);
		(void) pthread_join(threads[0], NULL);
		return;
	}
	(void) pthread_join(threads[0], NULL);
	(void) pthread_join(threads[1], NULL);
	out->failed = a.failed ? a.failed : b.failed;
	out->rounds = a.received < b.received ? a.received : b.received;
	out->lower = a.received ? -a.least : INT64_MIN;
	out->upper = b.received ? b.least : INT64_MAX;
	out->backward = a.backward + b.backward;
	out->backward_largest =
		a.backward_largest < b.backward_largest ? a.backward_largest : b.backward_largest;
}
