/*-------------------------------------------------------------------------
 * worker_tables.c
 *		What the background worker reads of rings, as tables of a trace file.
 *-------------------------------------------------------------------------
 */
#include "worker.h"
#include "../calls/fused.h"
#include "../core/dictionary.h"

#include "mb/pg_wchar.h"
#include "pgtime.h"
#include "utils/json.h"

#include "../../common/event_name.h"
#include "../../common/pg_compat.h"
#include "../../common/version.h"

#define WAITS_AT_ONCE 8192

/* of a ring that is still written; then others have their turn */
#define MOST_READS 64
#define UNIX_NS(at) (((at) + INT64CONST(946684800000000)) * 1000)

static int64 column[4][WAITS_AT_ONCE];
static WaitRecord records[WAITS_AT_ONCE];

const WaitRingsOffer *
tables_waits_offer(void)
{
	return *find_rendezvous_variable(WAIT_RINGS_OFFER);
}

/* Names are in the encoding of their database; JSON is not. */
void
tables_json_text(StringInfo to, const char *text)
{
	char	   *plain = pstrdup(text);

	if (!pg_verify_mbstr(PG_UTF8, plain, (int) strlen(plain), true))
		for (char *c = plain; *c; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
	escape_json(to, plain);
	pfree(plain);
}

void
tables_json_name(StringInfo to, const char *key, const char *name)
{
	appendStringInfo(to, ", \"%s\": ", key);
	tables_json_text(to, name);
}

static void
put_event(Recording *recording, int number)
{
	TraceFile  *file = &recording->file;
	uint32		code = recording->events[number];
	const char *type = pgstat_get_wait_event_type(code);
	const char *name = event_name(code);

	block_begin(file, TABLE_EVENTS, 1);
	block_constant(file, "event", number);
	block_constant(file, "code", code);
	block_bytes(file, "class", type ? type : "???", type ? strlen(type) : 3);
	block_bytes(file, "name", name, strlen(name));
	(void) block_end(file);
}

/* The next file, with what each has to tell before its rows */
bool
tables_write_head(Recording *recording)
{
	TraceFile  *file = &recording->file;
	StringInfoData json;
	pg_time_t	began = timestamptz_to_time_t(recording->began);
	int			micros = (int) (recording->began - time_t_to_timestamptz(began));
	char		when[32];

	if (!file_next(file))
		return false;
	pg_strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", pg_gmtime(&began));
	initStringInfo(&json);
	appendStringInfo(&json, "{\"pgtare\": \"sql_trace %s\", \"began\": \"%s.%06d+00:00\", \"server\": \"%d\", "
					 "\"command\": [\"%s\"]%s%s}",
					 PGTARE_VERSION, when, micros, BUILT_FOR_VERSION,
					 recording->kept ? "sql_trace kept" : "sql_trace.worker_directory",
					 recording->kept ? ", \"kept\": " : "", recording->kept ? recording->kept : "");
	block_begin(file, TABLE_RECORDING, 1);
	block_bytes(file, "json", json.data, json.len);
	pfree(json.data);
	for (int i = 0; i < recording->nrings; i++)
		recording->rings[i].described = false;
	recording->events_written = 0;
	return block_end(file);
}

/* Tell of a ring, and of all events so far, in this file. */
static void
introduce(Recording *recording, Drained *ring)
{
	TraceFile  *file = &recording->file;
	StringInfoData json;

	while (recording->events_written < recording->nevents)
		put_event(recording, recording->events_written++);
	if (ring->described)
		return;
	initStringInfo(&json);
	appendStringInfo(&json, "{\"kind\": \"%s\"", ring->waits ? "waits" : "sql");
	if (ring->leader_pid != 0)
		appendStringInfo(&json, ", \"leader_pid\": %d", ring->leader_pid);
	tables_json_name(&json, "user", ring->user);
	tables_json_name(&json, "database", ring->database);
	tables_json_name(&json, "application", ring->application);
	appendStringInfoChar(&json, '}');
	block_begin(file, TABLE_RINGS, 1);
	block_constant(file, "ring", ring->number);
	block_constant(file, "pid", ring->pid);
	block_constant(file, "started_ns", UNIX_NS(ring->started));
	block_bytes(file, "json", json.data, json.len);
	pfree(json.data);
	ring->described = block_end(file);
}

/* False: it could not be written. */
static bool
put_loss(Recording *recording, int64 ring, uint64 lost)
{
	TraceFile  *file = &recording->file;

	if (lost == 0)
		return true;
	block_begin(file, TABLE_LOSSES, 1);
	block_constant(file, "ring", ring);
	block_constant(file, "when_ns", UNIX_NS(GetCurrentTimestamp()));
	block_constant(file, "lost", (int64) lost);
	return block_end(file);
}

/* Sessions that ended, and whose traces made way before anybody had read them */
void
tables_write_unread(Recording *recording)
{
	Shared	   *shared = shmem_get();
	Unread		now;

	LWLockAcquire(&shared->lock, LW_SHARED);
	now = shared->unread;
	LWLockRelease(&shared->lock);
	if (put_loss(recording, NO_RING, now.bytes - recording->unread.bytes))
		recording->unread = now;
}

static bool
put_stream(Recording *recording, const Drained *ring, uint64 position, const void *data, Size size)
{
	TraceFile  *file = &recording->file;

	block_begin(file, TABLE_STREAM, 1);
	block_constant(file, "ring", ring->number);
	block_constant(file, "position", (int64) position);
	block_bytes(file, "data", data, (uint32) size);
	return block_end(file);
}

/*
 * What these records, which follow in the file, name and the dictionary has: as it is in
 * no ring, the file has it as records without a number.
 */
static bool
put_names(Recording *recording, Drained *ring, uint64 position, const char *data, Size size)
{
	StringInfoData names;
	bool		written = true;

	if (ring->names)
	{
		written = ring->names_size == 0 ||
			put_stream(recording, ring, position, ring->names, ring->names_size);
		ring->names_size = 0;
		return written;
	}
	initStringInfo(&names);
	names_find(data, size, &names);
	if (names.len > 0)
		written = put_stream(recording, ring, position, names.data, names.len);
	pfree(names.data);
	return written;
}

/* The ring holds what is no record: nothing of it can be read up to its present end. */
static bool
pass_over(Recording *recording, const Drained *ring, uint64 lost)
{
	ereport(LOG, (errmsg("sql_trace passes over a part of the trace of process %d that is damaged",
						 ring->pid)));
	return put_loss(recording, ring->number, lost);
}

/* How far we are in a ring of calls; what it forgot before we came is not our loss. */
static uint64
position_in(const Recording *recording, const Drained *ring, uint64 tail)
{
	return ring->position == 0 && ring->started < recording->began ? tail : ring->position;
}

/*
 * A request that is open for long is in no record yet: write what is kept back of
 * it, if something is new, as the server may not live to see its end.
 */
static void
write_open(Recording *recording, Drained *ring)
{
	const Ring *shared = ring->mapped.ring;
	uint32		generation = shared->open.generation;
	uint32		size = (uint32) fused_look(shared, ring->position, recording->buffer);

	if (size == 0 || ring->position == 0 ||
		(generation == ring->open_generation && size == ring->open_size))
		return;
	introduce(recording, ring);
	/* else the ring has its text */
	if (recording->kept && !put_names(recording, ring, ring->position, recording->buffer, size))
		return;
	if (!put_stream(recording, ring, ring->position, recording->buffer, size))
		return;
	recording->has_rows = true;
	ring->open_generation = generation;
	ring->open_size = size;
}

/*
 * What is new of a ring of calls.  What could not be written stays unread, and
 * is counted as such.
 */
void
tables_write_calls(Recording *recording, Drained *ring)
{
	Ring	   *shared = ring->mapped.ring;
	uint64		end = pg_atomic_read_u64(&shared->head);
	bool		named = ring->position == 0;	/* it may hold what was not asked for when it was written */

	/* what is added from now on is for the next time: other rings wait */
	while (ring->position < end)
	{
		RingCopy	copy = ring_copy(shared, ring->position, recording->buffer, WORKER_CHUNK);
		uint64		from = position_in(recording, ring, copy.position);
		bool		written = true;

		introduce(recording, ring);
		if (ring->position == 0)
			written = put_stream(recording, ring, 0, &shared->session, sizeof(SessionRecord));
		written = written && put_loss(recording, ring->number, copy.position - from);
		if (copy.size > 0)
			written = written &&
				(!named || put_names(recording, ring, copy.position, copy.data, copy.size)) &&
				put_stream(recording, ring, copy.position, copy.data, copy.size);
		else if (copy.sound)
			/* a record larger than all that we read at once: pass it over */
			written = written && put_loss(recording, ring->number, copy.next - copy.position);
		else
		{
			written = written && pass_over(recording, ring, end - copy.position);
			copy.next = end;
		}
		if (!written)
			return;
		recording->has_rows = true;
		ring->position = copy.next;
		/* readers forget an open request if any record follows it: a text, maybe */
		ring->open_size = 0;
		ring_note_drained(shared, ring->position);
	}
	write_open(recording, ring);
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

static bool
put_waits(Recording *recording, Drained *ring, uint32 n)
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
		return true;
	introduce(recording, ring);
	block_begin(file, TABLE_WAITS, rows);
	block_constant(file, "ring", ring->number);
	block_integers(file, "event", column[0]);
	block_integers(file, "gap_ns", column[1]);
	block_integers(file, "length_ns", column[2]);
	block_integers(file, "calls", column[3]);
	return block_end(file);
}

static bool
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
		return true;
	block_begin(file, TABLE_MARKS, rows);
	block_constant(file, "ring", ring->number);
	block_integers(file, "kind", column[0]);
	block_integers(file, "depth", column[1]);
	block_integers(file, "when_ns", column[2]);
	block_integers(file, "value", column[3]);
	return block_end(file);
}

/* What is new of a ring of waits.  What could not be written stays unread. */
void
tables_write_waits(Recording *recording, Drained *ring)
{
	const void *shared = ring->mapped.ring;
	bool		first = ring->position == 0;
	uint64		lost;
	uint32		n;
	int			reads = 0;

	do
	{
		uint64		next;

		n = tables_waits_offer()->read(shared, ring->position, records, WAITS_AT_ONCE, &next, &lost);
		introduce(recording, ring);
		/* what it forgot before we came is not our loss */
		if ((!first && !put_loss(recording, ring->number, lost)) ||
			!put_waits(recording, ring, n) || !put_marks(recording, ring, n))
			return;
		recording->has_rows |= n > 0;
		first = false;
		ring->position = next;
	} while (n == WAITS_AT_ONCE && (++reads < MOST_READS || ring_ended(ring)));
}

/* Nothing more can be written: how much of a ring has not been, as far as it is still there */
Unwritten
tables_count_unwritten(const Recording *recording, const Drained *ring)
{
	Unwritten	found = {0};

	if (!ring->waits)
	{
		Ring	   *shared = ring->mapped.ring;

		found.bytes = pg_atomic_read_u64(&shared->head) -
			position_in(recording, ring, pg_atomic_read_u64(&shared->tail));
	}
	else
	{
		uint64		position = ring->position;
		uint64		lost;
		uint32		n = WAITS_AT_ONCE;

		for (int reads = 0; n == WAITS_AT_ONCE && reads < MOST_READS; reads++)
		{
			n = tables_waits_offer()->read(ring->mapped.ring, position, records,
									 WAITS_AT_ONCE, &position, &lost);
			found.waits += n + (ring->position > 0 ? lost : 0);
		}
	}
	found.rings = found.bytes > 0 || found.waits > 0;
	return found;
}

/* How long its process has run and has waited for a processor, by the kernel */
void
tables_write_processor(Recording *recording, const Drained *ring)
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
