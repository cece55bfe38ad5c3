/*-------------------------------------------------------------------------
 * moment.c
 *		All waits and all time of the server's processes at one moment, for SQL.
 *
 * The time of a process is that since its waits are captured.  It is read
 * together with all of its waits: those in its tables, those that are over and
 * not yet there, and the one under way as far as it has gone.  So between two
 * readings the waits of a process never grow by more than its time, and what
 * they lack of it was spent on a processor, or waiting for one.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "sql.h"

PG_FUNCTION_INFO_V1(wait_event_timing_system);
PG_FUNCTION_INFO_V1(wait_event_timing_moment);

#define ATTEMPTS 2000
#define PAUSE_EVERY 200
#define PAUSE_US 500

/* Waits under way of one event */
typedef struct Running
{
	int64		waits;
	uint64		total_ns;
} Running;

/* Processes whose waits are captured, by backend type, and their time */
typedef struct Timed
{
	int64		processes;
	uint64		total_ns;
} Timed;

typedef struct Moment
{
	EventStats	sums[TOTAL_EVENTS + 1];
	Running		running[TOTAL_EVENTS + 1];
	Timed		timed[TIMED_TYPES];
	TimestampTz taken;
} Moment;

static inline int64
timed_since(const Slot *slot)
{
	return (int64) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &slot->timed_since));
}

static inline uint64
timed_ns(const Slot *slot)
{
	return pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &slot->timed_ns));
}

/*
 * Copy a slot and read its clock, with no wait beginning or ending and no time
 * opened or closed in between.  False if no process has it.  A process that is
 * stopped while it records a wait is taken as it is.
 *
 * A copy takes its words in any order.  So what was written before another word
 * is read again behind a barrier; and the number of pending waits, which a mark
 * raises without a turn, also ahead of them.
 */
static bool
copy_at(const Slot *from, Slot *to, int64 *now)
{
	for (int attempt = 1; attempt <= ATTEMPTS; attempt++)
	{
		uint32		turns = from->turns;
		uint32		npending = from->npending;

		pg_read_barrier();
		if (!stats_copy_slot(unconstify(Slot *, from), to))
			return false;
		pg_read_barrier();
		*now = clock_source_read(to->clock);
		pg_read_barrier();
		if ((turns & 1) == 0 && turns == from->turns && turns == to->turns &&
			to->current_event == from->current_event &&
			to->current_start == from->current_start &&
			to->call_start == from->call_start && to->clock == from->clock &&
			to->npending == npending &&
			timed_since(to) == timed_since(from) && timed_ns(to) == timed_ns(from))
			break;
		if (attempt % PAUSE_EVERY == 0)
			pg_usleep(PAUSE_US);
		else
			pg_spin_delay();
	}
	return true;
}

/* Add what a process has in its tables and before them, and what it is in. */
static void
add_process(Shared *shared, Moment *moment, const Slot *slot, int64 now, bool live)
{
	const ClockRate *rate = timing_rate(shared, slot->clock);
	Timed	   *timed = &moment->timed[TIMED_TYPE(slot->backend_type)];
	uint64		ignored = 0;

	for (uint32 k = 0; k < SLOT_EVENTS; k++)
	{
		if ((k < slot->nevents || k == SLOT_EVENTS - 1) && slot->events[k].waits > 0)
			stats_merge(stats_total_entry(moment->sums, slot->backend_type,
										  (uint32) slot->events[k].key), &slot->events[k]);
	}
	for (uint32 k = 0; k < Min(slot->npending, PENDING_WAITS); k++)
	{
		const Pending *wait = &slot->pending[k];

		if (WAIT_CLASS(wait->event) != 0)
			stats_count(stats_total_entry(moment->sums, slot->backend_type, wait->event), wait,
						clock_ns(rate, wait->length, &ignored));
	}
	if (!live)
		return;
	timed->total_ns += timed_ns(slot);
	if (timed_since(slot) != 0)
	{
		timed->processes++;
		timed->total_ns += clock_ns(rate, now - timed_since(slot), &ignored);
	}
	if (slot->current_event != 0)
	{
		/* earlier calls of a wait for a lock are among those that are over */
		int64		start = WAIT_CLASS(slot->current_event) == CLASS_LOCK ?
			slot->call_start : slot->current_start;
		EventStats *entry = stats_total_entry(moment->sums, slot->backend_type,
											  slot->current_event);
		Running    *running = &moment->running[entry - moment->sums];

		running->waits++;
		running->total_ns += clock_ns(rate, now - start, &ignored);
		/* it began as somebody stopped the time: see timing_add_wait() */
		if (timed_since(slot) == 0)
		{
			timed->processes++;
			timed->total_ns += clock_ns(rate, now - Max(start, slot->timed_until), &ignored);
		}
	}
}

static Moment *
read_moment(void)
{
	Shared	   *shared = sql_shared();
	Moment	   *moment = palloc0(sizeof(Moment));
	Slot	   *copy = palloc(sizeof(Slot));

	/* the lock keeps processes from moving into the totals while we look */
	LWLockAcquire(&shared->lock, LW_SHARED);
	moment->taken = GetCurrentTimestamp();
	memcpy(moment->sums, shared->totals, sizeof(shared->totals));
	for (int type = 0; type < TIMED_TYPES; type++)
		moment->timed[type].total_ns = shared->timed_ns[type];
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		int64		now;

		if (copy_at(shmem_slot(shared, i), copy, &now))
			add_process(shared, moment, copy, now, sql_is_live(i, copy->pid));
	}
	LWLockRelease(&shared->lock);
	return moment;
}

/* The system's columns are the first of the moment's. */
static void
put_events(FunctionCallInfo fcinfo, const Moment *moment)
{
	for (int i = 0; i <= TOTAL_EVENTS; i++)
	{
		const EventStats *sum = &moment->sums[i];
		Datum		values[12];
		bool		nulls[12] = {0};

		if (sum->waits == 0 && moment->running[i].waits == 0)
			continue;
		values[0] = CStringGetTextDatum(i == TOTAL_EVENTS ? "other" :
										sql_backend_type((int) (sum->key >> 32) - 1));
		sql_put_event(&values[1], (uint32) sum->key);
		sql_put_counters(&values[4], sum);
		values[9] = Int64GetDatum(moment->running[i].waits);
		values[10] = MS(moment->running[i].total_ns);
		values[11] = TimestampTzGetDatum(moment->taken);
		sql_put_row(fcinfo, values, nulls);
	}
}

Datum
wait_event_timing_system(PG_FUNCTION_ARGS)
{
	const Moment *moment = read_moment();

	InitMaterializedSRF(fcinfo, 0);
	put_events(fcinfo, moment);
	return (Datum) 0;
}

/* The same, and by backend type, without an event, the time in which the waits were captured. */
Datum
wait_event_timing_moment(PG_FUNCTION_ARGS)
{
	const Moment *moment = read_moment();

	InitMaterializedSRF(fcinfo, 0);
	put_events(fcinfo, moment);
	for (int type = 0; type < TIMED_TYPES; type++)
	{
		Datum		values[12] = {0};
		bool		nulls[12] = {0};

		if (moment->timed[type].total_ns == 0)
			continue;
		values[0] = CStringGetTextDatum(sql_backend_type(type == TIMED_TYPES - 1 ?
														 PARALLEL_WORKER : type));
		nulls[1] = nulls[2] = nulls[3] = nulls[5] = nulls[7] = nulls[8] = true;
		nulls[9] = nulls[10] = true;
		values[4] = Int64GetDatum(moment->timed[type].processes);
		values[6] = MS(moment->timed[type].total_ns);
		values[11] = TimestampTzGetDatum(moment->taken);
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}
