/*-------------------------------------------------------------------------
 * ring_make.c
 *		Making the ring of a session, and giving it up.
 *
 * A ring is made where an error can be caught, memory be had, and nothing is
 * held: between two requests of a client, or as a request begins.  Others can
 * read it after the session has ended (ended.c).  A session that has not been
 * traced for a while gives it up.
 *
 * A ring in a dynamic segment is pinned; that of the recorder is in the area.
 *-------------------------------------------------------------------------
 */
#include "kept.h"
#include "module.h"
#include "record.h"
#include "timeline.h"
#include "../calls/secrets.h"
#include "../calls/statement.h"

/* we need no more of a Port than its names; the headers of GSSAPI may be missing */
#undef ENABLE_GSS

#include "access/xact.h"
#include "access/xlog.h"
#include "libpq/libpq-be.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/backend_status.h"

#include "../../common/guarded.h"
#include "../../common/lately.h"
#include "../../common/pg_compat.h"
#include "../../common/ring_memory.h"
#include "../../common/zeroed.h"

#define RETRY_INTERVAL_US (60 * USECS_PER_SEC)

static int	ring_kb = 4096;
static TimestampTz refused_at = 0;	/* do not try again at every request; 0: not refused */
static TimestampTz recorder_refused_at = 0; /* the same of the recorder's */
static TimestampTz used_up_at = 0;	/* and of one that found no room in the area */
static bool ending = false;		/* the process gives up its dynamic memory */
static TimestampTz resting_since = 0;	/* with a ring, and not traced; 0: not so */

/* The process ends: leave the ring to readers.  False: nobody may have it. */
static bool
leave(dsm_segment *segment)
{
	Shared	   *shared = shmem_get();
	RecordHeader end;
	Ring	   *ring = trace.ring;

	ending = true;
	record_write(RECORD_END, 0, 0, timeline_now(), &end, sizeof(end));
	trace.on = false;
	trace.ring = NULL;
	return shared != NULL && ended_keep(shared, &trace.slot->trace, ring, segment);
}

/*
 * The segment is about to be detached, as the process ends: after that there is
 * no memory to write to.
 */
static void
ring_ends(dsm_segment *segment, Datum arg)
{
	/* else it failed before it began, or has been given up */
	if (trace.ring == NULL)
		return;
	(void) leave(segment);
	(void) trigger_session_ended(dsm_segment_handle(segment));
}

/* The process ends, and leaves its ring, if that is in the area. */
void
ring_leave(void)
{
	TimestampTz used;

	if (recorder_block.handle == 0 || trace.ring == NULL || !recorder_claim())
		return;
	record_flush();
	used = ring_last_written();
	/* one that is kept is not let rest, and so not taken */
	if (leave(NULL) && !trigger_session_ended(recorder_block.handle))
		ring_block_rest(&recorder_block, used);
	memset(&recorder_block, 0, sizeof(recorder_block));
}

/* It is one of a client, which has told its role and its database. */
static void
describe_session(Ring *ring)
{
	SessionRecord *session = &ring->session;

	session->header.size = sizeof(*session);
	session->header.kind = RECORD_SESSION;
	session->version = TRACE_FORMAT_VERSION;
	session->pid = MyProcPid;
	session->started = ring->started;
	session->system_identifier = (int64) GetSystemIdentifier();
	session->session_started = MyStartTimestamp;
	session->role = MyProc->roleId;
	session->database = MyDatabaseId;
	session->server_version_num = BUILT_FOR_VERSION;
	session->clock = timeline_clock;
	session->ring_bytes = ring->size;
	strlcpy(session->application, secrets_application(), sizeof(session->application));
	strlcpy(session->role_name, MyProcPort->user_name, sizeof(session->role_name));
	strlcpy(session->database_name, MyProcPort->database_name, sizeof(session->database_name));
	strlcpy(session->encoding, GetDatabaseEncodingName(), sizeof(session->encoding));
}

/* A ring begins, in memory that holds zeros; from here on others find it by its handle. */
static void
begin_ring(Shared *shared, Ring *ring, RingHandle handle, uint64 size)
{
	TraceEntry *mine = &trace.slot->trace;
	RingHandle	gone;

	ring->size = size;
	ring->started = GetCurrentTimestamp();
	describe_session(ring);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	/* of one that ended without a word, or has been taken */
	gone = mine->handle;
	ended_count(&shared->ended_totals, &mine->counters);
	ring_memory_give_back(mine->memory);
	memset(mine, 0, sizeof(*mine));
	mine->pid = MyProcPid;
	mine->role = MyProc->roleId;
	mine->database = MyDatabaseId;
	mine->handle = handle;
	mine->started = ring->started;
	mine->ring_bytes = size;
	mine->memory = ring_memory_taken();
	strlcpy(mine->application, ring->session.application, sizeof(mine->application));
	LWLockRelease(&shared->lock);
	if (gone != 0)
		ring_place_free(gone);
	ring_reset();
	timeline_begin(shared);
	trace.last_end = 0;
	resting_since = 0;
	trace.ring = ring;
}

static void
make_ring(void *argument)
{
	Shared	   *shared = argument;
	uint64		size = ring_memory_take(offsetof(Ring, data),
										pg_nextpower2_64((uint64) ring_kb * 1024),
										SMALLEST_RING_KB * 1024, ended_make_way);
	dsm_segment *segment;

	text_begin();
	secrets_watch_roles();
	segment = zeroed_segment(offsetof(Ring, data) + size);
	on_dsm_detach(segment, ring_ends, (Datum) 0);
	dsm_pin_segment(segment);
	dsm_pin_mapping(segment);
	begin_ring(shared, dsm_segment_address(segment), dsm_segment_handle(segment), size);
}

/* In the area, as small as can be.  That there is no room just now is no error. */
static void
make_recorder_ring(void *argument)
{
	Shared	   *shared = argument;

	if (ring_area() == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the server has reserved no memory for the recorder")));
	text_begin();
	secrets_watch_roles();
	if (ring_area()->take(RING_PIECE, true, &recorder_block))
		begin_ring(shared, recorder_block.memory, recorder_block.handle, recorder_block.room);
	recorder_may_grow();
}

/* Of a ring that is asked for, and of one of the recorder; again and again it would only be noise. */
static void
report_refusal(void *argument, const char *cause)
{
	Shared	   *shared = argument;

	pg_atomic_fetch_add_u64(&shared->refused, 1);
	if (refused_at == 0)
		ereport(WARNING,
				(errmsg("sql_trace cannot trace this session: %s", cause),
				 errhint("A trace takes up to \"sql_trace.ring_size\" of dynamic shared memory, "
						 "in /dev/shm.")));
}

static void
report_no_recorder(void *argument, const char *cause)
{
	Shared	   *shared = argument;

	pg_atomic_fetch_add_u64(&shared->refused, 1);
	if (recorder_refused_at == 0)
		ereport(WARNING,
				(errmsg("sql_trace cannot record this session: %s", cause),
				 errhint("Add sql_trace to \"shared_preload_libraries\", set "
						 "\"sql_trace.recorder_memory\", and restart the server.")));
}

/* Make a ring of the recorder; returns whether there is one. */
static bool
open_recorder_ring(Shared *shared)
{
	TimestampTz now = GetCurrentStatementStartTimestamp();

	if (lately(used_up_at, now, RING_REST_US) ||
		lately(recorder_refused_at, now, RETRY_INTERVAL_US))
		return false;
	if (!guarded_run("sql_trace", make_recorder_ring, report_no_recorder, shared))
	{
		recorder_refused_at = now;
		/* if it failed half-way */
		if (recorder_block.handle != 0)
			ring_place_free(recorder_block.handle);
		recorder_block.handle = 0;
	}
	else if (trace.ring == NULL)
		used_up_at = now;
	return trace.ring != NULL;
}

/*
 * Make the ring, if there is none; returns whether there is one.  A lack of
 * memory can pass: after a while it is tried again.
 */
bool
ring_open(bool recorder)
{
	Shared	   *shared = shmem_get();

	if (trace.ring != NULL)
		return true;
	if (ending || shared == NULL || trace.slot == NULL)
		return false;
	if (recorder)
		return open_recorder_ring(shared);
	if (refused_at != 0 && lately(refused_at, GetCurrentTimestamp(), RETRY_INTERVAL_US))
		return false;
	if (!guarded_run("sql_trace", make_ring, report_refusal, shared))
		refused_at = GetCurrentTimestamp();
	else if (trace.ring != NULL)
		refused_at = 0;			/* the next refusal is news again */
	ring_memory_give_back(ring_memory_taken()); /* if it failed half-way */
	return trace.ring != NULL;
}

static void
give_up_ring(void *argument)
{
	Shared	   *shared = argument;
	TraceEntry *mine = &trace.slot->trace;
	dsm_segment *segment = recorder_block.handle != 0 ? NULL :
		dsm_find_mapping((dsm_handle) mine->handle);
	Ring	   *ring = trace.ring;

	trace.ring = NULL;
	recorder_block.handle = 0;
	ended_let_go(shared, mine, ring);
	if (segment)
		dsm_detach(segment);
}

/*
 * A request has been answered, and our ring is in the area: let it grow, or rest.
 * What is asked for by somebody is not taken away, nor what an open transaction did.
 */
static void
rest_in_area(char status)
{
	text_request_began = ring_head();
	if (unlikely(text_request_began >= recorder_grow_at))
		(void) guarded_run("sql_trace cannot give a trace more memory", recorder_grow, NULL, NULL);
	if (status == 'I' && (trace.level == 0 || trace.reason == REASON_RECORDER))
		recorder_let_rest();
}

/*
 * A request has been answered, traced or not.  A session that is not traced any
 * more keeps its ring for a while, for readers, and as it may be traced again
 * soon; then it gives it up outside any transaction, where nothing runs of which
 * the ring tells.  True: it has done so.
 */
bool
ring_rest(bool traced, char status)
{
	TimestampTz now;

	if (likely(trace.ring == NULL))
		return false;
	if (traced || trace.level > 0)
	{
		resting_since = 0;
		if (unlikely(recorder_block.handle != 0))
			rest_in_area(status);
		return false;
	}
	now = GetCurrentStatementStartTimestamp();
	if (resting_since == 0)
		resting_since = now;
	if (status == 'I' && now - resting_since >= KEEP_ENDED_S * USECS_PER_SEC)
		(void) guarded_run("sql_trace cannot free the memory of a trace", give_up_ring, NULL,
						   shmem_get());
	if (recorder_block.handle != 0)
		rest_in_area(status);
	return trace.ring == NULL;
}

/* Called when the library is loaded. */
void
ring_init(void)
{
	DefineCustomIntVariable("sql_trace.ring_size",
							"Shared memory that the trace of a session takes.",
							"Has an effect on sessions that begin a trace; rounded up to a power of two.",
							&ring_kb, 4096, SMALLEST_RING_KB, 1024 * 1024,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);
	ring_memory_define("sql_trace.ring_memory",
					   "Shared memory that all traces may take, of calls and of waits together.");
}
