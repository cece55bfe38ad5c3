/*-------------------------------------------------------------------------
 * block.c
 *		Where a session is in its blocks and runs: the arm of its coming unit.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgtare.h"

/* What units outside any block carry; a session's first draws from this stream */
#define NO_BLOCK UINT32_MAX

/* Where the session is in its blocks */
static struct
{
	uint32		unit;			/* units finished */
	uint32		block;
	uint16		position;
	bool		outside;		/* the unit under way belongs to no block */
	bool		runs_decided;	/* whether a pair of runs comes first is decided */
	bool		filled;			/* whether a filler comes first is decided */
	uint32		run;			/* runs finished */
	uint16		run_arm;
	uint16		run_length;		/* of the run under way, 0: none */
	uint16		run_position;
	uint16		order[MAX_BLOCK];
	uint32		mixed;			/* the mixed slice that the block is in, or NO_SLICE */
} place;

/* The first or second run of a pair begins. */
static uint16
begin_run(void)
{
	place.run_position = 0;
	assign_run(session.def, session.backend, place.run, &place.run_arm, &place.run_length);
	return place.run_arm;
}

/*
 * The arm of the coming unit; it is used up only when its request arrives.
 *
 * A session's first unit, a filler now and then, and runs belong to no block:
 * the first meets cold caches, fillers keep blocks from marching in step with
 * an application that repeats the same few transactions, and runs show effects
 * that last longer than a block can.
 */
uint16
block_draw(void)
{
	uint16		arm;

	place.outside = true;
	if (session.def->nslices > 0)
	{
		int			kind = slice_kind();

		if (kind != SLICE_MIXED)
			return (uint16) kind;
		/* a block does not go on in another slice, a tenth of a second later */
		if (place.mixed != slice_number())
		{
			place.mixed = slice_number();
			if (place.position > 0)
			{
				place.position = 0;
				place.filled = false;
				place.block++;
			}
		}
	}
	if (place.unit == 0)
	{
		assign_block(session.def, session.backend, NO_BLOCK, place.order);
		return place.order[0];
	}
	if (place.run_length > 0)
		return place.run_arm;
	if (place.position == 0)
	{
		if (!place.runs_decided)
		{
			place.runs_decided = true;
			if (assign_runs_before(session.def, session.backend, place.block))
				return begin_run();
		}
		if (!place.filled)
		{
			place.filled = true;
			if (assign_filler(session.def, session.backend, place.block, &arm))
				return arm;
		}
		assign_block(session.def, session.backend, place.block, place.order);
	}
	place.outside = false;
	return place.order[place.position];
}

/* The unit under way is over. */
void
block_advance(void)
{
	place.unit++;
	if (place.run_length > 0)
	{
		if (++place.run_position < place.run_length)
			return;
		if (++place.run % 2 == 1)
			(void) begin_run();
		else
			place.run_length = 0;
		return;
	}
	if (place.outside)
		return;
	if (++place.position == session.def->nblock)
	{
		place.position = 0;
		place.runs_decided = false;
		place.filled = false;
		place.block++;
	}
}

/* The session has joined a trial. */
void
block_begin(void)
{
	memset(&place, 0, sizeof(place));
	place.mixed = NO_SLICE;
}

/* Can a session leave here, with no block or run cut short? */
bool
block_is_complete(void)
{
	return place.position == 0 && place.run_length == 0;
}

/*
 * Is the unit under way one of those that no estimate counts?  In a slice of
 * one arm only a session's first is; blocks are a matter of mixed slices.
 */
static bool
unblocked(bool mixed)
{
	if (session.def->nslices > 0 && !mixed)
		return place.unit == 0;
	return place.outside;
}

/* Tell where the unit under way belongs; "mixed": it is in a mixed slice. */
void
block_describe(Observation *o, bool mixed)
{
	bool		in_run = place.run_length > 0;

	o->unit = place.unit;
	o->block = in_run ? place.run : place.outside ? NO_BLOCK : place.block;
	o->position = in_run ? place.run_position : place.outside ? 0 : place.position;
	o->flags |= (unblocked(mixed) ? UNIT_UNBLOCKED : 0) | (in_run ? UNIT_RUN : 0);
}
