/*-------------------------------------------------------------------------
 * run.c
 *		Where a session is in its runs: the arm of its coming unit.
 *
 * A session keeps an arm for a run of units, so that what the arm needs gets as
 * warm as it is when left on.  The runs of a block are of one length, one run, or
 * two, of each arm.
 *
 * A session that begins during the trial may end before it has met each arm.  Its
 * first run is drawn over all such sessions, so that they can be compared with
 * each other.  It is drawn at the first request: a connection that never sends one
 * takes nobody's place.
 *
 * In a trial in slices the slice says which arm it is.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "pgtare.h"

static struct
{
	bool		first;			/* in the first run of a session that began in the trial */
	bool		undrawn;		/* which is drawn when a request comes */
	uint32		unit;			/* units finished */
	uint32		block;
	uint32		run;			/* of the block */
	uint16		position;		/* in the run, or in the slice */
	uint16		length;			/* of the run */
	uint16		first_arm;
	uint16		order[MAX_BLOCK];
	uint32		slice;			/* that the position is in */
	uint32		stratum;
} place;

static void
begin_block(void)
{
	assign_block(session.def, session.backend, place.block, place.order);
	place.length = assign_length(session.def, session.backend, place.block);
}

/* The session has joined a trial. */
void
run_join(void)
{
	memset(&place, 0, sizeof(place));
	place.slice = NO_SLICE;
	place.stratum = hash_combine(murmurhash32(GetSessionUserId()), murmurhash32(MyDatabaseId));
	if (session.def->nslices > 0)
		return;
	place.first = place.undrawn = MyStartTimestamp >= session.def->started;
	if (!place.first)
		begin_block();
}

/* Is the arm of the coming unit drawn only when its request is here? */
bool
run_awaits_request(void)
{
	return place.undrawn;
}

/* The first request is here. */
void
run_draw_first(void)
{
	uint32		number = 0;

	if (pgtare_begin_write(session.shared, session.generation))
		number = pg_atomic_fetch_add_u32(&session.shared->next_new, 1);
	pgtare_end_write(session.shared);
	place.first_arm = assign_first(session.def, number);
	place.length = assign_length(session.def, session.backend, NO_BLOCK);
	place.undrawn = false;
}

/* The arm of the coming unit */
uint16
run_arm(void)
{
	if (session.def->nslices > 0)
	{
		int			kind = slice_kind();

		if (place.slice != slice_number())
		{
			place.slice = slice_number();
			place.position = 0;
		}
		return kind == SLICE_MIXED ?
			assign_mixed(session.def, session.backend, place.slice) : (uint16) kind;
	}
	return place.first ? place.first_arm : place.order[place.run];
}

/* The unit under way is over. */
void
run_advance(void)
{
	place.unit++;
	if (session.def->nslices > 0)
	{
		place.position = Min(place.position + 1, UINT8_MAX);
		return;
	}
	/* one that could not be drawn belongs to no run */
	if (place.undrawn || ++place.position < place.length)
		return;
	place.position = 0;
	if (place.first)
		place.first = false;
	else if (++place.run < (uint32) session.def->nblock)
		return;
	else
		place.block++;
	place.run = 0;
	begin_block();
}

/* Tell where the unit under way belongs. */
void
run_describe(Observation *o)
{
	o->unit = place.unit;
	o->block = place.first || session.def->nslices > 0 ? NO_BLOCK : place.block;
	o->run = place.run;
	o->position = (uint8) place.position;
	o->stratum = place.stratum;
	o->flags |= (place.first ? UNIT_FIRST_RUN : 0) | (place.undrawn ? UNIT_UNDRAWN : 0);
}
