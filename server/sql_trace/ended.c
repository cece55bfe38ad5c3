/*-------------------------------------------------------------------------
 * ended.c
 *		Traces of sessions that have ended: which are kept, and what of those that
 *		make way nobody had read.
 *
 * A few are kept, so that what a session did last can be read after it.  A place
 * is taken from the role whose session ends, so that nobody can push out all
 * that others have left, and first from what has been read.  What is given up
 * unread is counted: the evictor has not mapped that ring, so each entry says
 * what is unread of it, from when its session ends, and whoever reads it says so
 * anew.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

#include "storage/dsm.h"
#include "storage/latch.h"

/* The caller holds the lock.  A free place, or that of the trace that is to make way. */
static TraceEntry *
place_for(TraceEntry *entries, Oid role)
{
	TraceEntry *found = NULL;
	int			found_rank = 0;

	for (int i = 0; i < MAX_ENDED; i++)
	{
		TraceEntry *entry = &entries[i];
		int			rank = (entry->role == role ? 2 : 0) + (entry->unread.bytes == 0 ? 1 : 0);

		if (entry->handle == 0)
			return entry;
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
 * What nobody has read of a ring to which nobody writes any more, and to which
 * so many records were written.
 */
static Unread
unread_of(Ring *ring, uint64 records)
{
	uint64		head = pg_atomic_read_u64(&ring->head);
	uint64		from = Max(pg_atomic_read_u64(&ring->drained), pg_atomic_read_u64(&ring->tail));
	uint64		number;
	Unread		unread = {0};

	if (from >= head)
		return unread;
	/* records are numbered without gaps; a ring that is damaged may say anything */
	number = *(const uint64 *) &ring->data[(from + offsetof(RecordHeader, number)) &
										   (ring->size - 1)];
	unread.sessions = 1;
	unread.records = number > 0 && number <= records ? records - number + 1 : records;
	unread.bytes = head - from;
	return unread;
}

/* The caller holds the lock, and unpins what stood there. */
static uint32
give_up(Shared *shared, TraceEntry *place)
{
	uint32		handle = place->handle;

	shared->unread.sessions += place->unread.sessions;
	shared->unread.records += place->unread.records;
	shared->unread.bytes += place->unread.bytes;
	memset(place, 0, sizeof(*place));
	return handle;
}

/* The process that writes traces to files; NULL: there is none */
static PGPROC *
writer(Shared *shared)
{
	uint32		number = pg_atomic_read_u32(&shared->writer);

	return number != 0 ? &ProcGlobal->allProcs[number - 1] : NULL;
}

/*
 * A session ends: keep its trace.  Whoever writes traces to files is woken, so
 * that it comes before others that end push this one out.
 */
void
ended_keep(Shared *shared, TraceEntry *of, Ring *ring)
{
	TraceEntry	entry;
	TraceEntry *place;
	PGPROC	   *wake;
	uint32		unpin;
	bool		left;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	entry = *of;
	entry.ended = GetCurrentTimestamp();
	entry.unread = unread_of(ring, entry.counters.records);
	left = entry.unread.bytes > 0;
	/* who holds it reads it to its end, wherever it stands, and tells if it does not */
	if (pg_atomic_read_u32(&ring->held) > 0)
		memset(&entry.unread, 0, sizeof(entry.unread));
	place = place_for(shared->ended, entry.role);
	unpin = give_up(shared, place);
	*place = entry;
	counters_add(&shared->ended_totals, &entry.counters);
	memset(of, 0, sizeof(*of));
	LWLockRelease(&shared->lock);
	if (unpin != 0)
		dsm_unpin_segment(unpin);
	wake = writer(shared);
	if (wake && left)
		SetLatch(&wake->procLatch);
}

/* Somebody has read of a ring, or lets go of it: say what is unread now, if its session has ended. */
void
ended_read(Shared *shared, uint32 handle, Ring *ring)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_ENDED; i++)
	{
		TraceEntry *entry = &shared->ended[i];

		if (entry->handle == handle)
			entry->unread = unread_of(ring, entry->counters.records);
	}
	LWLockRelease(&shared->lock);
}

/* Give up all of them; returns how many. */
int
ended_give_up(Shared *shared)
{
	int			n = 0;

	for (int i = 0; i < MAX_ENDED; i++)
	{
		uint32		unpin;

		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		unpin = give_up(shared, &shared->ended[i]);
		LWLockRelease(&shared->lock);
		if (unpin == 0)
			continue;
		dsm_unpin_segment(unpin);
		n++;
	}
	return n;
}
