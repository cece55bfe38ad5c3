/*-------------------------------------------------------------------------
 * ended.c
 *		Traces of processes that have ended: which are kept, and for how long.
 *
 * A few are kept: in no more memory than they need, within the share of what
 * all rings may take, and for a while.  A ring makes way for one of the same
 * role, the oldest first; parallel workers come and go by the dozen, and push
 * out none but each other.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/dsm.h"

#include "waits.h"

/* Both kinds, one after the other */
#define ALL_ENDED (2 * MAX_ENDED_RINGS)

static RingEntry *
ended_entry(Shared *shared, int i)
{
	return i < MAX_ENDED_RINGS ? &shared->ended[i] : &shared->ended_workers[i - MAX_ENDED_RINGS];
}

/* The caller holds the lock. */
static void
note_oldest(Shared *shared)
{
	TimestampTz oldest = 0;

	for (int i = 0; i < ALL_ENDED; i++)
	{
		const RingEntry *entry = ended_entry(shared, i);

		if (entry->handle != 0 && (oldest == 0 || entry->ended < oldest))
			oldest = entry->ended;
	}
	pg_atomic_write_u64(&shared->oldest_ended, (uint64) oldest);
}

/* The caller holds the lock, and frees what was there. */
static RingHandle
give_up(Shared *shared, RingEntry *place)
{
	RingHandle	handle = place->handle;

	ring_memory_forget(place->memory);
	memset(place, 0, sizeof(*place));
	note_oldest(shared);
	return handle;
}

static void
free_all(const RingHandle *handles, int n)
{
	for (int i = 0; i < n; i++)
		ring_place_free(handles[i]);
}

static RingEntry *
free_place(RingEntry *entries)
{
	for (int i = 0; i < MAX_ENDED_RINGS; i++)
		if (!ring_place_is_there(entries[i].handle))
			return &entries[i];
	return NULL;
}

/*
 * The caller holds the lock.  The ring of this role that ended first, or of any; NULL:
 * none.  What is in the recorder's area frees no memory of others.
 */
static RingEntry *
first_to_go(RingEntry *entries, Oid role, bool for_memory)
{
	RingEntry  *found = NULL;

	for (int i = 0; i < MAX_ENDED_RINGS; i++)
	{
		RingEntry  *entry = &entries[i];

		if (entry->handle == 0 || (for_memory && entry->memory == 0))
			continue;
		if (found == NULL || (entry->role == role && found->role != role) ||
			((entry->role == role) == (found->role == role) && entry->ended < found->ended))
			found = entry;
	}
	return found;
}

/*
 * The caller holds the lock.  A place for a ring whose memory is counted, or
 * NULL if there is none; "gone" is what makes way.  No more than one is taken
 * from other roles: nobody can push out all that others have left.
 */
static RingEntry *
make_place(Shared *shared, RingEntry *entries, const RingEntry *entry, uint64 for_kept,
		   RingHandle *gone, int *n)
{
	bool		taken_from_others = false;

	if (entry->memory > for_kept)
		return NULL;
	/* what is in the area is in nobody's way */
	while (free_place(entries) == NULL ||
		   (entry->memory > 0 && !ring_memory_keep(for_kept, entry->memory)))
	{
		RingEntry  *next = first_to_go(entries, entry->role, free_place(entries) != NULL);

		if (next == NULL)
			return NULL;
		if (next->role != entry->role)
		{
			if (taken_from_others)
				return NULL;
			taken_from_others = true;
		}
		gone[(*n)++] = give_up(shared, next);
	}
	return free_place(entries);
}

/*
 * A process ends: its ring moves from the live ones to those that ended, if there
 * is room; returns whether there is.
 */
bool
ended_keep(Shared *shared, RingEntry *of, const TraceRing *ring, dsm_segment *segment)
{
	uint64		written = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->written));
	uint64		for_kept = ring_memory_for_kept(shmem_rings_kb);
	RingEntry  *place;
	RingHandle	gone[MAX_ENDED_RINGS + 1];
	int			n = 0;

	if (segment)
		of->memory = ring_memory_shrink(segment, offsetof(TraceRing, records) +
										Min(written, ring->nrecords) * sizeof(TraceRecord));
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	place = make_place(shared, of->leader_pid ? shared->ended_workers : shared->ended, of,
					   for_kept, gone, &n);
	if (place)
	{
		*place = *of;
		place->ended = GetCurrentTimestamp();
		note_oldest(shared);
	}
	else
	{
		ring_memory_give_back(of->memory);
		gone[n++] = of->handle;
	}
	memset(of, 0, sizeof(*of));
	LWLockRelease(&shared->lock);
	free_all(gone, n);
	return place != NULL;
}

/* A trace that begins needs memory: give up one of those that are kept.  False: there are none. */
bool
ended_make_way(Shared *shared)
{
	RingEntry  *next;
	RingHandle	gone = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	next = first_to_go(shared->ended_workers, MyProc->roleId, true);
	if (next == NULL)
		next = first_to_go(shared->ended, MyProc->roleId, true);
	if (next)
		gone = give_up(shared, next);
	LWLockRelease(&shared->lock);
	free_all(&gone, next ? 1 : 0);
	return next != NULL;
}

/* Give up those that ended by then. */
static void
give_up_until(Shared *shared, TimestampTz until)
{
	RingHandle	gone[ALL_ENDED];
	int			n = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ALL_ENDED; i++)
	{
		RingEntry  *entry = ended_entry(shared, i);

		if (entry->handle != 0 && entry->ended <= until)
			gone[n++] = give_up(shared, entry);
	}
	LWLockRelease(&shared->lock);
	free_all(gone, n);
}

/* Give up the rings of all processes that have ended. */
void
ended_give_up(Shared *shared)
{
	give_up_until(shared, DT_NOEND);
}

/* The last moment of processes whose rings have been kept for long enough */
static TimestampTz
kept_long_enough(void)
{
	return GetCurrentStatementStartTimestamp() - KEEP_ENDED_S * USECS_PER_SEC;
}

static void
give_up_old(Shared *shared)
{
	give_up_until(shared, kept_long_enough());
}

static pg_noinline void
give_up_if_old(Shared *shared, TimestampTz oldest)
{
	if (oldest <= kept_long_enough())
		(void) guard_run(give_up_old, "wait_event_timing cannot free the memory of traces");
}

/* Called by every session after each request, and by others as they commit: are some out of date? */
void
ended_look(void)
{
	Shared	   *shared = shmem_get();
	TimestampTz oldest = shared ? (TimestampTz) pg_atomic_read_u64(&shared->oldest_ended) : 0;

	if (unlikely(oldest != 0))
		give_up_if_old(shared, oldest);
}
