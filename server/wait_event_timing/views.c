/*-------------------------------------------------------------------------
 * views.c
 *		Waits for SQL: by process, and now.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "sql.h"

PG_FUNCTION_INFO_V1(wait_event_timing_backends);
PG_FUNCTION_INFO_V1(wait_event_timing_current);
PG_FUNCTION_INFO_V1(wait_event_timing_sessions);

/* Copy a slot, if a process has it that the caller may see. */
static bool
copy_visible(Shared *shared, uint32 number, Slot *copy)
{
	SlotCopy	got = stats_copy_slot(shmem_slot(shared, number), copy);

	if (got == SLOT_BUSY)
		sql_skipped(shared, 1);
	return got == SLOT_COPIED && sql_is_live(number, copy->pid) && sql_may_see(copy->role);
}

Datum
wait_event_timing_backends(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();
	Slot	   *copy = palloc(sizeof(Slot));

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		if (!copy_visible(shared, i, copy))
			continue;
		for (uint32 k = 0; k < SLOT_EVENTS; k++)
		{
			Datum		values[12];
			bool		nulls[12] = {0};

			if ((k >= copy->nevents && k != SLOT_EVENTS - 1) || copy->events[k].waits == 0)
				continue;
			values[0] = Int32GetDatum(copy->pid);
			values[1] = CStringGetTextDatum(sql_backend_type(copy->backend_type));
			sql_put_event(&values[2], (uint32) copy->events[k].key);
			sql_put_counters(&values[5], &copy->events[k]);
			sql_put_ns(&values[10], &copy->events[k]);
			sql_put_row(fcinfo, values, nulls);
		}
	}
	return (Datum) 0;
}

/* The wait that a process is in now, and whose it is; event 0: none */
typedef struct Now
{
	int			pid;
	int			backend_type;
	Oid			role;
	uint32		event;
	int64		ns;				/* since it began */
} Now;

/*
 * The start is written before the event, and both only change together; the
 * rest belongs to the process, and "clock" changes between waits.
 */
static Now
read_now(const Shared *shared, const Slot *slot)
{
	Now			now;
	uint32		clock;
	int64		start;
	uint64		ignored = 0;

	do
	{
		now.pid = slot->pid;
		clock = slot->clock;
		pg_read_barrier();
		now.backend_type = slot->backend_type;
		now.role = slot->role;
		start = slot->current_start;
		pg_read_barrier();
		now.event = slot->current_event;
		pg_read_barrier();
	} while (now.event != 0 && (start != slot->current_start || clock != slot->clock ||
								now.pid != slot->pid));
	now.ns = now.event == 0 ? 0 :
		clock_ns(timing_rate(shared, clock), clock_source_read(clock) - start, &ignored);
	return now;
}

Datum
wait_event_timing_current(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		Now			now = read_now(shared, shmem_slot(shared, i));
		Datum		values[7];
		bool		nulls[7] = {0};

		if (now.event == 0 || !sql_is_live(i, now.pid) || !sql_may_see(now.role))
			continue;
		values[0] = Int32GetDatum(now.pid);
		values[1] = CStringGetTextDatum(sql_backend_type(now.backend_type));
		sql_put_event(&values[2], now.event);
		values[5] = TimestampTzGetDatum(GetCurrentTimestamp() - now.ns / 1000);
		values[6] = MS(now.ns);
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

Datum
wait_event_timing_sessions(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();
	Slot	   *copy = palloc(sizeof(Slot));

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		Datum		values[8];
		bool		nulls[8] = {0};
		uint32		level;

		if (!copy_visible(shared, i, copy))
			continue;
		values[0] = Int32GetDatum(copy->pid);
		values[1] = CStringGetTextDatum(sql_backend_type(copy->backend_type));
		level = pg_atomic_read_u32(&copy->level);
		values[2] = CStringGetTextDatum(level_names[level == CAPTURE_ENDING ? CAPTURE_OFF :
													 level].name);
		values[3] = Int32GetDatum((int32) copy->nevents);
		values[4] = Int64GetDatum((int64) copy->overflows);
		values[5] = Int64GetDatum((int64) copy->negative);
		values[6] = Int64GetDatum((int64) copy->missed);
		values[7] = Int64GetDatum((int64) copy->statements_missed);
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}
