/*-------------------------------------------------------------------------
 * ring.c
 *		The ring of a session: making it, and writing records into it.
 *
 * The segment is made where an error can be caught, memory be had, and nothing
 * is held: between two requests of a client, or as a request begins.  It is
 * pinned, so that others can read it after the session has ended (ended.c).  A
 * session that has not been traced for a while gives it up.
 *
 * Nobody is waited for: what no reader has fetched is overwritten and counted.
 * Records may wrap around the end of the ring, their headers' sizes never do,
 * as all begin at multiples of 8.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

/* we need no more of a Port than its names; the headers of GSSAPI may be missing */
#undef ENABLE_GSS

#include "access/xact.h"
#include "access/xlog.h"
#include "libpq/libpq-be.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/backend_status.h"

#include "../common/guarded.h"
#include "../common/zeroed.h"

#define RETRY_INTERVAL_MS (60 * 1000)

/* Some records, of some cache lines each */
#define FETCHED_AHEAD 512

static TimestampTz refused_at = 0;	/* do not try again at every request; 0: not refused */
static bool ending = false;		/* the process gives up its dynamic memory */
static uint64 taken = 0;		/* memory counted for a ring that is being made */
static TimestampTz resting_since = 0;	/* with a ring, and not traced; 0: not so */

/* The record being written */
static uint64 cursor;			/* where its next byte goes */
static uint64 record_end;
static int64 record_time;

static uint64 given_up;			/* number of the last record that made room */

void
counters_add(Counters *sum, const Counters *counters)
{
	sum->records += counters->records;
	sum->bytes += counters->bytes;
	sum->lost_records += counters->lost_records;
	sum->lost_bytes += counters->lost_bytes;
	sum->wait_requests += counters->wait_requests;
	sum->row_sources += counters->row_sources;
}

/*
 * The segment is about to be detached, as the process ends: after that there is
 * no memory to write to.
 */
static void
ring_ends(dsm_segment *segment, Datum arg)
{
	Shared	   *shared = shmem_get();
	RecordHeader end;
	Ring	   *ring = trace.ring;

	if (ring == NULL)
		return;					/* it failed before it began */
	ending = true;
	ring_unlimited();			/* the end is the last record */
	(void) ring_write(RECORD_END, 0, 0, timeline_now(), &end, sizeof(end));
	trace.on = false;
	trace.ring = NULL;
	if (shared != NULL)
		ended_keep(shared, &trace.slot->trace, ring, segment);
}

static const char *
role_name(void)
{
	return MyProcPort && MyProcPort->user_name ? MyProcPort->user_name : "";
}

static const char *
database_name(void)
{
	return MyProcPort && MyProcPort->database_name ? MyProcPort->database_name : "";
}

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
	session->server_version_num = PG_VERSION_NUM;
	session->clock = trace_clock;
	session->ring_bytes = ring->size;
	strlcpy(session->application, level_application(), sizeof(session->application));
	strlcpy(session->role_name, role_name(), sizeof(session->role_name));
	strlcpy(session->database_name, database_name(), sizeof(session->database_name));
	strlcpy(session->encoding, GetDatabaseEncodingName(), sizeof(session->encoding));
}

/* Count the ring's memory; where there is none, traces of sessions that ended make way. */
static uint64
take_memory(Shared *shared)
{
	uint64		wanted = pg_nextpower2_64((uint64) trace_ring_kb * 1024);
	uint64		size;

	while ((size = ring_memory_take(trace_memory_kb, offsetof(Ring, data), wanted,
									SMALLEST_RING_KB * 1024)) == 0)
		if (!ended_make_way(shared))
			ring_memory_refuse(trace_memory_kb, "sql_trace.ring_memory");
	taken = ring_memory_of(offsetof(Ring, data) + size);
	return size;
}

static void
make_ring(void *argument)
{
	Shared	   *shared = argument;
	uint64		size = take_memory(shared);
	TraceEntry *mine = &trace.slot->trace;
	dsm_segment *segment;
	Ring	   *ring;
	uint32		unpin;

	text_begin();
	secrets_watch_roles();
	segment = zeroed_segment(offsetof(Ring, data) + size);
	on_dsm_detach(segment, ring_ends, (Datum) 0);
	dsm_pin_segment(segment);
	dsm_pin_mapping(segment);

	ring = dsm_segment_address(segment);
	ring->size = size;
	ring->started = GetCurrentTimestamp();
	pg_atomic_init_u64(&ring->head, 0);
	pg_atomic_init_u64(&ring->tail, 0);
	pg_atomic_init_u64(&ring->drained, 0);
	pg_atomic_init_u32(&ring->held, 0);
	describe_session(ring);

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	unpin = mine->handle;		/* of one that ended without a word */
	ring_memory_give_back(mine->memory);
	memset(mine, 0, sizeof(*mine));
	mine->pid = MyProcPid;
	mine->role = MyProc->roleId;
	mine->database = MyDatabaseId;
	mine->handle = dsm_segment_handle(segment);
	mine->started = ring->started;
	mine->ring_bytes = size;
	mine->memory = taken;
	taken = 0;
	strlcpy(mine->application, ring->session.application, sizeof(mine->application));
	LWLockRelease(&shared->lock);
	if (unpin != 0)
		dsm_unpin_segment(unpin);
	trace.number = trace.calls = given_up = 0;
	ring_unlimited();
	timeline_begin(shared);
	trace.ring = ring;
}

static void
tell_refusal(void *argument, const char *cause)
{
	Shared	   *shared = argument;

	pg_atomic_fetch_add_u64(&shared->refused, 1);
	/* again and again it would only be noise */
	if (refused_at == 0)
		ereport(WARNING,
				(errmsg("sql_trace cannot trace this session: %s", cause),
				 errhint("A trace takes up to \"sql_trace.ring_size\" of dynamic shared memory, "
						 "in /dev/shm.")));
}

/*
 * Make the ring, if there is none; returns whether there is one.  A lack of
 * memory can pass: after a while it is tried again.
 */
bool
ring_open(void)
{
	Shared	   *shared = shmem_get();

	if (trace.ring != NULL)
		return true;
	if (ending || shared == NULL || trace.slot == NULL)
		return false;
	if (refused_at != 0 &&
		!TimestampDifferenceExceeds(refused_at, GetCurrentTimestamp(), RETRY_INTERVAL_MS))
		return false;
	if (!guarded_run("sql_trace", make_ring, tell_refusal, shared))
		refused_at = GetCurrentTimestamp();
	ring_memory_give_back(taken);	/* if it failed half-way */
	taken = 0;
	return trace.ring != NULL;
}

static void
give_up_ring(void *argument)
{
	Shared	   *shared = argument;
	TraceEntry *mine = &trace.slot->trace;
	dsm_segment *segment = dsm_find_mapping(mine->handle);
	Ring	   *ring = trace.ring;

	trace.ring = NULL;
	resting_since = 0;
	level_ring_given_up();
	ended_let_go(shared, mine, ring);
	if (segment)
		dsm_detach(segment);
}

static void
tell_not_given_up(void *argument, const char *cause)
{
	ereport(LOG, (errmsg("sql_trace cannot free the memory of a trace: %s", cause)));
}

/*
 * A request has been answered, traced or not.  A session that is not traced any
 * more keeps its ring for a while, for readers, and as it may be traced again
 * soon; then it gives it up outside any transaction, where nothing runs of which
 * the ring tells.
 */
void
ring_rest(bool traced, char status)
{
	TimestampTz now;

	if (likely(trace.ring == NULL))
		return;
	if (traced || trace.level > 0)
	{
		resting_since = 0;
		return;
	}
	now = GetCurrentStatementStartTimestamp();
	if (resting_since == 0)
		resting_since = now;
	if (status == 'I' && now - resting_since >= trace_keep_s * USECS_PER_SEC)
		(void) guarded_run("sql_trace", give_up_ring, tell_not_given_up, shmem_get());
}

/* No record stops the trace. */
void
ring_unlimited(void)
{
	trace.stop_position = PG_UINT64_MAX;
	trace.stop_time = PG_INT64_MAX;
}

uint64
ring_head(void)
{
	return pg_atomic_read_u64(&trace.ring->head);
}

/* Is the record that begins here still whole? */
bool
ring_holds(uint64 position)
{
	return position >= pg_atomic_read_u64(&trace.ring->tail);
}

/*
 * No record begins where the oldest should: something wrote over the ring.  Give
 * up all of it, and count what no reader is known to have.
 */
static uint64
give_up_all(uint64 head, uint64 tail, uint64 drained)
{
	Counters   *counters = &trace.slot->trace.counters;

	if (head > drained)
	{
		counters->lost_records += trace.number - given_up;
		counters->lost_bytes += head - Max(tail, drained);
	}
	given_up = trace.number;
	return head;
}

/* Give up the oldest records until "size" bytes more have room. */
static void
make_room(uint64 size)
{
	Ring	   *ring = trace.ring;
	TraceEntry *entry = &trace.slot->trace;
	uint64		head = pg_atomic_read_u64(&ring->head);
	uint64		tail = pg_atomic_read_u64(&ring->tail);
	uint64		drained;

	if (likely(head + size - tail <= ring->size))
		return;
	drained = pg_atomic_read_u64(&ring->drained);
	while (head + size - tail > ring->size)
	{
		uint32		oldest = *(uint32 *) &ring->data[tail & (ring->size - 1)];

		if (unlikely(!record_size_fits(oldest, head - tail)))
		{
			tail = give_up_all(head, tail, drained);
			break;
		}
		if (tail >= drained)
		{
			entry->counters.lost_records++;
			entry->counters.lost_bytes += oldest;
		}
		tail += oldest;
		given_up++;
	}
	pg_atomic_write_u64(&ring->tail, tail);
	/* who reads bytes that we write now sees that they are gone */
	pg_memory_barrier();
}

/*
 * Where the next records go is soon looked at, for what is overwritten there,
 * and written: fetch it into the cache, as the ring is larger than that.
 */
static void
fetch_ahead(uint64 size)
{
	const Ring *ring = trace.ring;
	uint64		from = record_end + FETCHED_AHEAD;

	for (uint64 at = from; at < from + Min(size, FETCHED_AHEAD); at += PG_CACHE_LINE_SIZE / 2)
		__builtin_prefetch(&ring->data[at & (ring->size - 1)], 1);
}

/* Add to the record. */
void
ring_put(const void *data, Size size)
{
	Ring	   *ring = trace.ring;
	uint64		at = cursor & (ring->size - 1);
	uint64		first = Min(size, ring->size - at);

	Assert(cursor + size <= record_end);
	memcpy(&ring->data[at], data, first);
	if (unlikely(first < size))
		memcpy(ring->data, (const char *) data + first, size - first);
	cursor += size;
}

/* Fill up to a multiple of 8. */
void
ring_pad(void)
{
	static const char zeros[8] = {0};

	if (cursor % 8 != 0)
		ring_put(zeros, 8 - cursor % 8);
}

/*
 * Begin a record of "size" bytes, header included; they are padded to a
 * multiple of 8.  The caller puts header and fields, and ends it.  False: it is
 * too large for the ring.
 */
bool
ring_begin(RecordKind kind, int depth, uint64 call, int64 time, Size size, RecordHeader *header)
{
	uint64		whole = TYPEALIGN(8, size);

	series_close();
	if (trace.ring == NULL || whole > trace.ring->size / 2)
		return false;
	make_room(whole);
	cursor = ring_head();
	record_end = cursor + whole;
	fetch_ahead(whole);
	record_time = time;
	header->size = (uint32) whole;
	header->kind = kind;
	header->depth = (uint16) Min(depth, PG_UINT16_MAX);
	header->number = ++trace.number;
	header->time = time;
	header->call = call;
	return true;
}

/* The record is whole: let others see it. */
void
ring_end(void)
{
	TraceEntry *entry = &trace.slot->trace;

	ring_pad();
	Assert(cursor == record_end);
	pg_write_barrier();
	pg_atomic_write_u64(&trace.ring->head, record_end);
	entry->counters.records = trace.number;
	entry->counters.bytes = record_end;
	if (unlikely(record_end > trace.stop_position))
		level_stop(REASON_BYTES);
	else if (unlikely(record_time > trace.stop_time))
		level_stop(REASON_DURATION);
}

/* Write a record of fixed size, whose header is filled in. */
bool
ring_write(RecordKind kind, int depth, uint64 call, int64 time, void *record, Size size)
{
	if (!ring_begin(kind, depth, call, time, size, record))
		return false;
	ring_put(record, size);
	ring_end();
	return true;
}
