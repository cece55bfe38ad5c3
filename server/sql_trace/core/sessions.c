/*-------------------------------------------------------------------------
 * sessions.c
 *		Which sessions are traced, and asking another session to be; for SQL.
 *-------------------------------------------------------------------------
 */
#include "dictionary.h"
#include "level.h"
#include "shmem.h"
#include "timeline.h"

#include "../../common/module_settings.h"
#include "../../common/ring_area.h"
#include "../../common/sql_rows.h"
#include "../../common/version.h"

PG_FUNCTION_INFO_V1(sql_trace_set);
PG_FUNCTION_INFO_V1(sql_trace_reset);
PG_FUNCTION_INFO_V1(sql_trace_sessions);
PG_FUNCTION_INFO_V1(sql_trace_info);
PG_FUNCTION_INFO_V1(sql_trace_recorder);
PG_FUNCTION_INFO_V1(sql_trace_library_version);

/*
 * Ask a session.  Slots change hands under the lock: a session that takes this one next
 * has not taken it yet, and will not look at what was asked before.
 */
static bool
ask(Shared *shared, int pid, uint32 level)
{
	bool		found = false;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (uint32 i = 0; i < shared->nslots && !found && pid != 0; i++)
	{
		Slot	   *slot = shmem_slot(shared, i);

		if (slot->pid != pid || ProcGlobal->allProcs[i].pid != pid)
			continue;
		pg_atomic_write_u32(&slot->asked_level, level);
		pg_write_barrier();
		pg_atomic_fetch_add_u32(&slot->asked, 1);
		found = true;
	}
	LWLockRelease(&shared->lock);
	return found;
}

/* A session obeys when its next request begins. */
Datum
sql_trace_set(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shmem_get_or_error();
	int			pid;
	int			level = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT32(1);

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	pid = PG_GETARG_INT32(0);
	if (!level_is_valid(level))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid level of a trace: %d", level),
				 errhint("Levels are 0, 1, 4, 8 and 12; NULL gives the level back to the "
						 "settings of the session.")));
	if (ask(shared, pid, PG_ARGISNULL(1) ? NOT_ASKED : (uint32) level))
		PG_RETURN_BOOL(true);
	ereport(WARNING, (errmsg("PID %d is not a client session that sql_trace can trace", pid)));
	PG_RETURN_BOOL(false);
}

Datum
sql_trace_reset(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(ended_give_up(shmem_get_or_error()));
}

static const char *
reason_name(int reason)
{
	static const char *const names[] = {
		NULL, "setting", "sql_trace_set", "application", "query_ids", "recorder"
	};

	return reason >= 0 && reason < (int) lengthof(names) ? names[reason] : NULL;
}

static void
put_session(FunctionCallInfo fcinfo, const TraceEntry *entry)
{
	Datum		values[14];
	bool		nulls[14] = {0};
	const char *reason = reason_name(entry->reason);

	values[0] = Int32GetDatum(entry->pid);
	values[1] = ObjectIdGetDatum(entry->role);
	values[2] = ObjectIdGetDatum(entry->database);
	values[3] = CStringGetTextDatum(entry->application);
	values[4] = Int32GetDatum(entry->ended != 0 ? 0 : entry->level);
	nulls[5] = reason == NULL;
	values[5] = reason ? CStringGetTextDatum(reason) : (Datum) 0;
	values[6] = BoolGetDatum(entry->waits);
	values[7] = TimestampTzGetDatum(entry->started);
	nulls[7] = entry->started == 0;
	values[8] = TimestampTzGetDatum(entry->ended);
	nulls[8] = entry->ended == 0;
	values[9] = Int64GetDatum((int64) entry->counters.records);
	values[10] = Int64GetDatum((int64) entry->counters.bytes);
	values[11] = Int64GetDatum((int64) entry->counters.lost_records);
	values[12] = Int64GetDatum((int64) entry->counters.lost_bytes);
	values[13] = Int64GetDatum((int64) entry->ring_bytes);
	sql_put_row(fcinfo, values, nulls);
}

Datum
sql_trace_sessions(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shmem_get();

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; shared && i < shared->nslots + MAX_ENDED; i++)
	{
		TraceEntry	entry;

		LWLockAcquire(&shared->lock, LW_SHARED);
		entry = *shmem_trace(shared, i);
		LWLockRelease(&shared->lock);
		if (ring_place_is_there(entry.handle) && sql_may_see(entry.role))
			put_session(fcinfo, &entry);
	}
	return (Datum) 0;
}

/* Sums over all sessions that there are or have been, since the server started */
Datum
sql_trace_info(PG_FUNCTION_ARGS)
{
	Shared	   *shared = shmem_get_or_error();
	Counters	sum;
	Datum		values[12];
	bool		nulls[12] = {0};
	Unread		unread;
	int			traced = 0;

	LWLockAcquire(&shared->lock, LW_SHARED);
	sum = shared->ended_totals;
	unread = shared->unread;
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		const TraceEntry *entry = &shmem_slot(shared, i)->trace;

		if (entry->handle == 0)
			continue;
		ended_count(&sum, &entry->counters);
		traced += entry->level > 0 && ring_place_is_there(entry->handle);
	}
	LWLockRelease(&shared->lock);
	values[0] = Int32GetDatum(traced);
	values[1] = Int64GetDatum((int64) sum.records);
	values[2] = Int64GetDatum((int64) sum.bytes);
	values[3] = Int64GetDatum((int64) sum.lost_records);
	values[4] = Int64GetDatum((int64) sum.lost_bytes);
	values[5] = Int64GetDatum((int64) sum.wait_requests);
	values[6] = Int64GetDatum((int64) sum.row_sources);
	values[7] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->refused));
	values[8] = Int64GetDatum((int64) unread.sessions);
	values[9] = Int64GetDatum((int64) unread.records);
	values[10] = Int64GetDatum((int64) unread.bytes);
	values[11] = CStringGetTextDatum(clock_reason(timeline_clock));
	return sql_row(fcinfo, values, nulls);
}

/* The memory of the recorder's rings, of calls and of waits, and what it was not enough for */
Datum
sql_trace_recorder(PG_FUNCTION_ARGS)
{
	RingAreaUse use = {0};
	DictionaryUse dictionary = dictionary_use();
	Datum		values[9];
	bool		nulls[9] = {0};

	(void) shmem_get_or_error();
	if (ring_area())
		use = ring_area()->use();
	values[0] = Int64GetDatum((int64) use.bytes);
	values[1] = Int64GetDatum((int64) use.free_bytes);
	values[2] = Int64GetDatum((int64) use.rings);
	values[3] = Int64GetDatum((int64) use.gave_way);
	values[4] = Int64GetDatum((int64) use.refused);
	values[5] = Int64GetDatum((int64) dictionary.bytes);
	values[6] = Int64GetDatum((int64) dictionary.free_bytes);
	values[7] = Int64GetDatum((int64) dictionary.entries);
	values[8] = Int64GetDatum((int64) dictionary.replaced);
	return sql_row(fcinfo, values, nulls);
}

/* sql_trace_library_version(): of this library, whatever files are installed now */
Datum
sql_trace_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(PGTARE_VERSION));
}
