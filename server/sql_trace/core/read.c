/*-------------------------------------------------------------------------
 * read.c
 *		The records of a session's trace, for SQL.
 *
 * A writer does not wait for readers.  We copy what is whole, look again at
 * where the oldest whole record is, and leave out what was overwritten in
 * between.
 *-------------------------------------------------------------------------
 */
#include "dictionary.h"
#include "../calls/fused.h"

#include "../../common/sql_rows.h"

PG_FUNCTION_INFO_V1(sql_trace_drain);

#define MAP_TRIES 5
#define MAX_DRAIN ((uint64) 16 * 1024 * 1024)

/*
 * Statements of functions may run with the rights of others, whose data the
 * session's own role must not see.
 */
static bool
may_read(const TraceEntry *entry)
{
	return sql_may_see(entry->others ? ROLE_PG_READ_ALL_STATS : entry->role);
}

static TraceEntry
trace_of(int pid)
{
	Shared	   *shared = shmem_get_or_error();
	TraceEntry	entry;

	if (!shmem_find_trace(shared, pid, true, &entry))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no trace of a session with PID %d", pid),
				 errhint("A session is traced while its sql_trace.level is above 0.")));
	if (!may_read(&entry))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the trace of session %d", pid),
				 errhint("Members of pg_read_all_stats may read it.")));
	return entry;
}

/* The trace of a process, mapped; one that grows meanwhile has another handle, and is there. */
static MappedRing
map_trace(int pid, TraceEntry *entry)
{
	for (int i = 0; i < MAP_TRIES; i++)
	{
		MappedRing	mapped;

		*entry = trace_of(pid);
		mapped = ring_place_map(entry->handle);
		if (mapped.ring)
			return mapped;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("the trace of session %d has just been given up", pid)));
}

typedef struct Drain
{
	uint64		next;
	uint64		lost;
	bytea	   *data;
} Drain;

/*
 * Records from a position on, behind those that we make ourselves.  "named": what they
 * name and the dictionary has is among these.
 */
static Drain
drain(Ring *ring, uint64 from, bool named)
{
	Drain		result;
	Size		room = sizeof(SessionRecord) + sizeof(LostRecord);
	Size		open = 0;
	uint64		head = pg_atomic_read_u64(&ring->head);
	RingCopy	copy;
	StringInfoData names;
	char	   *buffer;
	char	   *out;
	char	   *to;
	Size		own;
	Size		size;

	if (from > head)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("position lies behind the end of the trace"),
				 errhint("When a trace has begun anew, start with 0.")));
	size = Min(head - from, Min(ring->size, MAX_DRAIN));
	buffer = palloc(room + size + FUSED_ROOM);
	copy = ring_copy(ring, from, buffer + room, size);
	if (!copy.sound || !ring_begins_record(ring, from))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no record begins at this position of the trace"),
				 errhint("Start with 0, and go on with \"next\".")));
	/* a record larger than all that is read at once is passed over */
	result.next = copy.next;
	result.lost = copy.next - copy.size - from;
	ring_note_drained(ring, result.next);
	if (result.next == head)
		open = fused_look(ring, head, copy.data + copy.size);

	/* our own records go before them */
	out = copy.data;
	if (result.lost > 0)
	{
		LostRecord	lost = {.header = {.size = sizeof(LostRecord),.kind = RECORD_LOST}};

		lost.bytes = result.lost;
		out -= sizeof(lost);
		memcpy(out, &lost, sizeof(lost));
	}
	if (from == 0)
	{
		out -= sizeof(SessionRecord);
		memcpy(out, &ring->session, sizeof(SessionRecord));
	}
	own = copy.data - out;
	initStringInfo(&names);
	if (named)
		names_find(copy.data, copy.size + open, &names);
	size = own + names.len + copy.size + open;
	result.data = palloc(VARHDRSZ + size);
	SET_VARSIZE(result.data, VARHDRSZ + size);
	to = VARDATA(result.data);
	memcpy(to, out, own);
	memcpy(to + own, names.data, names.len);
	memcpy(to + own + names.len, copy.data, copy.size + open);
	return result;
}

Datum
sql_trace_drain(PG_FUNCTION_ARGS)
{
	int64		from = PG_GETARG_INT64(1);
	TraceEntry	entry;
	MappedRing	mapped;
	Ring	   *ring;
	Drain		drained;
	Datum		values[5];
	bool		nulls[5] = {0};

	if (from < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("position must not be negative")));
	mapped = map_trace(PG_GETARG_INT32(0), &entry);
	ring = mapped.ring;
	/* requested traces have their texts in the ring, unless these came before the request */
	drained = drain(ring, (uint64) from,
					from == 0 || entry.level == 0 || entry.reason == REASON_RECORDER);
	/* what ran with the rights of another is noted before it is written */
	pg_read_barrier();
	if (trace_of(entry.pid).started != entry.started)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the trace of session %d has just been given up", entry.pid)));
	values[0] = Int64GetDatum((int64) drained.next);
	values[1] = Int64GetDatum((int64) drained.lost);
	values[2] = TimestampTzGetDatum(ring->started);
	values[3] = BoolGetDatum(entry.ended != 0);
	values[4] = PointerGetDatum(drained.data);
	ended_read(shmem_get_or_error(), entry.handle, ring);
	ring_place_unmap(&mapped);
	return sql_row(fcinfo, values, nulls);
}
