/*-------------------------------------------------------------------------
 * trace.c
 *		Statements and transactions in the trace of a session; reading traces.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "waits.h"

PG_FUNCTION_INFO_V1(wait_event_trace);
PG_FUNCTION_INFO_V1(wait_event_trace_drain);
PG_FUNCTION_INFO_V1(wait_event_timing_rings);

#define MAX_DRAIN (16 * 1024 * 1024)

static ExecutorStart_hook_type previous_start;
static ExecutorRun_hook_type previous_run;
static ExecutorFinish_hook_type previous_finish;
static ExecutorEnd_hook_type previous_end;
static ProcessUtility_hook_type previous_utility;

static int	depth = 0;			/* of statements running within statements */

static inline bool
tracing(void)
{
	return unlikely(capture.ring != NULL);
}

static void
mark_begin(uint64 query_id)
{
	capture_mark(RECORD_STATEMENT_BEGIN, depth, (int64) query_id);
}

static void
mark_end(uint64 rows)
{
	capture_mark(RECORD_CPU, depth, clock_system_ns(CLOCK_THREAD_CPUTIME_ID));
	capture_mark(RECORD_STATEMENT_END, depth, (int64) rows);
}

#if PG_VERSION_NUM >= 180000
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define RUN_ARGUMENTS queryDesc, direction, count
#else
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool once
#define RUN_ARGUMENTS queryDesc, direction, count, once
#endif

static void
trace_start(QueryDesc *queryDesc, int eflags)
{
	if (tracing())
		mark_begin((uint64) queryDesc->plannedstmt->queryId);
	explain_executor_starts(queryDesc->instrument_options != 0);
	if (previous_start)
		previous_start(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
}

static void
trace_run(RUN_PARAMETERS)
{
	depth++;
	PG_TRY();
	{
		if (previous_run)
			previous_run(RUN_ARGUMENTS);
		else
			standard_ExecutorRun(RUN_ARGUMENTS);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
}

static void
trace_finish(QueryDesc *queryDesc)
{
	depth++;
	PG_TRY();
	{
		if (previous_finish)
			previous_finish(queryDesc);
		else
			standard_ExecutorFinish(queryDesc);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
}

static void
trace_end(QueryDesc *queryDesc)
{
	if (tracing())
		mark_end(queryDesc->estate ? queryDesc->estate->es_processed : 0);
	if (depth == 0)
		explain_executor_ends();
	if (previous_end)
		previous_end(queryDesc);
	else
		standard_ExecutorEnd(queryDesc);
}

static void
trace_utility(PlannedStmt *statement, const char *text, bool read_only,
			  ProcessUtilityContext context, ParamListInfo parameters,
			  QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *done)
{
	bool		marked = tracing();

	if (marked)
		mark_begin((uint64) statement->queryId);
	depth++;
	PG_TRY();
	{
		if (previous_utility)
			previous_utility(statement, text, read_only, context, parameters, environment,
							 receiver, done);
		else
			standard_ProcessUtility(statement, text, read_only, context, parameters,
									environment, receiver, done);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
	if (marked && tracing())
		mark_end(done ? done->nprocessed : 0);
}

static void
trace_transaction(XactEvent event, void *arg)
{
	if (!tracing())
		return;
	if (event == XACT_EVENT_COMMIT)
		capture_mark(RECORD_COMMIT, 0, 0);
	else if (event == XACT_EVENT_ABORT)
		capture_mark(RECORD_ABORT, 0, 0);
}

void
trace_install(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = trace_start;
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = trace_run;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = trace_finish;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = trace_end;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = trace_utility;
	RegisterXactCallback(trace_transaction, NULL);
}

/*
 * The ring of a process, the live one before one that has ended.  A segment
 * attached for this is left in "foreign", for the caller to detach.
 */
static TraceRing *
attach(int pid, dsm_segment **foreign)
{
	Shared	   *shared = shmem_get();
	RingEntry	found = {RING_FREE};
	dsm_segment *segment;

	*foreign = NULL;

	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("wait_event_timing is not loaded in this session")));
	capture_fold();
	LWLockAcquire(&shared->lock, LW_SHARED);
	for (int i = 0; i < MAX_RINGS; i++)
	{
		RingEntry  *e = &shared->rings[i];

		if (e->state != RING_FREE && e->pid == pid &&
			(found.state == RING_FREE || e->started > found.started))
			found = *e;
	}
	LWLockRelease(&shared->lock);
	if (found.state == RING_FREE)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no trace of a process with PID %d", pid),
				 errhint("A session is traced while its wait_event_timing.capture is trace.")));
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) &&
		!has_privs_of_role(GetUserId(), found.role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the trace of process %d", pid)));

	/* it may be gone by now; our own is mapped already */
	segment = dsm_find_mapping(found.handle);
	if (segment == NULL)
		segment = *foreign = dsm_attach(found.handle);
	if (segment == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the trace of process %d has just been given up", pid)));
	return dsm_segment_address(segment);
}

/* A whole record, or false if it has been overwritten. */
static bool
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

Datum
wait_event_trace(PG_FUNCTION_ARGS)
{
	dsm_segment *foreign;
	TraceRing  *ring = attach(PG_GETARG_INT32(0), &foreign);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	uint64		end = pg_atomic_read_u64(&ring->written);
	uint64		number = end > ring->nrecords ? end - ring->nrecords : 0;

	InitMaterializedSRF(fcinfo, 0);
	for (; number < end; number++)
	{
		TraceRecord r;
		Datum		values[11];
		bool		nulls[11] = {0};

		CHECK_FOR_INTERRUPTS();
		if (!read_record(ring, number, &r))
			continue;
		memset(&nulls[4], true, 7);
		values[0] = Int64GetDatum((int64) number);
		values[1] = CStringGetTextDatum(kind_name(r.kind));
		values[2] = TimestampTzGetDatum(ring->started + r.start_ns / 1000);
		values[3] = Float8GetDatum((double) r.start_ns / 1e6);
		if (r.kind == RECORD_WAIT)
		{
			const char *type = pgstat_get_wait_event_type(r.event);
			const char *event = pgstat_get_wait_event(r.event);

			values[4] = CStringGetTextDatum(type ? type : "???");
			values[5] = CStringGetTextDatum(event ? event : "???");
			values[6] = Float8GetDatum((double) r.value / 1e6);
			values[7] = Int32GetDatum((int32) r.calls);
			nulls[4] = nulls[5] = nulls[6] = nulls[7] = false;
		}
		else
		{
			values[8] = Int32GetDatum(r.depth);
			nulls[8] = r.kind == RECORD_COMMIT || r.kind == RECORD_ABORT;
			values[9] = Int64GetDatum(r.value);
			nulls[9] = r.kind != RECORD_STATEMENT_BEGIN;
			values[10] = Int64GetDatum(r.value);
			nulls[10] = r.kind != RECORD_STATEMENT_END;
			if (r.kind == RECORD_CPU)
			{
				values[6] = Float8GetDatum((double) r.value / 1e6);
				nulls[6] = false;
			}
		}
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	if (foreign)
		dsm_detach(foreign);
	return (Datum) 0;
}

/* Records as they are, from a number on: where to go on, how many were lost, and the bytes. */
Datum
wait_event_trace_drain(PG_FUNCTION_ARGS)
{
	int64		from = PG_GETARG_INT64(1);
	dsm_segment *foreign;
	TraceRing  *ring = attach(PG_GETARG_INT32(0), &foreign);
	uint64		end = pg_atomic_read_u64(&ring->written);
	uint64		number = end > ring->nrecords ? end - ring->nrecords : 0;
	uint64		first;
	int64		lost = 0;
	int64		n = 0;
	bytea	   *data;
	TraceRecord *out;
	TupleDesc	tupdesc;
	Datum		values[4];
	bool		nulls[4] = {0};

	if (from < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of a record must not be negative")));
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if ((uint64) from >= number)
		number = from;
	else
		lost = (int64) (number - from);
	first = number;
	end = Min(end, first + MAX_DRAIN / sizeof(TraceRecord));
	data = palloc(VARHDRSZ + (end > first ? end - first : 0) * sizeof(TraceRecord));
	out = (TraceRecord *) VARDATA(data);
	for (; number < end; number++)
	{
		TraceRecord r;

		if (read_record(ring, number, &r))
			memcpy(&out[n++], (void *) &r, sizeof(r));
		else
			lost++;
	}
	SET_VARSIZE(data, VARHDRSZ + n * sizeof(TraceRecord));
	values[0] = Int64GetDatum((int64) number);
	values[1] = Int64GetDatum(lost);
	values[2] = TimestampTzGetDatum(ring->started);
	values[3] = PointerGetDatum(data);
	if (foreign)
		dsm_detach(foreign);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}

Datum
wait_event_timing_rings(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shmem_get();
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; shared && i < MAX_RINGS; i++)
	{
		RingEntry	e;
		Datum		values[5];
		bool		nulls[5] = {0};

		LWLockAcquire(&shared->lock, LW_SHARED);
		e = shared->rings[i];
		LWLockRelease(&shared->lock);
		if (e.state == RING_FREE)
			continue;
		values[0] = Int32GetDatum(e.pid);
		values[1] = ObjectIdGetDatum(e.role);
		values[2] = Int32GetDatum((int32) e.nrecords);
		values[3] = TimestampTzGetDatum(e.started);
		values[4] = TimestampTzGetDatum(e.ended);
		nulls[4] = e.state == RING_LIVE;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
