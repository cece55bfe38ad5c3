/*-------------------------------------------------------------------------
 * ring.c
 *		The trace of a session: a ring of records in a dynamic segment of its own.
 *
 * The segment is made between two requests, where an error can be caught and
 * memory be had.  It is pinned, so that others can read it after the session
 * has gone; a few of those are kept, the oldest makes way.
 *
 * A record's number is in it when it is complete and only then, so that a
 * reader notices one that is being written or has been overwritten.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/dsm.h"
#include "storage/ipc.h"

#include "waits.h"

static RingEntry *entry;		/* of this session */
static bool refused = false;	/* do not try at every request */

/*
 * Sessions that were traced side by side may leave more rings than are kept.
 * The caller holds the lock, and lets go of the handle returned, if any.
 */
static uint32
drop_surplus(Shared *shared)
{
	RingEntry  *oldest = NULL;
	int			ended = 0;

	for (int i = 0; i < MAX_RINGS; i++)
	{
		RingEntry  *e = &shared->rings[i];

		if (e->state != RING_ENDED)
			continue;
		ended++;
		if (oldest == NULL || e->ended < oldest->ended)
			oldest = e;
	}
	if (ended <= MAX_ENDED_RINGS)
		return DSM_HANDLE_INVALID;
	oldest->state = RING_FREE;
	return oldest->handle;
}

/* Dynamic segments are detached after this, and before the slot is left. */
static void
close_at_exit(int code, Datum arg)
{
	Shared	   *shared = shmem_get();
	uint32		unpin;

	capture_fold();
	capture.ring = NULL;
	refused = true;
	if (shared == NULL || entry == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	entry->state = RING_ENDED;
	entry->ended = GetCurrentTimestamp();
	unpin = drop_surplus(shared);
	LWLockRelease(&shared->lock);
	if (unpin != DSM_HANDLE_INVALID)
		dsm_unpin_segment(unpin);
}

/* The caller holds the lock.  Returns the entry to use, with the handle to let go, if any. */
static RingEntry *
take_entry(Shared *shared, uint32 *unpin)
{
	RingEntry  *vacant = NULL;
	RingEntry  *oldest = NULL;
	int			ended = 0;

	*unpin = DSM_HANDLE_INVALID;
	for (int i = 0; i < MAX_RINGS; i++)
	{
		RingEntry  *e = &shared->rings[i];

		if (e->state == RING_FREE && vacant == NULL)
			vacant = e;
		else if (e->state == RING_ENDED)
		{
			ended++;
			if (oldest == NULL || e->ended < oldest->ended)
				oldest = e;
		}
	}
	if (oldest && (vacant == NULL || ended >= MAX_ENDED_RINGS))
	{
		*unpin = oldest->handle;
		vacant = oldest;
	}
	return vacant;
}

static void
make_ring(Shared *shared)
{
	uint32		nrecords = pg_nextpower2_32((uint32) waits_ring_records);
	dsm_segment *segment;
	TraceRing  *ring;
	uint32		unpin;

	segment = dsm_create(offsetof(TraceRing, records) + (Size) nrecords * sizeof(TraceRecord),
						 DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (segment == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("too many dynamic shared memory segments")));
	dsm_pin_mapping(segment);

	/* fresh segments hold zeros */
	ring = dsm_segment_address(segment);
	ring->nrecords = nrecords;
	ring->pid = MyProcPid;
	ring->started = GetCurrentTimestamp();
	pg_atomic_init_u64(&ring->written, 0);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	entry = take_entry(shared, &unpin);
	if (entry)
	{
		entry->state = RING_LIVE;
		entry->pid = MyProcPid;
		entry->role = MyProc->roleId;
		entry->handle = dsm_segment_handle(segment);
		entry->nrecords = nrecords;
		entry->started = ring->started;
		entry->ended = 0;
	}
	LWLockRelease(&shared->lock);
	if (entry == NULL)
	{
		dsm_detach(segment);
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("%d sessions are being traced already", MAX_RINGS)));
	}
	if (unpin != DSM_HANDLE_INVALID)
		dsm_unpin_segment(unpin);
	dsm_pin_segment(segment);
	capture.ring_base = clock_source_read(capture.clock);
	capture.ring_base_ns = 0;
	capture.ring = ring;
	before_shmem_exit(close_at_exit, (Datum) 0);
}

/*
 * Begin the trace of this session.  Called between requests, where an error
 * would make the server send another ReadyForQuery, and so on without end.
 */
void
ring_open(void)
{
	Shared	   *shared = shmem_get();
	MemoryContext context = CurrentMemoryContext;

	if (refused || shared == NULL)
		return;
	PG_TRY();
	{
		make_ring(shared);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		refused = true;
		ereport(WARNING,
				(errmsg("wait_event_timing cannot trace this session: %s", error->message),
				 errhint("Waits are counted and timed all the same.")));
		FreeErrorData(error);
	}
	PG_END_TRY();
}

/* Times in the ring go on when the clock is changed. */
void
ring_rebase(const Shared *shared, int64 old_ticks, ClockSource old, int64 new_ticks)
{
	uint64		ignored = 0;

	if (shared)
		capture.ring_base_ns += clock_ns(capture_rate(shared, old),
										 old_ticks - capture.ring_base, &ignored);
	capture.ring_base = new_ticks;
}

void
ring_put(const Pending *wait, int64 ns, const ClockRate *rate)
{
	TraceRing  *ring = capture.ring;
	uint64		number = pg_atomic_read_u64(&ring->written);
	TraceRecord *record = &ring->records[number & (ring->nrecords - 1)];
	uint64		ignored = 0;

	if (pg_atomic_read_u32(capture.level) != CAPTURE_TRACE)
		return;
	record->seq = 0;
	pg_write_barrier();
	if (WAIT_CLASS(wait->event) == 0)
	{
		record->kind = (uint16) wait->event;
		record->depth = (uint16) wait->calls;
		record->event = 0;
		record->calls = 0;
	}
	else
	{
		record->kind = RECORD_WAIT;
		record->depth = 0;
		record->event = wait->event;
		record->calls = wait->calls;
	}
	/* a wait can have begun before its ring */
	record->start_ns = capture.ring_base_ns +
		(wait->start >= capture.ring_base ?
		 clock_ns(rate, wait->start - capture.ring_base, &ignored) :
		 -clock_ns(rate, capture.ring_base - wait->start, &ignored));
	record->value = ns;
	pg_write_barrier();
	record->seq = (uint32) number + 1;
	pg_write_barrier();
	pg_atomic_write_u64(&ring->written, number + 1);
}
