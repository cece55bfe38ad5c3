/*-------------------------------------------------------------------------
 * read.c
 *		Traces for SQL: which there are, and what is in them.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "sql.h"

PG_FUNCTION_INFO_V1(wait_event_trace);
PG_FUNCTION_INFO_V1(wait_event_trace_drain);
PG_FUNCTION_INFO_V1(wait_event_timing_rings);

#define MAP_TRIES 5
#define MAX_DRAIN (16 * 1024 * 1024)

/* All rings of processes: live ones, then those that ended */
RingEntry *
read_ring_entry(Shared *shared, uint32 i)
{
	if (i < shared->nslots)
		return shmem_ring(shared, i);
	i -= shared->nslots;
	return i < lengthof(shared->ended) ? &shared->ended[i] : NULL;
}

/* The entry of a process, the latest if there are several of that number */
static RingEntry
entry_of(int pid)
{
	Shared	   *shared = sql_shared();
	RingEntry	found = {0};
	RingEntry  *e;

	LWLockAcquire(&shared->lock, LW_SHARED);
	for (uint32 i = 0; (e = read_ring_entry(shared, i)) != NULL; i++)
		if (ring_place_is_there(e->handle) && e->pid == pid &&
			(found.handle == 0 || e->started > found.started))
			found = *e;
	LWLockRelease(&shared->lock);
	if (found.handle == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no trace of a process with PID %d", pid),
				 errhint("A process is traced while its wait_event_timing.capture is trace.")));
	return found;
}

/* One that grows meanwhile has another handle, and is there. */
static MappedRing
attach(int pid)
{
	MappedRing	mapped = {0};

	for (int i = 0; i < MAP_TRIES && mapped.ring == NULL; i++)
	{
		RingEntry	found = entry_of(pid);

		if (!sql_may_see(found.role))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for the trace of process %d", pid)));
		mapped = ring_place_map(found.handle);
	}
	if (mapped.ring == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the trace of process %d has just been given up", pid)));
	return mapped;
}

/* How many records have been written: all of them can be seen from here on. */
uint64
read_written(TraceRing *ring)
{
	uint64		written = pg_atomic_read_u64(&ring->written);

	/* a record seen as it was before would count as lost */
	pg_read_barrier();
	return written;
}

/* A whole record, or false if it has been overwritten. */
bool
read_record(TraceRing *ring, uint64 number, TraceRecord *copy)
{
	TraceRecord *record = &ring->records[number & (ring->nrecords - 1)];

	if (record->seq != (uint32) number + 1)
		return false;
	pg_read_barrier();
	memcpy(copy, (void *) record, sizeof(*copy));
	pg_read_barrier();
	return record->seq == (uint32) number + 1;
}

static const char *
kind_name(int kind)
{
	static const char *const names[] = {
		"?", "wait", "statement begin", "statement end", "cpu", "commit", "abort"
	};

	return kind >= 0 && kind < (int) lengthof(names) ? names[kind] : names[0];
}

static void
put_record(FunctionCallInfo fcinfo, const TraceRing *ring, uint64 number, const TraceRecord *r)
{
	Datum		values[11];
	bool		nulls[11] = {0};

	memset(&nulls[4], true, 7);
	values[0] = Int64GetDatum((int64) number);
	values[1] = CStringGetTextDatum(kind_name(r->kind));
	values[2] = TimestampTzGetDatum(ring->started + r->start_ns / 1000);
	values[3] = MS(r->start_ns);
	if (r->kind == RECORD_WAIT)
	{
		values[4] = CStringGetTextDatum(sql_event_type(r->event));
		values[5] = CStringGetTextDatum(sql_event_name(r->event));
		values[6] = MS(r->value);
		values[7] = Int32GetDatum((int32) r->calls);
		nulls[4] = nulls[5] = nulls[6] = nulls[7] = false;
	}
	else
	{
		values[6] = MS(r->value);
		nulls[6] = r->kind != RECORD_CPU;
		values[8] = Int32GetDatum(r->depth);
		nulls[8] = r->kind == RECORD_COMMIT || r->kind == RECORD_ABORT;
		values[9] = Int64GetDatum(r->value);
		nulls[9] = r->kind != RECORD_STATEMENT_BEGIN;
		values[10] = Int64GetDatum(r->value);
		nulls[10] = r->kind != RECORD_STATEMENT_END;
	}
	sql_put_row(fcinfo, values, nulls);
}

Datum
wait_event_trace(PG_FUNCTION_ARGS)
{
	MappedRing	mapped = attach(PG_GETARG_INT32(0));
	TraceRing  *ring = mapped.ring;
	uint64		end = read_written(ring);
	uint64		number = end > ring->nrecords ? end - ring->nrecords : 0;

	InitMaterializedSRF(fcinfo, 0);
	for (; number < end; number++)
	{
		TraceRecord r;

		CHECK_FOR_INTERRUPTS();
		if (read_record(ring, number, &r))
			put_record(fcinfo, ring, number, &r);
	}
	ring_place_unmap(&mapped);
	return (Datum) 0;
}

/* Records as they are, from a number on: where to go on, how many were lost, and the bytes. */
Datum
wait_event_trace_drain(PG_FUNCTION_ARGS)
{
	int64		from = PG_GETARG_INT64(1);
	MappedRing	mapped = attach(PG_GETARG_INT32(0));
	TraceRing  *ring = mapped.ring;
	uint64		end = read_written(ring);
	uint64		number = end > ring->nrecords ? end - ring->nrecords : 0;
	uint64		first;
	int64		lost = 0;
	int64		n = 0;
	bytea	   *data;
	char	   *out;				/* aligned as bytes are */
	Datum		values[4];
	bool		nulls[4] = {0};

	if (from < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of a record must not be negative")));
	if ((uint64) from >= number)
		number = from;
	else
		lost = (int64) (number - from);
	first = number;
	end = Min(end, first + MAX_DRAIN / sizeof(TraceRecord));
	data = palloc(VARHDRSZ + (end > first ? end - first : 0) * sizeof(TraceRecord));
	out = VARDATA(data);
	for (; number < end; number++)
	{
		TraceRecord r;

		if (read_record(ring, number, &r))
			memcpy(out + n++ * sizeof(r), (void *) &r, sizeof(r));
		else
			lost++;
	}
	SET_VARSIZE(data, VARHDRSZ + n * sizeof(TraceRecord));
	values[0] = Int64GetDatum((int64) number);
	values[1] = Int64GetDatum(lost);
	values[2] = TimestampTzGetDatum(ring->started);
	values[3] = PointerGetDatum(data);
	ring_place_unmap(&mapped);
	return sql_row(fcinfo, values, nulls);
}

Datum
wait_event_timing_rings(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shmem_get();
	RingEntry  *entry;

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; shared && (entry = read_ring_entry(shared, i)) != NULL; i++)
	{
		RingEntry	e;
		Datum		values[7];
		bool		nulls[7] = {0};

		LWLockAcquire(&shared->lock, LW_SHARED);
		e = *entry;
		LWLockRelease(&shared->lock);
		if (!sql_may_see(e.role) || !ring_place_is_there(e.handle))
			continue;
		values[0] = Int32GetDatum(e.pid);
		values[1] = CStringGetTextDatum(sql_backend_type(e.backend_type));
		values[2] = Int32GetDatum(e.leader_pid);
		nulls[2] = e.leader_pid == 0;
		values[3] = ObjectIdGetDatum(e.role);
		values[4] = Int32GetDatum((int32) e.nrecords);
		values[5] = TimestampTzGetDatum(e.started);
		values[6] = TimestampTzGetDatum(e.ended);
		nulls[6] = e.ended == 0;
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}
