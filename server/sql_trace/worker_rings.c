/*-------------------------------------------------------------------------
 * worker_rings.c
 *		What the background worker writes: the rings of all traced sessions.
 *
 * A ring is mapped from when it is first seen until it has been read to its
 * end, so what a session wrote last is not lost with it.  It is read when a
 * quarter of it is new, or a second has gone by: blocks are large where there
 * is much, and little is lost where the machine dies.
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "pgtime.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "../common/wait_rings.h"

#define CHUNK ((Size) 4 * 1024 * 1024)
#define WAITS_AT_ONCE 8192
#define READ_INTERVAL_MS 1000
#define UNIX_NS(at) (((at) + INT64CONST(946684800000000)) * 1000)

static int64 column[5][WAITS_AT_ONCE];
static WaitRecord records[WAITS_AT_ONCE];

static const WaitRingsOffer *
waits_offer(void)
{
	return *find_rendezvous_variable(WAIT_RINGS_OFFER);
}

void
rings_begin(Recording *recording)
{
	recording->buffer = MemoryContextAlloc(TopMemoryContext, CHUNK);
}

static void
unmap(Drained *ring)
{
	if (ring->segment)
		dsm_detach(ring->segment);
	ring->segment = NULL;
}

void
rings_end(Recording *recording)
{
	for (int i = 0; i < recording->nrings; i++)
		unmap(&recording->rings[i]);
	if (recording->rings)
		pfree(recording->rings);
	pfree(recording->buffer);
}

static Drained *
find(Recording *recording, uint32 handle, TimestampTz started)
{
	for (int i = 0; i < recording->nrings; i++)
		if (recording->rings[i].handle == handle && recording->rings[i].started == started)
			return &recording->rings[i];
	return NULL;
}

/* A ring that stands in shared memory, known or new; NULL: it is of no interest. */
static Drained *
meet(Recording *recording, uint32 handle, TimestampTz started, TimestampTz ended)
{
	Drained    *ring = find(recording, handle, started);

	if (ring == NULL)
	{
		if (ended != 0 && ended < recording->began)
			return NULL;
		if (recording->nrings == recording->room)
		{
			Size		size = sizeof(Drained) * (recording->room + 64);

			recording->rings = recording->rings ? repalloc(recording->rings, size) :
				MemoryContextAlloc(TopMemoryContext, size);
			recording->room += 64;
		}
		ring = &recording->rings[recording->nrings++];
		memset(ring, 0, sizeof(*ring));
		ring->handle = handle;
		ring->started = started;
		ring->number = ++recording->rings_ever;
		ring->segment = dsm_attach(handle);
	}
	ring->seen = true;
	ring->ended = ended != 0;
	return ring;
}

/* Names are in the encoding of their database; JSON is not. */
static void
put_name(StringInfo to, const char *key, const char *name)
{
	char	   *plain = pstrdup(name);

	if (!pg_verify_mbstr(PG_UTF8, plain, (int) strlen(plain), true))
		for (char *c = plain; *c; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
	appendStringInfo(to, ", \"%s\": ", key);
	escape_json(to, plain);
	pfree(plain);
}

static void
put_event(Recording *recording, int number)
{
	TraceFile  *file = &recording->file;
	uint32		code = recording->events[number];
	const char *type = pgstat_get_wait_event_type(code);
	const char *name = pgstat_get_wait_event(code);

	block_begin(file, TABLE_EVENTS, 1);
	block_constant(file, "event", number);
	block_constant(file, "code", code);
	block_bytes(file, "class", type ? type : "???", type ? strlen(type) : 3);
	block_bytes(file, "name", name ? name : "???", name ? strlen(name) : 3);
	(void) block_end(file);
}

/* What each file has to tell before its rows */
static bool
begin_file(Recording *recording)
{
	TraceFile  *file = &recording->file;
	StringInfoData json;
	pg_time_t	began = timestamptz_to_time_t(recording->began);
	char		when[32];

	if (!file_next(file))
		return false;
	pg_strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S+00:00", pg_gmtime(&began));
	initStringInfo(&json);
	appendStringInfo(&json, "{\"pgtare\": \"sql_trace %s\", \"began\": \"%s\", \"server\": \"%d\", "
					 "\"command\": [\"sql_trace.worker_directory\"], "
					 "\"costs\": {\"wait_ns\": 40, \"call_ns\": 1000}}",
					 TRACE_VERSION, when, PG_VERSION_NUM);
	block_begin(file, TABLE_RECORDING, 1);
	block_bytes(file, "json", json.data, json.len);
	pfree(json.data);
	for (int i = 0; i < recording->nrings; i++)
		recording->rings[i].told = false;
	recording->events_told = 0;
	return block_end(file);
}

/* Tell of a ring, and of all events so far, in this file. */
static void
introduce(Recording *recording, Drained *ring)
{
	TraceFile  *file = &recording->file;
	StringInfoData json;

	while (recording->events_told < recording->nevents)
		put_event(recording, recording->events_told++);
	if (ring->told)
		return;
	ring->told = true;
	initStringInfo(&json);
	appendStringInfo(&json, "{\"kind\": \"%s\"", ring->waits ? "waits" : "sql");
	if (ring->leader_pid != 0)
		appendStringInfo(&json, ", \"leader_pid\": %d", ring->leader_pid);
	put_name(&json, "user", ring->user);
	put_name(&json, "database", ring->database);
	put_name(&json, "application", ring->application);
	appendStringInfoChar(&json, '}');
	block_begin(file, TABLE_RINGS, 1);
	block_constant(file, "ring", ring->number);
	block_constant(file, "pid", ring->pid);
	block_constant(file, "started_ns", UNIX_NS(ring->started));
	block_bytes(file, "json", json.data, json.len);
	pfree(json.data);
	(void) block_end(file);
}

static void
put_loss(Recording *recording, const Drained *ring, uint64 lost)
{
	TraceFile  *file = &recording->file;

	if (lost == 0)
		return;
	block_begin(file, TABLE_LOSSES, 1);
	block_constant(file, "ring", ring->number);
	block_constant(file, "when_ns", UNIX_NS(GetCurrentTimestamp()));
	block_constant(file, "lost", (int64) lost);
	(void) block_end(file);
}

static void
put_stream(Recording *recording, const Drained *ring, uint64 position, const void *data, Size size)
{
	TraceFile  *file = &recording->file;

	block_begin(file, TABLE_STREAM, 1);
	block_constant(file, "ring", ring->number);
	block_constant(file, "position", (int64) position);
	block_bytes(file, "data", data, (uint32) size);
	(void) block_end(file);
}

static void
drain_calls(Recording *recording, Drained *ring)
{
	Ring	   *shared = dsm_segment_address(ring->segment);
	bool		first = ring->position == 0;

	while (recording->file.stop == STOP_NONE && ring->position < pg_atomic_read_u64(&shared->head))
	{
		RingCopy	copy = ring_copy(shared, ring->position, recording->buffer, CHUNK);

		introduce(recording, ring);
		if (first)
			put_stream(recording, ring, 0, &shared->session, sizeof(SessionRecord));
		else
			put_loss(recording, ring, copy.position - ring->position);
		first = false;
		if (copy.size == 0)
		{
			/* a record larger than all that we read at once: pass it over */
			put_loss(recording, ring, copy.next - copy.position);
			ring->position = copy.next;
			continue;
		}
		put_stream(recording, ring, copy.position, copy.data, copy.size);
		ring->position = copy.position + copy.size;
		ring_note_drained(shared, ring->position);
	}
}

static int64
number_of(Recording *recording, uint32 code)
{
	for (int i = 0; i < recording->nevents; i++)
		if (recording->events[i] == code)
			return i;
	if (recording->nevents == MOST_EVENTS)
		return MOST_EVENTS;		/* readers say that they do not know it */
	recording->events[recording->nevents] = code;
	return recording->nevents++;
}

static void
put_waits(Recording *recording, const Drained *ring, uint32 n)
{
	TraceFile  *file = &recording->file;
	int64		end = 0;
	uint32		rows = 0;

	for (uint32 i = 0; i < n; i++)
	{
		const WaitRecord *record = &records[i];
		int64		start = record->start_ns + UNIX_NS(ring->started);

		if (!record->wait)
			continue;
		column[0][rows] = number_of(recording, record->event);
		column[1][rows] = start - end;
		column[2][rows] = record->value;
		column[3][rows] = record->calls;
		end = start + record->value;
		rows++;
	}
	if (rows == 0)
		return;
	introduce(recording, unconstify(Drained *, ring));
	block_begin(file, TABLE_WAITS, rows);
	block_constant(file, "ring", ring->number);
	block_integers(file, "event", column[0]);
	block_integers(file, "gap_ns", column[1]);
	block_integers(file, "length_ns", column[2]);
	block_integers(file, "calls", column[3]);
	(void) block_end(file);
}

static void
put_marks(Recording *recording, const Drained *ring, uint32 n)
{
	TraceFile  *file = &recording->file;
	uint32		rows = 0;

	for (uint32 i = 0; i < n; i++)
	{
		const WaitRecord *record = &records[i];

		if (record->wait)
			continue;
		column[0][rows] = record->kind;
		column[1][rows] = record->depth;
		column[2][rows] = record->start_ns + UNIX_NS(ring->started);
		column[3][rows] = record->value;
		rows++;
	}
	if (rows == 0)
		return;
	block_begin(file, TABLE_MARKS, rows);
	block_constant(file, "ring", ring->number);
	block_integers(file, "kind", column[0]);
	block_integers(file, "depth", column[1]);
	block_integers(file, "when_ns", column[2]);
	block_integers(file, "value", column[3]);
	(void) block_end(file);
}

static void
drain_waits(Recording *recording, Drained *ring)
{
	const void *shared = dsm_segment_address(ring->segment);
	bool		first = ring->position == 0;
	uint64		lost;
	uint32		n;

	do
	{
		uint64		next;

		n = waits_offer()->read(shared, ring->position, records, WAITS_AT_ONCE, &next, &lost);
		introduce(recording, ring);
		/* what it forgot before we came is not our loss */
		if (!first)
			put_loss(recording, ring, lost);
		put_waits(recording, ring, n);
		put_marks(recording, ring, n);
		first = false;
		ring->position = next;
	} while (n == WAITS_AT_ONCE && recording->file.stop == STOP_NONE);
}

/* How long its process has run and has waited for a processor, by the kernel */
static void
put_processor(Recording *recording, const Drained *ring)
{
	TraceFile  *file = &recording->file;
	char		path[64];
	unsigned long long run,
				queue;
	FILE	   *stat;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", ring->pid);
	stat = fopen(path, "r");
	if (stat == NULL)
		return;
	if (fscanf(stat, "%llu %llu", &run, &queue) == 2)
	{
		block_begin(file, TABLE_PROCESSOR, 1);
		block_constant(file, "ring", ring->number);
		block_constant(file, "when_ns", UNIX_NS(GetCurrentTimestamp()));
		block_constant(file, "cpu_ns", (int64) run);
		block_constant(file, "queue_ns", (int64) queue);
		(void) block_end(file);
	}
	fclose(stat);
}

static bool
is_due(const Drained *ring, TimestampTz now)
{
	Ring	   *shared = dsm_segment_address(ring->segment);

	if (ring->ended || !ring->seen ||
		TimestampDifferenceExceeds(ring->read_at, now, READ_INTERVAL_MS))
		return true;
	if (ring->waits)
		return waits_offer()->urgent(shared, ring->position);
	return pg_atomic_read_u64(&shared->head) - ring->position >= shared->size / 4;
}

static void
drain(Recording *recording, Drained *ring, TimestampTz now)
{
	bool		ends = ring->ended || !ring->seen;

	if (TimestampDifferenceExceeds(ring->read_at, now, READ_INTERVAL_MS) && ring->told && !ends)
		put_processor(recording, ring);
	if (ring->waits)
		drain_waits(recording, ring);
	else
		drain_calls(recording, ring);
	ring->read_at = now;
	/* all of it has been read, as nobody writes any more */
	if (ends && recording->file.stop == STOP_NONE)
		unmap(ring);
}

static void
look_at_calls(Recording *recording)
{
	Shared	   *shared = shmem_get();

	for (uint32 i = 0; i < shared->nslots + MAX_ENDED; i++)
	{
		TraceEntry *at = i < shared->nslots ? &shmem_slot(shared, i)->trace :
			&shared->ended[i - shared->nslots];
		TraceEntry	entry;
		Drained    *ring;

		if (at->handle == 0)
			continue;			/* most are free */
		LWLockAcquire(&shared->lock, LW_SHARED);
		entry = *at;
		LWLockRelease(&shared->lock);
		ring = entry.handle == 0 ? NULL :
			meet(recording, entry.handle, entry.started, entry.ended);
		if (ring == NULL || ring->pid != 0)
			continue;
		ring->pid = entry.pid;
		strlcpy(ring->application, entry.application, sizeof(ring->application));
		if (ring->segment)
		{
			const Ring *there = dsm_segment_address(ring->segment);

			strlcpy(ring->user, there->session.role_name, sizeof(ring->user));
			strlcpy(ring->database, there->session.database_name, sizeof(ring->database));
		}
	}
}

/* The traced session that a process is, or works for */
static const Drained *
session_of(const Recording *recording, const WaitRing *waits)
{
	for (int i = recording->nrings - 1; i >= 0; i--)
	{
		const Drained *ring = &recording->rings[i];

		if (!ring->waits && ring->seen &&
			(ring->pid == waits->pid || ring->pid == waits->leader_pid))
			return ring;
	}
	return NULL;
}

static void
look_at_waits(Recording *recording)
{
	const WaitRingsOffer *offer = waits_offer();
	WaitRing	waits;

	for (uint32 place = 0; offer && offer->look(place, &waits); place++)
	{
		const Drained *session = waits.handle != 0 ? session_of(recording, &waits) : NULL;
		int			of = session ? (int) (session - recording->rings) : -1;
		Drained    *ring = session ?
			meet(recording, waits.handle, waits.started, waits.ended) : NULL;

		if (ring == NULL || ring->pid != 0)
			continue;
		session = &recording->rings[of];	/* they may have moved */
		ring->waits = true;
		ring->pid = waits.pid;
		ring->leader_pid = waits.leader_pid;
		memcpy(ring->user, session->user, sizeof(ring->user));
		memcpy(ring->database, session->database, sizeof(ring->database));
		memcpy(ring->application, session->application, sizeof(ring->application));
	}
}

/* Those that stand nowhere any more, and have been read */
static void
forget(Recording *recording)
{
	int			kept = 0;

	for (int i = 0; i < recording->nrings; i++)
		if (recording->rings[i].seen || recording->rings[i].segment)
			recording->rings[kept++] = recording->rings[i];
	recording->nrings = kept;
}

/*
 * Write what is new; "all": however little.  False: nothing more can be written,
 * for the reason that the file tells.
 */
bool
rings_look(Recording *recording, bool all)
{
	TraceFile  *file = &recording->file;
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < recording->nrings; i++)
		recording->rings[i].seen = false;
	look_at_calls(recording);
	look_at_waits(recording);
	if (file->fd < 0 || file->size >= recording->file_limit)
		(void) begin_file(recording);
	for (int i = 0; i < recording->nrings && file->stop == STOP_NONE; i++)
	{
		Drained    *ring = &recording->rings[i];

		if (ring->segment && (all || is_due(ring, now)))
			drain(recording, ring, now);
	}
	forget(recording);
	return file->stop == STOP_NONE;
}
