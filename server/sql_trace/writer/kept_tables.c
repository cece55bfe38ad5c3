/*-------------------------------------------------------------------------
 * kept_tables.c
 *		What rings hold, as tables of the file of a kept trace.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"
#include "../calls/fused.h"
#include "../core/dictionary.h"

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "pgtime.h"
#include "utils/json.h"

#include "../../common/event_name.h"
#include "../../common/pg_compat.h"
#include "../../common/version.h"

#define WAITS_AT_ONCE 8192

/* of a ring that is still written */
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

/* Times as readers of JSON know them */
void
tables_json_time(StringInfo to, TimestampTz at)
{
	pg_time_t	seconds = timestamptz_to_time_t(at);
	int			micros = (int) (at - time_t_to_timestamptz(seconds));
	char		text[32];

	pg_strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", pg_gmtime(&seconds));
	appendStringInfo(to, "%s.%06d+00:00", text, micros);
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
	block_end(file);
}

/* What the file tells before its rows; "kept": of the trace, as JSON */
void
tables_write_head(Recording *recording, const char *kept)
{
	TraceFile  *file = &recording->file;
	StringInfoData json;

	file_begin(file);
	initStringInfo(&json);
	appendStringInfo(&json, "{\"pgtare\": \"sql_trace %s\", \"began\": \"", PGTARE_VERSION);
	tables_json_time(&json, recording->began);
	appendStringInfo(&json, "\", \"server\": \"%d\", \"command\": [\"sql_trace kept\"], \"kept\": %s}",
					 BUILT_FOR_VERSION, kept);
	block_begin(file, TABLE_RECORDING, 1);
	block_bytes(file, "json", json.data, json.len);
	block_end(file);
	pfree(json.data);
}

/* Tell of a ring, and of all events so far. */
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
	block_end(file);
	pfree(json.data);
	ring->described = true;
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
	block_end(file);
}

static void
put_stream(Recording *recording, const Drained *ring, uint64 position, const void *data, Size size)
{
	TraceFile  *file = &recording->file;

	block_begin(file, TABLE_STREAM, 1);
	block_constant(file, "ring", ring->number);
	block_constant(file, "position", (int64) position);
	block_bytes(file, "data", data, (uint32) size);
	block_end(file);
}

/*
 * What these records, which follow in the file, name and the dictionary has: as it is in
 * no ring, the file has it as records without a number.
 */
static void
put_names(Recording *recording, Drained *ring, uint64 position, const char *data, Size size)
{
	StringInfoData names;

	if (ring->names)
	{
		if (ring->names_size > 0)
			put_stream(recording, ring, position, ring->names, ring->names_size);
		ring->names_size = 0;
		return;
	}
	initStringInfo(&names);
	names_find(data, size, &names);
	if (names.len > 0)
		put_stream(recording, ring, position, names.data, names.len);
	pfree(names.data);
}

/* What was overwritten between what we read last and this; what the ring forgot before is no loss. */
static uint64
lost_before(const Recording *recording, const Drained *ring, uint64 position)
{
	return ring->position == 0 && ring->started < recording->began ? 0 :
		position - ring->position;
}

/* A request that is open is in no record yet: write what is kept back of it. */
static void
write_open(Recording *recording, Drained *ring)
{
	Size		size = fused_look(ring->ring, ring->position, recording->buffer);

	if (size == 0 || ring->position == 0)
		return;
	introduce(recording, ring);
	put_names(recording, ring, ring->position, recording->buffer, size);
	put_stream(recording, ring, ring->position, recording->buffer, size);
}

/* What a ring of calls holds */
void
tables_write_calls(Recording *recording, Drained *ring)
{
	Ring	   *shared = ring->ring;
	uint64		end = pg_atomic_read_u64(&shared->head);

	/* what is added from now on is not waited for */
	while (ring->position < end)
	{
		RingCopy	copy = ring_copy(shared, ring->position, recording->buffer, KEPT_CHUNK);

		introduce(recording, ring);
		if (ring->position == 0)
			put_stream(recording, ring, 0, &shared->session, sizeof(SessionRecord));
		put_loss(recording, ring, lost_before(recording, ring, copy.position));
		if (copy.size > 0)
		{
			put_names(recording, ring, copy.position, copy.data, copy.size);
			put_stream(recording, ring, copy.position, copy.data, copy.size);
		}
		else if (copy.sound)
			/* a record larger than all that we read at once: pass it over */
			put_loss(recording, ring, copy.next - copy.position);
		else
		{
			/* nothing of the ring can be read up to its present end */
			ereport(LOG, (errmsg("sql_trace passes over a part of the trace of process %d that is "
								 "damaged", ring->pid)));
			put_loss(recording, ring, end - copy.position);
			copy.next = end;
		}
		ring->position = copy.next;
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

/* Of these records the waits, or the marks between them */
static void
put_records(Recording *recording, Drained *ring, uint32 n, bool waits)
{
	static const char *const names[2][4] = {
		{"kind", "depth", "when_ns", "value"}, {"event", "gap_ns", "length_ns", "calls"}
	};
	TraceFile  *file = &recording->file;
	int64		end = 0;
	uint32		rows = 0;

	for (uint32 i = 0; i < n; i++)
	{
		const WaitRecord *record = &records[i];
		int64		start = record->start_ns + UNIX_NS(ring->started);

		if (record->wait != waits)
			continue;
		column[0][rows] = waits ? number_of(recording, record->event) : record->kind;
		column[1][rows] = waits ? start - end : record->depth;
		column[2][rows] = waits ? record->value : start;
		column[3][rows++] = waits ? (int64) record->calls : record->value;
		end = start + record->value;
	}
	if (rows == 0)
		return;
	introduce(recording, ring);
	block_begin(file, waits ? TABLE_WAITS : TABLE_MARKS, rows);
	block_constant(file, "ring", ring->number);
	for (int i = 0; i < 4; i++)
		block_integers(file, names[waits][i], column[i]);
	block_end(file);
}

/* What a ring of waits holds; what it forgot before we came is no loss. */
void
tables_write_waits(Recording *recording, Drained *ring)
{
	uint32		n = WAITS_AT_ONCE;

	introduce(recording, ring);
	for (int reads = 0; n == WAITS_AT_ONCE && (reads < MOST_READS || !recording->live); reads++)
	{
		uint64		lost;

		n = tables_waits_offer()->read(ring->ring, ring->position, records, WAITS_AT_ONCE,
									   &ring->position, &lost);
		if (reads > 0)
			put_loss(recording, ring, lost);
		put_records(recording, ring, n, true);
		put_records(recording, ring, n, false);
	}
}
