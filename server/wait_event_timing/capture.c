/*-------------------------------------------------------------------------
 * capture.c
 *		A process and its waits: its slot, and what is done after a wait.
 *
 * Between a wait's end and the server going on there is one clock reading and
 * one entry in an array of this process.  The array is folded into the tables
 * before it would overflow, before waits that can last, and when a request has
 * been answered, before the answer leaves: there the work delays nobody who
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

/* we need no more of libpq than its methods; the headers of GSSAPI may be missing */
#undef ENABLE_GSS

#include "access/parallel.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"

#include "ring_write.h"
#include "waits.h"

/* Until a process has its slot it must look once: later, the level of its slot */
static pg_atomic_uint32 look_once = {CAPTURE_STATS};
static pg_atomic_uint32 never = {CAPTURE_OFF};

pg_attribute_aligned(64)
Capture		capture = {.level = &look_once, .lock_entry = -1};

static const PQcommMethods *chained;
static PQcommMethods ours;

/* Where the value of our setting comes from */
static GucSource source_of_setting = PGC_S_DEFAULT;

static const ClockRate nanoseconds = {(uint64) 1 << 32, 1000000000, false};

static void
leave_at_exit(int code, Datum arg)
{
	capture_detach();
}

/* The slot of the leader whose parallel worker we are, or NULL */
static Slot *
slot_of_leader(Shared *shared)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;
	Slot	   *slot;
	uint32		number;

	if (leader == NULL || leader == MyProc)
		return NULL;
	number = (uint32) (leader - ProcGlobal->allProcs);
	if (number >= shared->nslots)
		return NULL;
	slot = shmem_slot(shared, number);
	return slot->pid == leader->pid ? slot : NULL;
}

/*
 * Take the slot that belongs to this process, and return whether it captures.
 * Called at the first wait of a process, in the middle of whatever it does, so
 * it takes no lock.
 */
bool
capture_attach(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *slot;
	Slot	   *leader;

	/* no PGPROC yet, or never: the postmaster, the syslogger, dead-end children */
	if (shared == NULL || MY_PROC_NUMBER >= shared->nslots)
		return false;

	slot = shmem_slot(shared, MY_PROC_NUMBER);
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) | 1);
	pg_write_barrier();
	stats_clear_slot(slot);
	slot->records = 0;
	slot->reset_done = pg_atomic_read_u64(&slot->reset_wanted);
	slot->current_event = 0;
	slot->npending = 0;
	slot->turns = 0;
	pg_atomic_write_u64(&slot->timed_since, 0);
	slot->timed_until = 0;
	pg_atomic_write_u64(&slot->timed_ns, 0);
	slot->clock = waits_clock;
	slot->backend_type = IsParallelWorker() ? PARALLEL_WORKER : MyBackendType;
	slot->database = MyProc->databaseId;
	slot->role = MyProc->roleId;
	slot->number = MY_PROC_NUMBER;
	slot->pid = MyProcPid;
	leader = slot_of_leader(shared);
	pg_atomic_write_u32(&slot->configured, waits_capture);
	pg_atomic_write_u32(&slot->level,
						leader ? (int) pg_atomic_read_u32(&leader->level) : waits_capture);
	pg_atomic_write_u32(&slot->asked, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) + 1);

	capture.clock = waits_clock;
	capture.lock_entry = -1;
	capture.slot = slot;
	capture.level = &slot->level;

	/*
	 * Dynamic memory is gone when on_shmem_exit callbacks run.  In the main
	 * segment we can stay until then, and so see the waits of the exit; and to
	 * register a before_shmem_exit callback here would break code that expects
	 * its own to be the latest.
	 */
	if (!shmem_is_dynamic())
		on_shmem_exit(leave_at_exit, (Datum) 0);
	else
		before_shmem_exit(leave_at_exit, (Datum) 0);
	return pg_atomic_read_u32(&slot->level) != CAPTURE_OFF;
}

/* Does this process have a slot?  It takes one if it has not waited yet. */
bool
capture_present(void)
{
	if (capture.slot == NULL && pg_atomic_read_u32(capture.level) != CAPTURE_OFF)
		(void) capture_attach();
	return capture.slot != NULL;
}

/* Add what this process has seen to the totals, and let its slot go. */
void
capture_detach(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *slot = capture.slot;

	if (slot == NULL)
		return;
	/* a background worker can die from a signal in the midst of anything */
	capture_abandon();
	capture.lock_entry = -1;
	capture_fold();
	capture.slot = NULL;
	capture.level = &never;
	if (shared == NULL)
		return;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	capture_stop_timing(slot, shared, clock_source_read(slot->clock));
	stats_fold_into_totals(shared, slot);
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) | 1);
	pg_write_barrier();
	slot->pid = 0;
	slot->current_event = 0;
	pg_atomic_write_u64(&slot->timed_ns, 0);
	stats_clear_slot(slot);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) + 1);
	LWLockRelease(&shared->lock);
}

/*
 * The statement a wait belongs to.  The server keeps the last query identifier
 * while a session idles, so waits for the next request are told apart by there
 * being no query text.
 */
static inline uint64
statement_of(uint32 event)
{
	if (MyBEEntry == NULL || WAIT_CLASS(event) == CLASS_ACTIVITY ||
		(WAIT_CLASS(event) == CLASS_CLIENT && debug_query_string == NULL))
		return 0;
	return (uint64) MyBEEntry->st_query_id;
}

/*
 * Called before a wait that can last.  Who grants a lock clears the time since
 * which we wait for it, so that is looked at now.
 */
void
capture_before_lasting(uint32 event)
{
	/* the one place in a wrapper where memory is had: a process idles in its main loop */
	if (WAIT_CLASS(event) == CLASS_ACTIVITY)
		ring_follow_level();
	if (WAIT_CLASS(event) == CLASS_LOCK && MyProc)
		capture.lock_now = pg_atomic_read_u64(&MyProc->waitStart);
	/* perhaps the same wait goes on after a signal */
	if (capture.last_interrupted && capture.slot->npending > 0 &&
		capture.slot->pending[capture.slot->npending - 1].event == event)
		return;
	capture_fold();
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
	Pending    *entry;

	if (capture.slot == NULL || capture.folding)
		return;
	if (capture.slot->npending == PENDING_WAITS)
		capture_fold();
	entry = &capture.slot->pending[capture.slot->npending];
	entry->event = kind;
	entry->calls = depth;
	entry->start = clock_source_read(capture.clock);
	entry->length = value;
	entry->query_id = 0;
	pg_write_barrier();
	capture.slot->npending++;
	capture.last_kind = CALL_OTHER;
	capture.last_interrupted = false;
}

static void
add_time(Slot *slot, const Shared *shared, int64 ticks)
{
	uint64		ignored = 0;

	pg_atomic_fetch_add_u64(&slot->timed_ns,
							clock_ns(capture_rate(shared, slot->clock), ticks, &ignored));
}

/*
 * The waits of a process are no longer captured.  Called by itself, or by who
 * switched that off while it did not wait; of several at once, one adds the time.
 * A reader in between would miss all of it, so others hold the lock, and the
 * process counts its turns or holds the lock.
 */
void
capture_stop_timing(Slot *slot, const Shared *shared, int64 now)
{
	int64		since;

	if (shared == NULL || pg_atomic_read_u64(&slot->timed_since) == 0)
		return;
	slot->timed_until = now;
	since = (int64) pg_atomic_exchange_u64(&slot->timed_since, 0);
	if (since != 0)
		add_time(slot, shared, now - since);
}

/* The same, by the process itself, between waits */
void
capture_stop_own_timing(void)
{
	Slot	   *slot = capture.slot;

	slot->turns++;
	pg_write_barrier();
	capture_stop_timing(slot, shmem_get(), clock_source_read(slot->clock));
	pg_write_barrier();
	slot->turns++;
}

/* A wait is over that began as somebody stopped the time: what came after that is its own. */
void
capture_time_wait(int64 start, int64 end)
{
	const Shared *shared = shmem_get();

	if (shared != NULL)
		add_time(capture.slot, shared, end - Max(start, capture.slot->timed_until));
}

/* What turns readings of a clock into nanoseconds */
const ClockRate *
capture_rate(const Shared *shared, ClockSource clock)
{
	return clock_source_counts(clock) ? &shared->rate : &nanoseconds;
}

/* Move all finished waits into the tables.  Safe inside a wait: it takes no lock. */
void
capture_fold(void)
{
	Slot	   *slot = capture.slot;
	Shared	   *shared = shmem_get();
	const ClockRate *rate;
	uint64		reset_wanted;
	uint32		changes;
	EventStats *entry = NULL;
	uint32		entry_event = 0;
	uint32		npending;
	RingWriter	writer;
	Pending		kept;
	bool		keep = false;

	if (slot == NULL || shared == NULL || capture.folding)
		return;
	reset_wanted = pg_atomic_read_u64(&slot->reset_wanted);
	if (capture.slot->npending == 0 && reset_wanted == slot->reset_done)
		return;
	capture.folding = true;
	rate = capture_rate(shared, capture.clock);

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
	slot->backend_type = IsParallelWorker() ? PARALLEL_WORKER : MyBackendType;
	if (MyProc)
	{
		slot->database = MyProc->databaseId;
		slot->role = MyProc->roleId;
	}
	statements_begin(shared);
	writer = ring_begin(pg_atomic_read_u32(&slot->level) == CAPTURE_TRACE ? capture.ring : NULL,
						rate);
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
	}
	/* who reads the tables reads what is not in them yet as well */
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

/* What our settings say; it counts unless another session has asked for a level. */
static void
configure(int level)
{
	pg_atomic_write_u32(&capture.slot->configured, level);
	/* who gives the level back clears "asked", and then reads what we wrote */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&capture.slot->asked) == 0)
	{
		pg_atomic_write_u32(&capture.slot->level, level);
		ring_let_end(capture.slot, capture.ring != NULL);
	}
	if (pg_atomic_read_u32(&capture.slot->level) == CAPTURE_OFF)
		capture_stop_own_timing();
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

/*
 * The setting of this session changed, or is read again.  It replaces what
 * others had asked for, but a reload that brings nothing new does not.
 */
void
capture_set_level(int setting, GucSource source)
{
	bool		same = source < PGC_S_GLOBAL && source == source_of_setting &&
		setting == waits_capture;

	source_of_setting = source;
	if (capture.slot == NULL || same)
		return;
	capture_fold();
	explain_level_set();
	pg_atomic_write_u32(&capture.slot->asked, 0);
	configure(application_level(setting, source));
	capture_follow_leader();
	trace_follow_level();
	/* what the change itself leaves is no part of the statement to come */
	capture_fold();
}

/* A parallel worker captures what its leader does, whoever has set that. */
void
capture_follow_leader(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *leader = shared ? slot_of_leader(shared) : NULL;

	if (leader && capture.slot)
		pg_atomic_write_u32(&capture.slot->level, pg_atomic_read_u32(&leader->level));
}

/* Waits not yet folded are in the old clock's units. */
void
capture_set_clock(int clock)
{
	if (capture.slot == NULL)
		return;
	capture.lock_entry = -1;
	capture_fold();
	if (capture.ring)
		ring_rebase(shmem_get(), clock_source_read(capture.clock), capture.clock,
					clock_source_read(clock));
	capture_stop_own_timing();
	capture.slot->timed_until = 0;	/* which was by the old clock */
	capture.clock = clock;
	capture.slot->clock = clock;
}

static int
waits_putmessage(char type, const char *body, size_t length)
{
	trace_message(type);
	if (capture.ring)
		trigger_message(type);
	if (type == 'Z' && capture_present())	/* ReadyForQuery */
	{
		capture_fold();
		if (application_changed())
			configure(application_level(waits_capture, source_of_setting));
		ring_open();
		ring_rest();
		trace_follow_level();
	}
	if (type == 'Z')
		ended_look();
	return chained->putmessage(type, body, length);
}

static int
waits_flush(void)
{
	int			result;

	trace_flush();
	result = chained->flush();
	trigger_flushed();
	return result;
}

void
capture_install(void)
{
	chained = PqCommMethods;
	ours = *chained;
	ours.putmessage = waits_putmessage;
	ours.flush = waits_flush;
	PqCommMethods = &ours;
}
