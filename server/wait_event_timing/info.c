/*-------------------------------------------------------------------------
 * info.c
 *		What the module says of itself: losses, calls, buckets, names of events.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/float.h"
#include "utils/timestamp.h"

#include "sql.h"
#include "../common/module_settings.h"
#include "../common/processors.h"

PG_FUNCTION_INFO_V1(wait_event_timing_info);
PG_FUNCTION_INFO_V1(wait_event_timing_library_version);
PG_FUNCTION_INFO_V1(wait_event_timing_buckets);
PG_FUNCTION_INFO_V1(wait_event_timing_calls);
PG_FUNCTION_INFO_V1(wait_event_timing_event);

#define CLOCK_READS 1000

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
			sink = clock_source_read(capture_clock);
		(void) sink;
		best = Min(best, clock_ticks(shared->rate.counter) - from);
	}
	return (double) clock_ns(&shared->rate, best, &ignored) / CLOCK_READS;
}

/* What is lost of the waits of all processes, and how much they traced */
typedef struct Losses
{
	uint64		overflows;
	uint64		negative;
	uint64		missed;
	uint64		statements_missed;
	uint64		records;
	uint64		ended;
} Losses;

/*
 * The lock keeps processes from moving into the totals while we look.  Each
 * number is a word of its own, so that nobody who is stopped holds us up.
 */
static Losses
losses_of_all(Shared *shared)
{
	Losses		sum = {
		.overflows = shared->overflows + shared->total_overflows,
		.negative = shared->negative,
		.missed = shared->missed,
		.statements_missed = shared->statements_missed,
		.records = shared->records,
		.ended = shared->processes
	};

	for (uint32 i = 0; i < shared->nslots; i++)
	{
		volatile Slot *slot = shmem_slot(shared, i);

		if (slot->pid == 0)
			continue;
		sum.records += slot->records;
		if (slot->reset_done != pg_atomic_read_u64(&shmem_slot(shared, i)->reset_wanted))
			continue;
		sum.overflows += slot->overflows;
		sum.negative += slot->negative;
		sum.missed += slot->missed;
		sum.statements_missed += slot->statements_missed;
	}
	return sum;
}

#define COLUMNS 25

/* The number of resets is odd while one runs. */
Datum
wait_event_timing_info(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};
	const char *problem = call_slots_problem();
	int			installed = 0;
	Losses		losses;
	uint64		resets;
	uint64		over;
	TimestampTz reset_at;

	/* counters that the caller reads before this call or after it stay on their side */
	pg_memory_barrier();
	resets = pg_atomic_read_u64(&shared->resets);
	pg_memory_barrier();
	over = resets >> RESETS_RUNNING_BITS;
	LWLockAcquire(&shared->lock, LW_SHARED);
	losses = losses_of_all(shared);
	reset_at = shared->reset_at;
	LWLockRelease(&shared->lock);
	for (int i = 0; i < calls_ntaken; i++)
		installed += calls_taken[i].slots;

	values[0] = CStringGetTextDatum(PGTARE_VERSION);
	values[1] = BoolGetDatum(calls_hooks);
	values[2] = BoolGetDatum(shmem_memory.dynamic);
	values[3] = Int32GetDatum(installed);
	values[4] = Int32GetDatum(call_slots_intact(calls_taken, calls_ntaken));
	values[5] = CStringGetTextDatum(GetConfigOption("wait_event_timing.clock", false, false));
	values[6] = Float8GetDatum((double) shared->rate.hz);
	values[7] = Float8GetDatum(clock_read_ns(shared));
	values[8] = Int64GetDatum((int64) losses.ended);
	values[9] = Int64GetDatum((int64) losses.overflows);
	values[10] = Int64GetDatum((int64) losses.negative);
	values[11] = Int64GetDatum((int64) losses.missed);
	values[12] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->evictions));
	values[13] = Int64GetDatum((int64) losses.statements_missed);
	values[14] = Int64GetDatum((int64) losses.records);
	values[15] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->refused));
	values[16] = Int64GetDatum((int64) sizeof(Slot));
	values[17] = TimestampTzGetDatum(reset_at);
	values[18] = Int64GetDatum((int64) (2 * over + (resets != over << RESETS_RUNNING_BITS)));
	values[19] = problem ? CStringGetTextDatum(problem) : (Datum) 0;
	nulls[19] = problem == NULL;
	values[20] = CStringGetTextDatum(clock_reason(capture_clock));
	values[21] = TimestampTzGetDatum(shared->made_at);
	values[22] = TimestampTzGetDatum(PgStartTime);
	values[23] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->skipped));
	values[24] = Float8GetDatum(processors_usable("/"));
	return sql_row(fcinfo, values, nulls);
}

/* wait_event_timing_library_version(): of this library, whatever files are installed now */
Datum
wait_event_timing_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(PGTARE_VERSION));
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
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

Datum
wait_event_timing_calls(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < calls_ntaken; i++)
	{
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = CStringGetTextDatum(calls_taken[i].name);
		values[1] = Int32GetDatum(calls_taken[i].slots);
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

/* The names behind a number in a trace's records */
Datum
wait_event_timing_event(PG_FUNCTION_ARGS)
{
	int64		number = PG_GETARG_INT64(0);
	Datum		values[3];
	bool		nulls[3] = {0};

	if (number < 0 || number > PG_UINT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of a wait event must be between 0 and %u", PG_UINT32_MAX)));
	sql_put_event(values, (uint32) number);
	return sql_row(fcinfo, values, nulls);
}
