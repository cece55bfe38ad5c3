/*-------------------------------------------------------------------------
 * ended_rings.c
 *		Rings of processes that have ended (ended_rings.h).
 *-------------------------------------------------------------------------
 */
#include "ended_rings.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"

#include "guarded.h"
#include "ring_memory.h"

static EndedRing *
at(EndedRings rings, int i)
{
	return (EndedRing *) (rings.entries + i * rings.entry_size);
}

void
ended_rings_note_oldest(EndedRings rings)
{
	TimestampTz oldest = 0;

	for (int i = 0; i < rings.n; i++)
	{
		const EndedRing *entry = at(rings, i);

		if (entry->handle != 0 && !entry->kept && (oldest == 0 || entry->ended < oldest))
			oldest = entry->ended;
	}
	pg_atomic_write_u64(rings.oldest, (uint64) oldest);
}

/* The caller holds the lock. */
static void
give_up(EndedRings rings, EndedRing *entry, EndedGone *gone)
{
	if (rings.gone)
		rings.gone(entry);
	gone->handle[gone->n++] = entry->handle;
	ring_memory_forget(entry->memory);
	memset(entry, 0, rings.entry_size);
	ended_rings_note_oldest(rings);
}

void
ended_rings_free(const EndedGone *gone)
{
	for (int i = 0; i < gone->n; i++)
		ring_place_free(gone->handle[i]);
}

static EndedRing *
free_place(EndedRings rings, int first, int n)
{
	for (int i = first; i < first + n; i++)
		if (!ring_place_is_there(at(rings, i)->handle))
			return at(rings, i);
	return NULL;
}

/*
 * The ring that is the first to make way, for a process of this role; NULL: none.
 * What is in the recorder's area frees no memory of others.
 */
static EndedRing *
first_to_go(EndedRings rings, int first, int n, Oid role, bool for_memory)
{
	EndedRing  *found = NULL;
	int			found_rank = 0;

	for (int i = first; i < first + n; i++)
	{
		EndedRing  *entry = at(rings, i);
		int			rank = (entry->role == role ? 2 : 0) + (entry->unread == 0 ? 1 : 0);

		if (entry->handle == 0 || entry->kept || (for_memory && entry->memory == 0))
			continue;
		if (found == NULL || rank > found_rank ||
			(rank == found_rank && entry->ended < found->ended))
		{
			found = entry;
			found_rank = rank;
		}
	}
	return found;
}

/*
 * A place for a ring whose memory is counted, or NULL if there is none.  No more than
 * one is taken from other roles that nobody has read.
 */
static EndedRing *
make_place(EndedRings rings, int first, int n, const EndedRing *of, uint64 for_kept,
		   EndedGone *gone)
{
	bool		taken_from_others = false;
	EndedRing  *place;

	if (of->memory > for_kept)
		return NULL;
	/* what is in the area is in nobody's way */
	while ((place = free_place(rings, first, n)) == NULL ||
		   (of->memory > 0 && !ring_memory_keep(for_kept, of->memory)))
	{
		EndedRing  *next = first_to_go(rings, first, n, of->role, place != NULL);

		if (next == NULL)
			return NULL;
		if (next->role != of->role && next->unread > 0)
		{
			if (taken_from_others)
				return NULL;
			taken_from_others = true;
		}
		give_up(rings, next, gone);
	}
	return place;
}

EndedRing *
ended_rings_add(EndedRings rings, int first, int n, EndedRing *of, uint64 for_kept,
				EndedGone *gone)
{
	EndedRing  *place;

	Assert(n < (int) lengthof(gone->handle));	/* all of them, and this one */
	place = make_place(rings, first, n, of, for_kept, gone);
	of->ended = GetCurrentTimestamp();
	if (place)
	{
		memcpy(place, of, rings.entry_size);
		ended_rings_note_oldest(rings);
	}
	else
	{
		if (rings.gone)
			rings.gone(of);
		ring_memory_give_back(of->memory);
		gone->handle[gone->n++] = of->handle;
	}
	memset(of, 0, rings.entry_size);
	return place;
}

bool
ended_rings_make_way(EndedRings rings, int first, int n)
{
	EndedGone	gone = {0};
	EndedRing  *next;

	LWLockAcquire(rings.lock, LW_EXCLUSIVE);
	next = first_to_go(rings, first, n, MyProc->roleId, true);
	if (next)
		give_up(rings, next, &gone);
	LWLockRelease(rings.lock);
	ended_rings_free(&gone);
	return next != NULL;
}

int
ended_rings_give_up(EndedRings rings, TimestampTz until)
{
	EndedGone	gone = {0};

	LWLockAcquire(rings.lock, LW_EXCLUSIVE);
	for (int i = 0; i < rings.n; i++)
	{
		EndedRing  *entry = at(rings, i);

		if (entry->handle != 0 && !entry->kept && entry->ended <= until)
			give_up(rings, entry, &gone);
	}
	LWLockRelease(rings.lock);
	ended_rings_free(&gone);
	return gone.n;
}

static TimestampTz
long_enough(void)
{
	return GetCurrentStatementStartTimestamp() - KEEP_ENDED_S * USECS_PER_SEC;
}

static void
give_up_old(void *rings)
{
	(void) ended_rings_give_up(*(EndedRings *) rings, long_enough());
}

void
ended_rings_give_up_old(EndedRings rings, const char *failure)
{
	if ((TimestampTz) pg_atomic_read_u64(rings.oldest) <= long_enough())
		(void) guarded_run(failure, give_up_old, NULL, &rings);
}
