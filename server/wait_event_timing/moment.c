/*-------------------------------------------------------------------------
 * moment.c
 *		All waits and all time of the server's processes at one moment, for SQL.
 *
 * The time of a process is that since its waits are captured.  It is read
 * together with all of its waits: those in its tables, those that are over and
 * not yet there, and the one under way as far as it has gone.  So between two
 * readings the waits of a process never grow by more than its time, and what
 * they lack of it was spent on a processor, or waiting for one.
 *
 * A process's last wait, and one for a lock, can go on with another call: until
 * that is settled, their time is with what runs.  So no counter ever falls.
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

/* Waits under way of one event, with the time of those that may go on; who has waited for it */
typedef struct Running
{
	int64		waits;
	uint64		total_ns;
	int			processes;
	int			last;			/* of them */
} Running;

/* Processes whose waits are captured, by backend type, and their time */
typedef struct Timed
{
	int64		processes;
	uint64		total_ns;
	int			skipped;		/* processes that could not be read, or not as a whole */
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
 * opened or closed in between.  A process that is stopped while it records a wait
 * is taken as it is, and "whole" is false.
 *
 * A copy takes its words in any order.  So what was written before another word
 * is read again behind a barrier; and the number of pending waits, which a mark
 * raises without a turn, also ahead of them.
 */
static SlotCopy
copy_at(const Slot *from, Slot *to, int64 *now, bool *whole)
{
	*whole = true;
	for (int attempt = 1; attempt <= ATTEMPTS; attempt++)
	{
		uint32		turns = from->turns;
		uint32		npending = from->npending;
		SlotCopy	got;

		pg_read_barrier();
		got = stats_copy_slot(unconstify(Slot *, from), to);
		if (got != SLOT_COPIED)
			return got;
		pg_read_barrier();
		*now = clock_source_read(to->clock);
		pg_read_barrier();
		if ((turns & 1) == 0 && turns == from->turns && turns == to->turns &&
			to->current_event == from->current_event &&
			to->current_start == from->current_start &&
			to->call_start == from->call_start && to->clock == from->clock &&
			to->npending == npending &&
			timed_since(to) == timed_since(from) && timed_ns(to) == timed_ns(from))
			return SLOT_COPIED;
		if (attempt % PAUSE_EVERY == 0)
			pg_usleep(PAUSE_US);
		else
			pg_spin_delay();
	}
	*whole = false;
	return SLOT_COPIED;
}

/* A process that is there has waited for an event, or does so now. */
static EventStats *
sum_of(Moment *moment, const Slot *slot, uint32 event, bool live)
{
	EventStats *sum = stats_total_entry(moment->sums, slot->backend_type, event);
	Running    *running = &moment->running[sum - moment->sums];

	if (live && running->last != slot->pid)
	{
		running->processes++;
		running->last = slot->pid;
	}
	return sum;
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
			stats_merge(sum_of(moment, slot, (uint32) slot->events[k].key, live),
						&slot->events[k]);
	}
	for (uint32 k = 0; k < Min(slot->npending, PENDING_WAITS); k++)
	{
		const Pending *wait = &slot->pending[k];
		uint64		ns = clock_ns(rate, wait->length, &ignored);
		EventStats *sum;

		if (WAIT_CLASS(wait->event) == 0)
			continue;
		sum = sum_of(moment, slot, wait->event, live);
		/* one that goes on would leave its bucket for another */
		if (live && (k == slot->npending - 1 || WAIT_CLASS(wait->event) == CLASS_LOCK))
			moment->running[sum - moment->sums].total_ns += ns;
		else
			stats_count(sum, wait, ns);
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
		/* earlier calls of a wait for a lock are among those above */
		int64		start = WAIT_CLASS(slot->current_event) == CLASS_LOCK ?
			slot->call_start : slot->current_start;
		EventStats *entry = sum_of(moment, slot, slot->current_event, live);
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

static bool
is_in_use(const Moment *moment, int i)
{
	const Running *running = &moment->running[i];

	return moment->sums[i].waits > 0 || running->waits > 0 || running->total_ns > 0;
}

/*
 * Make one entry of those that look the same.  Readers know an event by its
 * name, and that need not be one event's: modules may give two tranches the
 * same, and all tranches that have none in this session are "extension".  A
 * process that has waited for two of them counts twice.
 */
static void
merge_namesakes(Moment *moment)
{
	const char *names[TOTAL_EVENTS];

	for (int i = 0; i < TOTAL_EVENTS; i++)
	{
		EventStats *sum = &moment->sums[i];
		Running    *running = &moment->running[i];

		if (!is_in_use(moment, i))
			continue;
		names[i] = sql_event_name((uint32) sum->key);
		for (int k = 0; k < i; k++)
		{
			if (!is_in_use(moment, k) || moment->sums[k].key >> 32 != sum->key >> 32 ||
				IS_IDLE((uint32) moment->sums[k].key) != IS_IDLE((uint32) sum->key) ||
				strcmp(names[k], names[i]) != 0 ||
				strcmp(sql_event_type((uint32) moment->sums[k].key),
					   sql_event_type((uint32) sum->key)) != 0)
				continue;
			stats_merge(&moment->sums[k], sum);
			moment->running[k].waits += running->waits;
			moment->running[k].total_ns += running->total_ns;
			moment->running[k].processes += running->processes;
			memset(sum, 0, sizeof(*sum));
			memset(running, 0, sizeof(*running));
			break;
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
		const Slot *slot = shmem_slot(shared, i);
		int64		now;
		bool		whole;
		SlotCopy	got = copy_at(slot, copy, &now, &whole);

		if (got == SLOT_COPIED)
			add_process(shared, moment, copy, now, sql_is_live(i, copy->pid));
		if (got == SLOT_BUSY || (got == SLOT_COPIED && !whole))
		{
			moment->timed[TIMED_TYPE(slot->backend_type)].skipped++;
			sql_skipped(shared, 1);
		}
	}
	LWLockRelease(&shared->lock);
	/* not before: what has no name raises an error, and nothing may be held then */
	merge_namesakes(moment);
	return moment;
}

#define COLUMNS 17				/* of a moment; the system's lack "taken" and "skipped" */

/* "times": with the columns of a moment */
static void
put_events(FunctionCallInfo fcinfo, const Moment *moment, bool times)
{
	for (int i = 0; i <= TOTAL_EVENTS; i++)
	{
		const EventStats *sum = &moment->sums[i];
		const Running *running = &moment->running[i];
		Datum		values[COLUMNS] = {0};
		bool		nulls[COLUMNS] = {0};
		int			n = 11;

		if (!is_in_use(moment, i))
			continue;
		values[0] = CStringGetTextDatum(i == TOTAL_EVENTS ? "other" :
										sql_backend_type((int) (sum->key >> 32) - 1));
		sql_put_event(&values[1], (uint32) sum->key);
		sql_put_counters(&values[4], sum);
		values[9] = Int64GetDatum(running->waits);
		values[10] = MS(running->total_ns);
		if (times)
			values[n++] = TimestampTzGetDatum(moment->taken);
		sql_put_ns(&values[n], sum);
		values[n + 2] = Int64GetDatum((int64) running->total_ns);
		values[n + 3] = Int32GetDatum(running->processes);
		nulls[16] = true;
		sql_put_row(fcinfo, values, nulls);
	}
}

/* By backend type, without an event, the time in which the waits were captured */
static void
put_times(FunctionCallInfo fcinfo, const Moment *moment)
{
	for (int type = 0; type < TIMED_TYPES; type++)
	{
		const Timed *timed = &moment->timed[type];
		Datum		values[COLUMNS] = {0};
		bool		nulls[COLUMNS] = {0};

		if (timed->total_ns == 0 && timed->skipped == 0)
			continue;
		values[0] = CStringGetTextDatum(sql_backend_type(TYPE_TIMED(type)));
		nulls[1] = nulls[2] = nulls[3] = nulls[5] = nulls[7] = nulls[8] = true;
		nulls[9] = nulls[10] = nulls[13] = nulls[14] = true;
		values[4] = Int64GetDatum(timed->processes);
		values[6] = MS(timed->total_ns);
		values[11] = TimestampTzGetDatum(moment->taken);
		values[12] = Int64GetDatum((int64) timed->total_ns);
		values[15] = Int32GetDatum((int32) timed->processes);
		values[16] = Int32GetDatum(timed->skipped);
		sql_put_row(fcinfo, values, nulls);
	}
}

static Datum
show(FunctionCallInfo fcinfo, bool times)
{
	const Moment *moment = read_moment();

	InitMaterializedSRF(fcinfo, 0);
	put_events(fcinfo, moment, times);
	if (times)
		put_times(fcinfo, moment);
	return (Datum) 0;
}

Datum
wait_event_timing_system(PG_FUNCTION_ARGS)
{
	return show(fcinfo, false);
}

Datum
wait_event_timing_moment(PG_FUNCTION_ARGS)
{
	return show(fcinfo, true);
}
