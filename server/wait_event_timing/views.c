/*-------------------------------------------------------------------------
 * views.c
 *		What SQL sees, and asks for.
 *
 * Rows about a process or statement of another role need the privileges of
 * pg_read_all_stats, as in PostgreSQL's own views; sums over all are open.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "waits.h"

PG_FUNCTION_INFO_V1(wait_event_timing_backends);
PG_FUNCTION_INFO_V1(wait_event_timing_system);
PG_FUNCTION_INFO_V1(wait_event_timing_statements);
PG_FUNCTION_INFO_V1(wait_event_timing_current);
PG_FUNCTION_INFO_V1(wait_event_timing_sessions);
PG_FUNCTION_INFO_V1(wait_event_timing_info);
PG_FUNCTION_INFO_V1(wait_event_timing_buckets);
PG_FUNCTION_INFO_V1(wait_event_timing_calls);
PG_FUNCTION_INFO_V1(wait_event_timing_reset);
PG_FUNCTION_INFO_V1(wait_event_timing_set);

#define MS(ns) Float8GetDatum((double) (ns) / 1e6)
#define CLOCK_READS 1000

static Shared *
shared_or_error(void)
{
	Shared	   *shared = shmem_get();

	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("wait_event_timing is not loaded in this session"),
				 errhint("Add it to \"shared_preload_libraries\" and restart the server; from "
						 "PostgreSQL 17 on \"session_preload_libraries\" serves new sessions.")));
	/* what we know of our own waits should be in it */
	capture_fold();
	return shared;
}

static bool
may_see(Oid role)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), role);
}

/* Is the owner of this slot still that process? */
static bool
is_live(uint32 number, int pid)
{
	return pid != 0 && ProcGlobal->allProcs[number].pid == pid;
}

static Datum
text_datum(const char *s)
{
	return CStringGetTextDatum(s);
}

/* wait_event_type, wait_event, idle */
static void
put_event(Datum *values, uint32 event)
{
	const char *type = event ? pgstat_get_wait_event_type(event) : "Other";
	const char *name = event ? pgstat_get_wait_event(event) : "Other";

	values[0] = text_datum(type ? type : "???");
	values[1] = text_datum(name ? name : "???");
	values[2] = BoolGetDatum(IS_IDLE(event));
}

/* waits, calls, total_time, max_time, histogram */
static void
put_counters(Datum *values, const EventStats *stats)
{
	Datum		buckets[HISTOGRAM_BUCKETS];

	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		buckets[i] = Int64GetDatum((int64) stats->histogram[i]);
	values[0] = Int64GetDatum((int64) stats->waits);
	values[1] = Int64GetDatum((int64) stats->calls);
	values[2] = MS(stats->total_ns);
	values[3] = MS(stats->max_ns);
	values[4] = PointerGetDatum(construct_array(buckets, HISTOGRAM_BUCKETS, INT8OID,
												sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

static void
put_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
wait_event_timing_backends(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();
	Slot	   *copy = palloc(sizeof(Slot));

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		if (!stats_copy_slot(shmem_slot(shared, i), copy) || !is_live(i, copy->pid) ||
			!may_see(copy->role))
			continue;
		for (uint32 k = 0; k < SLOT_EVENTS; k++)
		{
			Datum		values[10];
			bool		nulls[10] = {0};

			if ((k >= copy->nevents && k != SLOT_EVENTS - 1) || copy->events[k].waits == 0)
				continue;
			values[0] = Int32GetDatum(copy->pid);
			values[1] = text_datum(GetBackendTypeDesc(copy->backend_type));
			put_event(&values[2], (uint32) copy->events[k].key);
			put_counters(&values[5], &copy->events[k]);
			put_row(fcinfo, values, nulls);
		}
	}
	return (Datum) 0;
}

Datum
wait_event_timing_system(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();
	Slot	   *copy = palloc(sizeof(Slot));
	EventStats *sums = palloc(sizeof(shared->totals));

	/* the lock keeps processes from moving into the totals while we look */
	LWLockAcquire(&shared->lock, LW_SHARED);
	memcpy(sums, shared->totals, sizeof(shared->totals));
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		if (!stats_copy_slot(shmem_slot(shared, i), copy))
			continue;
		for (uint32 k = 0; k < SLOT_EVENTS; k++)
		{
			EventStats *into;

			if ((k >= copy->nevents && k != SLOT_EVENTS - 1) || copy->events[k].waits == 0)
				continue;
			into = stats_total_entry(sums, copy->backend_type, (uint32) copy->events[k].key);
			if (into)
				stats_merge(into, &copy->events[k]);
		}
	}
	LWLockRelease(&shared->lock);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < TOTAL_EVENTS; i++)
	{
		Datum		values[9];
		bool		nulls[9] = {0};

		if (sums[i].waits == 0)
			continue;
		values[0] = text_datum(GetBackendTypeDesc((BackendType) ((sums[i].key >> 32) - 1)));
		put_event(&values[1], (uint32) sums[i].key);
		put_counters(&values[4], &sums[i]);
		put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

Datum
wait_event_timing_statements(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();
	StatementBucket *copy = palloc(sizeof(StatementBucket));

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nbuckets; i++)
	{
		StatementBucket *bucket = shmem_bucket(shared, i);

		CHECK_FOR_INTERRUPTS();
		if (!statements_lock(bucket))
			continue;
		memcpy(copy, bucket, sizeof(*copy));
		statements_unlock(bucket);
		for (int k = 0; k < STATEMENT_WAYS; k++)
		{
			Statement  *s = &copy->way[k];
			Datum		values[11];
			bool		nulls[11] = {0};

			if (s->stats.key == 0 || !may_see(s->role))
				continue;
			values[0] = ObjectIdGetDatum(s->role);
			values[1] = ObjectIdGetDatum(s->database);
			values[2] = Int64GetDatum((int64) s->query_id);
			put_event(&values[3], (uint32) s->stats.key);
			put_counters(&values[6], &s->stats);
			put_row(fcinfo, values, nulls);
		}
	}
	return (Datum) 0;
}

Datum
wait_event_timing_current(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		Slot	   *slot = shmem_slot(shared, i);
		int			pid = slot->pid;
		uint32		event;
		int64		start;
		Datum		values[7];
		bool		nulls[7] = {0};
		uint64		ignored = 0;
		int64		ns;

		/* the start is written before the event, and both only change together */
		do
		{
			start = slot->current_start;
			pg_read_barrier();
			event = slot->current_event;
			pg_read_barrier();
		} while (event != 0 && start != slot->current_start);
		if (event == 0 || !is_live(i, pid) || !may_see(slot->role))
			continue;
		ns = clock_ns(capture_rate(shared, slot->clock),
					  clock_source_read(slot->clock) - start, &ignored);
		values[0] = Int32GetDatum(pid);
		values[1] = text_datum(GetBackendTypeDesc(slot->backend_type));
		put_event(&values[2], event);
		values[5] = TimestampTzGetDatum(GetCurrentTimestamp() - ns / 1000);
		values[6] = MS(ns);
		put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

Datum
wait_event_timing_sessions(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();
	Slot	   *copy = palloc(sizeof(Slot));

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		Datum		values[8];
		bool		nulls[8] = {0};

		if (!stats_copy_slot(shmem_slot(shared, i), copy) || !is_live(i, copy->pid) ||
			!may_see(copy->role))
			continue;
		values[0] = Int32GetDatum(copy->pid);
		values[1] = text_datum(GetBackendTypeDesc(copy->backend_type));
		values[2] = text_datum(waits_levels[pg_atomic_read_u32(&copy->level)].name);
		values[3] = Int32GetDatum((int32) copy->nevents);
		values[4] = Int64GetDatum((int64) copy->overflows);
		values[5] = Int64GetDatum((int64) copy->negative);
		values[6] = Int64GetDatum((int64) copy->missed);
		values[7] = Int64GetDatum((int64) copy->statements_missed);
		put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

/* What a reading of the session's clock costs here and now: the best of some runs. */
static double
clock_read_ns(const Shared *shared)
{
	int64		best = INT64_MAX;
	uint64		ignored = 0;
	volatile int64 sink;

	for (int run = 0; run < 5; run++)
	{
		int64		from = clock_ticks(shared->rate.counter);

		for (int i = 0; i < CLOCK_READS; i++)
			sink = clock_source_read(waits_clock);
		(void) sink;
		best = Min(best, clock_ticks(shared->rate.counter) - from);
	}
	return (double) clock_ns(&shared->rate, best, &ignored) / CLOCK_READS;
}

Datum
wait_event_timing_info(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();
	Slot	   *copy = palloc(sizeof(Slot));
	TupleDesc	tupdesc;
	Datum		values[16];
	bool		nulls[16] = {0};
	int			installed = 0;
	uint64		overflows,
				negative,
				missed,
				statements_missed,
				ended;
	TimestampTz reset_at;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	LWLockAcquire(&shared->lock, LW_SHARED);
	overflows = shared->overflows + shared->total_overflows;
	negative = shared->negative;
	missed = shared->missed;
	statements_missed = shared->statements_missed;
	ended = shared->processes;
	reset_at = shared->reset_at;
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		if (!stats_copy_slot(shmem_slot(shared, i), copy))
			continue;
		overflows += copy->overflows;
		negative += copy->negative;
		missed += copy->missed;
		statements_missed += copy->statements_missed;
	}
	LWLockRelease(&shared->lock);
	for (int i = 0; i < calls_count(); i++)
		installed += calls_slots(i);

	values[0] = text_datum(WAITS_VERSION);
	values[1] = BoolGetDatum(waits_hooks);
	values[2] = BoolGetDatum(shmem_is_dynamic());
	values[3] = Int32GetDatum(installed);
	values[4] = Int32GetDatum(calls_intact());
	values[5] = text_datum(GetConfigOption("wait_event_timing.clock", false, false));
	values[6] = Float8GetDatum((double) shared->rate.hz);
	values[7] = Float8GetDatum(clock_read_ns(shared));
	values[8] = Int64GetDatum((int64) ended);
	values[9] = Int64GetDatum((int64) overflows);
	values[10] = Int64GetDatum((int64) negative);
	values[11] = Int64GetDatum((int64) missed);
	values[12] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->evictions));
	values[13] = Int64GetDatum((int64) statements_missed);
	values[14] = Int64GetDatum((int64) sizeof(Slot));
	values[15] = TimestampTzGetDatum(reset_at);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}

/* Bucket i holds durations from 2^(i+7) up to 2^(i+8) ns, the first from 0, the last without end. */
Datum
wait_event_timing_buckets(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {0};

		values[0] = Int32GetDatum(i + 1);
		values[1] = MS(i == 0 ? 0 : UINT64CONST(1) << (i + FIRST_BUCKET_BITS - 1));
		values[2] = Float8GetDatum(i == HISTOGRAM_BUCKETS - 1 ? get_float8_infinity() :
								   (double) (UINT64CONST(1) << (i + FIRST_BUCKET_BITS)) / 1e6);
		put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

Datum
wait_event_timing_calls(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < calls_count(); i++)
	{
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = text_datum(calls_name(i));
		values[1] = Int32GetDatum(calls_slots(i));
		put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

/* The slot of a process, or a warning and NULL */
static Slot *
slot_of(Shared *shared, int pid)
{
	for (uint32 i = 0; pid != 0 && i < shared->nslots; i++)
	{
		Slot	   *slot = shmem_slot(shared, i);

		if (slot->pid == pid && is_live(i, pid))
			return slot;
	}
	ereport(WARNING, (errmsg("PID %d is not a process that wait_event_timing watches", pid)));
	return NULL;
}

/* Owners clear their counters themselves: until they do, readers see them as empty. */
Datum
wait_event_timing_reset(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();

	if (!PG_ARGISNULL(0))
	{
		Slot	   *slot = slot_of(shared, PG_GETARG_INT32(0));

		if (slot)
			pg_atomic_fetch_add_u64(&slot->reset_wanted, 1);
		PG_RETURN_BOOL(slot != NULL);
	}
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (uint32 i = 0; i < shared->nslots; i++)
		pg_atomic_fetch_add_u64(&shmem_slot(shared, i)->reset_wanted, 1);
	memset(shared->totals, 0, sizeof(shared->totals));
	shared->overflows = shared->negative = shared->missed = shared->statements_missed = 0;
	shared->total_overflows = shared->processes = 0;
	shared->reset_at = GetCurrentTimestamp();
	LWLockRelease(&shared->lock);
	statements_reset(shared);
	PG_RETURN_BOOL(true);
}

Datum
wait_event_timing_set(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shared_or_error();
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(1));
	const struct config_enum_entry *level;
	Slot	   *slot;

	for (level = waits_levels; level->name && pg_strcasecmp(level->name, name) != 0; level++)
		;
	if (level->name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid capture level: \"%s\"", name),
				 errhint("Levels are those of wait_event_timing.capture.")));
	slot = slot_of(shared, PG_GETARG_INT32(0));
	if (slot)
		pg_atomic_write_u32(&slot->level, level->val);
	PG_RETURN_BOOL(slot != NULL);
}
