/*-------------------------------------------------------------------------
 * capture.c
 *		A process and its waits: what is done after each, and folding them in.
 *
 * Between a wait's end and the server going on there is one clock reading and
 * one entry in an array of this process.  The array is folded into the tables
 * before it would overflow, before waits that can last, and when a request has
 * been answered, before the answer leaves: there the work delays no process that
 * holds a lock, and hides in no measured interval.
 *
 * Which calls make up one wait:
 *
 * - a call ended by EINTR and the call of the same function that follows;
 * - epoll_wait() and the read() of the signal descriptor that follows;
 * - all calls while the process waits for one and the same heavyweight lock,
 *	 though it is woken to look for deadlocks.  Its time is that of the calls.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"

#include "ring_write.h"
#include "waits.h"

/*
 * The statement a wait belongs to.  The server keeps the last query identifier
 * while a session idles, so waits for the next request are recognised by there
 * being no query text.
 */
static inline uint64
statement_of(uint32 event)
{
	if (MyBEEntry == NULL || IS_IDLE(event) ||
		(WAIT_CLASS(event) == CLASS_CLIENT && debug_query_string == NULL))
		return 0;
	return (uint64) MyBEEntry->st_query_id;
}

/* There is room for another. */
static inline void
push(uint32 event, int64 start, int64 end)
{
	Pending    *entry = &capture.slot->pending[capture.slot->npending++];

	entry->event = event;
	entry->calls = 1;
	entry->start = start;
	entry->length = end - start;
	entry->query_id = statement_of(event);
}

/* The entry of the lock that we wait for again, or NULL. */
static inline Pending *
open_lock(uint32 event)
{
	Pending    *entry = &capture.slot->pending[Max(capture.lock_entry, 0)];

	return capture.lock_entry >= 0 && (uint32) capture.lock_entry < capture.slot->npending &&
		capture.lock_now == capture.lock_since && entry->event == event ? entry : NULL;
}

/*
 * Record a call in a wait for a lock, unless nothing tells which wait that is.
 * A lock that we have waited for before goes on with its entry; with another no
 * wait goes on, though a signal ended that before it.  Not inline, as other
 * waits would pay for it.
 */
static pg_noinline bool
record_lock(uint32 event, int64 start, int64 end)
{
	Pending    *entry = open_lock(event);

	if (entry)
	{
		entry->calls++;
		entry->length += end - start;
		return true;
	}
	capture.lock_since = capture.lock_now;
	capture.lock_entry = capture.lock_now != 0 ? (int) capture.slot->npending : -1;
	if (capture.lock_entry < 0)
		return false;
	push(event, start, end);
	return true;
}

/* A call begins that waits for a lock: others see it from the first call for that lock on. */
int64
capture_begin_lock(uint32 event)
{
	const Pending *entry = open_lock(event);
	int64		start = clock_source_read(capture.clock);

	if (unlikely(pg_atomic_read_u64(&capture.slot->timed_since) == 0))
		pg_atomic_write_u64(&capture.slot->timed_since, (uint64) start);
	capture.slot->call_start = start;
	capture.slot->current_start = entry ? entry->start : start;
	pg_write_barrier();
	capture.slot->current_event = event;
	return start;
}

void
capture_record(uint32 event, int64 start, int64 end, CallKind kind, bool interrupted)
{
	Pending    *last = capture.slot->npending ? &capture.slot->pending[capture.slot->npending - 1] : NULL;
	bool		goes_on;

	goes_on = (capture.last_interrupted && kind == capture.last_kind) ||
		(kind == CALL_READ && capture.last_kind == CALL_EPOLL_WAIT);
	capture.last_kind = kind;
	capture.last_interrupted = interrupted;
	capture.waits++;

	/* room for another; not before, as a call can go on with the last wait */
	if (unlikely(capture.slot->npending == PENDING_WAITS) && !capture.folding &&
		(!goes_on || last->event != event || WAIT_CLASS(event) == CLASS_LOCK))
	{
		capture_fold();
		last = NULL;
	}

	if (unlikely(WAIT_CLASS(event) == CLASS_LOCK) && !capture.folding &&
		record_lock(event, start, end))
		return;
	if (goes_on && last && last->event == event)
	{
		last->calls++;
		last->length += end - start;
		return;
	}

	if (unlikely(capture.folding))
	{
		/* a signal handler waits in the midst of it */
		capture.slot->missed++;
		return;
	}
	push(event, start, end);
}

/* Put a mark between the waits of a trace. */
void
capture_mark(RecordKind kind, int depth, int64 value)
{
	Slot	   *slot = capture.slot;
	Pending    *entry;
	uint32		n;

	if (slot == NULL || unlikely(capture.folding))
		return;
	if (unlikely(slot->npending == PENDING_WAITS))
		capture_fold_now(slot);
	n = slot->npending;
	entry = &slot->pending[n];
	entry->event = kind;
	entry->calls = depth;
	entry->start = clock_source_read(capture.clock);
	entry->length = value;
	entry->query_id = 0;
	pg_write_barrier();
	slot->npending = n + 1;
	capture.last_kind = CALL_OTHER;
	capture.last_interrupted = false;
}

/* The ring, to be written now; "rested": it is to rest again.  NULL: none, or it was taken */
static inline TraceRing *
ring_claimed(bool *rested)
{
	if (unlikely(capture.block.rests))
	{
		*rested = recorder_claim();
		/* if it has been taken, whoever claims it for the next request is to notice */
		capture.block.rests = !*rested;
	}
	return capture.ring;
}

static pg_noinline void
fold(Slot *slot, Shared *shared)
{
	const uint64 reset_wanted = pg_atomic_read_u64(&slot->reset_wanted);
	const ClockRate *rate = timing_rate(shared, capture.clock);
	uint32		changes;
	EventStats *entry = NULL;
	uint32		entry_event = 0;
	uint32		npending;
	RingWriter	writer;
	Pending		kept;
	bool		keep = false;
	bool		rested = false;

	capture.folding = true;

	/* a lock that we still wait for stays open; early minor releases leave its time behind */
	if (capture.lock_entry >= 0 && MyProc && MyProc->waitStatus == PROC_WAIT_STATUS_WAITING &&
		pg_atomic_read_u64(&MyProc->waitStart) == capture.lock_since)
	{
		kept = capture.slot->pending[capture.lock_entry];
		keep = true;
	}

	changes = pg_atomic_read_u32(&slot->changes);
	pg_atomic_write_u32(&slot->changes, changes + 1);
	pg_write_barrier();
	if (reset_wanted != slot->reset_done)
	{
		stats_clear_slot(slot);
		slot->reset_done = reset_wanted;
	}
	if (MyProc)
	{
		slot->database = MyProc->databaseId;
		slot->role = MyProc->roleId;
	}
	statements_begin(shared);
	writer = ring_begin(pg_atomic_read_u32(&slot->level) == CAPTURE_TRACE ?
						ring_claimed(&rested) : NULL, rate);
	npending = slot->npending;
	for (uint32 i = 0; i < npending; i++)
	{
		const Pending *wait = &slot->pending[i];
		uint64		ns;

		if (keep && i == (uint32) capture.lock_entry)
			continue;
		if (unlikely(WAIT_CLASS(wait->event) == 0))
		{
			if (writer.ring)
				ring_put(&writer, wait, wait->length);
			continue;
		}
		ns = clock_ns(rate, wait->length, &slot->negative);
		/* mostly the event is that of the wait before */
		if (wait->event != entry_event)
		{
			entry = stats_entry(slot, wait->event);
			entry_event = wait->event;
		}
		if (unlikely(entry->key == 0))
			slot->overflows++;
		stats_count(entry, wait, ns);
		if (wait->query_id != 0 && !statements_add(shared, wait, ns))
			slot->statements_missed++;
		if (writer.ring)
			ring_put(&writer, wait, (int64) ns);
	}
	statements_end();
	if (writer.ring)
	{
		ring_end(&writer);
		slot->records = writer.number;
		if (unlikely(rested))
			recorder_let_rest();
	}
	/* a reader of the tables reads what is not in them yet as well */
	slot->npending = 0;
	capture.lock_entry = -1;
	if (keep)
	{
		slot->pending[0] = kept;
		slot->npending = 1;
		capture.lock_entry = 0;
	}
	pg_write_barrier();
	pg_atomic_write_u32(&slot->changes, changes + 2);
	capture.folding = false;
}

/* What capture_fold() does, if there is something to do */
void
capture_fold_now(Slot *slot)
{
	Shared	   *shared = shmem_get();

	if (shared != NULL && !capture.folding)
		fold(slot, shared);
}

/*
 * Called where no folding and no look at the statements can be under way: a
 * handler that threw an error, or ends the process, left what there is.
 */
void
capture_abandon(void)
{
	Slot	   *slot = capture.slot;

	statements_abandon();
	if (slot == NULL || !capture.folding)
		return;
	/* some may have been folded in; none must count twice */
	slot->missed += capture.slot->npending;
	capture.slot->npending = 0;
	capture.lock_entry = -1;
	pg_write_barrier();
	pg_atomic_write_u32(&slot->changes, (pg_atomic_read_u32(&slot->changes) | 1) + 1);
	capture.folding = false;
}
