/*-------------------------------------------------------------------------
 * ring.c
 *		The trace of a process: a ring of records in a dynamic segment of its own,
 *		or in the area.
 *
 * A segment is made where an error can be caught, memory be had, and nothing
 * is held: of a client session between two requests; of a process that works
 * in a database, a parallel worker among them, where a transaction is about to
 * commit (that in which it connects is the first) or a plan starts; of any
 * other when it idles in its main loop, whose waits are of class Activity.
 *
 * The segment is pinned, so that others can read it after the process has gone
 * (ended.c).  A client session that has not been traced for a while gives it up,
 * a background process leaves it when it is no longer traced.
 * Rings in the area are those of the recorder (recorder_ring.c).
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"

#include "../common/guarded.h"
#include "../common/lately.h"
#include "../common/zeroed.h"
#include "waits.h"

#define RETRY_INTERVAL_US (60 * USECS_PER_SEC)

static int	ring_records = 131072;	/* setting */
TimestampTz ring_refused_at = 0;	/* do not try again at every request; 0: not refused */
static bool ending = false;		/* the process gives up its dynamic memory */
static TimestampTz resting_since = 0;	/* with a ring, and not traced; 0: not so */
static TimestampTz used_up_at = 0;	/* there was no room in the area then */

/* Our ring, in this segment, moves from the live ones to those that ended. */
static void
leave(Shared *shared, dsm_segment *segment)
{
	const TraceRing *ring = capture.ring;

	capture_fold();
	capture.ring = NULL;
	capture.clock_changes++;
	if (shared != NULL)
		ended_keep(shared, shmem_ring(shared, MY_PROC_NUMBER), ring, segment);
}

/*
 * The segment is about to be detached, as the process ends: after that is no
 * memory to write to.
 */
static void
ring_ends(dsm_segment *segment, Datum arg)
{
	if (capture.ring == NULL)
		return;					/* it failed before it began, or was given up */
	ending = true;
	leave(shmem_get(), segment);
}

/* In memory that holds zeros */
static void
begin(TraceRing *ring, uint32 nrecords)
{
	ring->nrecords = nrecords;
	ring->pid = MyProcPid;
	ring->started = GetCurrentTimestamp();
}

/* A segment with an empty ring of our own process, or an error. */
dsm_segment *
ring_segment(uint32 nrecords)
{
	dsm_segment *segment = zeroed_segment(offsetof(TraceRing, records) +
										  (Size) nrecords * sizeof(TraceRecord));
	TraceRing  *ring = dsm_segment_address(segment);

	begin(ring, nrecords);
	return segment;
}

/* An empty ring of ours: from here on it is to be had by its handle. */
static void
begin_ring(Shared *shared, TraceRing *ring, RingHandle handle)
{
	RingEntry  *mine = shmem_ring(shared, MY_PROC_NUMBER);
	RingHandle	gone;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	gone = mine->handle;		/* of one that ended without a word, or has been taken */
	ring_memory_give_back(mine->memory);
	mine->memory = ring_memory_taken();
	mine->pid = MyProcPid;
	mine->leader_pid = IsParallelWorker() && MyProc->lockGroupLeader ?
		MyProc->lockGroupLeader->pid : 0;
	mine->backend_type = capture.slot->backend_type;
	mine->role = MyProc->roleId;
	mine->handle = handle;
	mine->nrecords = ring->nrecords;
	mine->started = ring->started;
	mine->ended = 0;
	LWLockRelease(&shared->lock);
	if (gone != 0)
		ring_place_free(gone);
	capture.ring_base = clock_source_read(capture.clock);
	capture.ring_base_ns = 0;
	capture.ring = ring;
	capture.clock_changes++;
	resting_since = 0;
}

static void
make_ring(void *shared)
{
	uint64		size = ring_memory_take(offsetof(TraceRing, records),
										pg_nextpower2_32((uint32) ring_records) * sizeof(TraceRecord),
										SMALLEST_RING * sizeof(TraceRecord), ended_make_way);
	dsm_segment *segment = ring_segment((uint32) (size / sizeof(TraceRecord)));

	on_dsm_detach(segment, ring_ends, (Datum) 0);
	dsm_pin_segment(segment);
	dsm_pin_mapping(segment);
	begin_ring(shared, dsm_segment_address(segment), dsm_segment_handle(segment));
}

/* In the area, as small as can be.  That there is no room just now is no error. */
static void
make_area_ring(void *shared)
{
	TraceRing  *ring;

	if (ring_area() == NULL || !ring_area()->take(RING_PIECE, true, &capture.block))
		return;
	ring = capture.block.memory;
	begin(ring, (uint32) (capture.block.room / sizeof(TraceRecord)));
	begin_ring(shared, ring, capture.block.handle);
	recorder_may_grow();
}

/* Of a ring in the area: nobody has asked for that. */
static void
count_refusal(void *shared, const char *cause)
{
	pg_atomic_fetch_add_u64(&((Shared *) shared)->refused, 1);
}

/* Of one that was asked for.  A client hears of it; of other processes the log does, once in a while. */
static void
report_refusal(void *argument, const char *cause)
{
	Shared	   *shared = argument;
	bool		client = MyBackendType == B_BACKEND;
	TimestampTz now = GetCurrentTimestamp();
	bool		logged;

	count_refusal(shared, cause);
	if (ring_refused_at != 0)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	logged = !client && lately(shared->refused_at, now, RETRY_INTERVAL_US);
	if (!client && !logged)
		shared->refused_at = now;
	LWLockRelease(&shared->lock);
	if (!logged)
		ereport(client ? WARNING : LOG,
				(errmsg("wait_event_timing cannot trace this process: %s", cause),
				 errhint("Waits are counted and timed all the same.")));
}

static void
open_area_ring(Shared *shared)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();

	if (lately(used_up_at, now, RING_REST_US))
		return;
	if (!guarded_run("wait_event_timing", make_area_ring, count_refusal, shared) &&
		capture.block.handle != 0)
	{
		ring_place_free(capture.block.handle);	/* it failed half-way */
		capture.block.handle = 0;
	}
	used_up_at = capture.ring ? 0 : now;
}

/*
 * Begin the trace of this process, if its level asks for one and it holds
 * nothing.  A lack of memory can pass: it is tried again when a trace is asked
 * for anew, and without a word after a while.
 */
void
ring_open(void)
{
	Shared	   *shared;

	if (capture.ring != NULL && likely(!capture.block.rests || recorder_claim()))
		return;
	shared = shmem_get();
	if (ending || capture.slot == NULL || shared == NULL)
		return;
	if (pg_atomic_read_u32(capture.level) != CAPTURE_TRACE)
	{
		ring_refused_at = 0;
		return;
	}
	if (capture.slot->recorded)
	{
		open_area_ring(shared);
		return;
	}
	if (ring_refused_at != 0 && lately(ring_refused_at, GetCurrentTimestamp(), RETRY_INTERVAL_US))
		return;
	if (!guarded_run("wait_event_timing", make_ring, report_refusal, shared))
		ring_refused_at = GetCurrentTimestamp();
	ring_memory_give_back(ring_memory_taken()); /* if it failed half-way */
	/* a process that switched us off in the meantime may have seen no ring */
	pg_memory_barrier();
	ring_let_end(capture.slot, capture.ring != NULL);
}

static void
give_up_ring(void *argument)
{
	Shared	   *shared = argument;
	RingEntry  *mine = shmem_ring(shared, MY_PROC_NUMBER);
	dsm_segment *segment = capture.block.handle != 0 ? NULL :
		dsm_find_mapping((dsm_handle) mine->handle);
	RingHandle	handle;

	capture_fold();
	capture.ring = NULL;
	capture.block.handle = 0;
	capture.clock_changes++;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	handle = mine->handle;
	ring_memory_give_back(mine->memory);
	memset(mine, 0, sizeof(*mine));
	LWLockRelease(&shared->lock);
	ring_place_free(handle);
	if (segment)
		dsm_detach(segment);
}

/* Leave our ring to the processes that read it. */
static void
leave_ring(void *shared)
{
	dsm_segment *segment =
		dsm_find_mapping((dsm_handle) shmem_ring(shared, MY_PROC_NUMBER)->handle);

	if (segment == NULL)
		return;
	leave(shared, segment);
	dsm_detach(segment);
}

/*
 * The level of a process has been set.  A background process does not come by us
 * again once it is off, and so is off only when it has let go of its ring.
 */
void
ring_let_end(Slot *slot, bool has_ring)
{
	uint32		off = CAPTURE_OFF;

	if (has_ring && slot->backend_type != B_BACKEND && slot->backend_type != PARALLEL_WORKER)
		(void) pg_atomic_compare_exchange_u32(&slot->level, &off, CAPTURE_ENDING);
}

/* A process idles in its main loop: it begins its trace, or ends it, if its level says so. */
void
ring_follow_level(void)
{
	uint32		level = pg_atomic_read_u32(capture.level);

	if (level == CAPTURE_TRACE)
	{
		ring_open();
		level = pg_atomic_read_u32(capture.level);
		if (likely(level == CAPTURE_TRACE))
			return;
	}
	if (unlikely(capture.ring != NULL) && MyBackendType != B_BACKEND)
		(void) guarded_run("wait_event_timing cannot free the memory of a trace", leave_ring, NULL,
						   shmem_get());
	if (level == CAPTURE_ENDING && capture.ring == NULL &&
		pg_atomic_compare_exchange_u32(&capture.slot->level, &level, CAPTURE_OFF) &&
		capture.slot->current_event == 0)
		timing_stop_own();
}

/*
 * One that is not traced any more keeps its ring for a while: for readers, and as it
 * may be traced again soon.
 */
static void
keep_for_a_while(void)
{
	TimestampTz now = GetCurrentTimestamp();

	if (resting_since == 0)
		resting_since = now;
	if (now - resting_since >= KEEP_ENDED_S * USECS_PER_SEC)
		(void) guarded_run("wait_event_timing cannot free the memory of a trace", give_up_ring, NULL,
						   shmem_get());
}

/*
 * A client's request has been answered, and the process holds nothing; it is traced, was so
 * or was to be.  "status" is that of the transaction, as clients learn it.
 */
void
ring_answered(const char *status)
{
	bool		traced = pg_atomic_read_u32(capture.level) == CAPTURE_TRACE;

	ring_open();
	if (capture.ring == NULL)
		return;
	if (traced)
		resting_since = 0;
	else
		keep_for_a_while();
	if (unlikely(capture.block.handle != 0))
		recorder_rest(*status == 'I');
}

/*
 * The same of a process that has no client, if it holds nothing; those that have
 * begin after an answer.  A worker may idle in waits of another class, and so ends
 * its trace here, too; one of a parallel query ends before long.
 */
void
ring_follow_in_background(void)
{
	if (!IsUnderPostmaster || MyBackendType == B_BACKEND || capture.slot == NULL)
		return;
	if (IsParallelWorker())
		ring_open();
	else
		ring_follow_level();
}

/* Times in the ring go on when the clock is changed. */
void
ring_rebase(const Shared *shared, int64 old_ticks, ClockSource old, int64 new_ticks)
{
	uint64		ignored = 0;

	if (shared)
		capture.ring_base_ns += clock_ns(timing_rate(shared, old),
										 old_ticks - capture.ring_base, &ignored);
	capture.ring_base = new_ticks;
	capture.clock_changes++;
}

/* Called when the library is loaded. */
void
ring_init(void)
{
	DefineCustomIntVariable("wait_event_timing.trace_ring_records",
							"Records of 32 bytes that the trace of a session holds.",
							"Has an effect on sessions that begin a trace; rounded up to a power of two.",
							&ring_records, 131072, SMALLEST_RING, 1 << 24,
							PGC_SUSET, 0, NULL, NULL, NULL);
}
