/*-------------------------------------------------------------------------
 * slice.c
 *		Which slice of a trial it is now.
 *
 * In a slice all sessions follow one arm together, or each draws one for the whole
 * slice.  The schedule follows from the trial's seed, start and bounds,
 * which every session has copied: each walks along it by itself, and no lock,
 * no signal and no further process is needed to keep them in step.  Lengths
 * vary, so that slices never march in step with the server's own rhythms.
 *
 * A session steps over the slices that passed while it was not looking: some
 * nanoseconds each, 2,000 of them for a minute at 30 ms.  If they were very many, it
 * goes on with the next requests; until it is in step its units end after their slices.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgtare.h"

/* At once: about a millisecond */
#define MOST_STEPS 50000

/* Where the session is in the schedule */
static struct
{
	uint32		number;
	int64		end_ns;			/* since the trial began */
	int64		end_ticks;		/* the same, as the clock reads */
	int16		order[MAX_BLOCK];	/* of the block that it belongs to */
} slice;

static void
enter(uint32 number)
{
	const TrialDef *def = session.def;

	if (number % (uint32) def->nslices == 0)
		assign_slices(def, number / (uint32) def->nslices, slice.order);
	slice.number = number;
	slice.end_ns += assign_slice_ns(def, number);
}

static void
set_end(void)
{
	const TrialDef *def = session.def;

	slice.end_ticks = def->start_ticks + clock_ns_to_ticks(&def->rate, slice.end_ns);
}

/* The session has joined a trial. */
void
slice_begin(void)
{
	slice.end_ns = 0;
	if (session.def->nslices > 0)
	{
		enter(0);
		set_end();
	}
}

bool
slice_over(int64 now_ticks)
{
	return now_ticks >= slice.end_ticks;
}

/* Step to the slice that runs at this time. */
void
slice_follow(int64 now_ticks)
{
	const TrialDef *def = session.def;
	uint64		ignored = 0;
	int64		now_ns;
	int			steps = 0;

	if (!slice_over(now_ticks))
		return;
	now_ns = clock_ns(&def->rate, now_ticks - def->start_ticks, &ignored);
	do
		enter(slice.number + 1);
	while (slice.end_ns <= now_ns && ++steps < MOST_STEPS);
	set_end();
}

uint32
slice_number(void)
{
	return slice.number;
}

/* An arm, or SLICE_MIXED */
int
slice_kind(void)
{
	return slice.order[slice.number % (uint32) session.def->nslices];
}
