/*-------------------------------------------------------------------------
 * sql.c
 *		What the functions for SQL share: names of events, and parts of rows.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"

#include "../common/event_name.h"
#include "sql.h"

Shared *
sql_shared(void)
{
	Shared	   *shared = module_shmem_get_or_error(&shmem_memory);

	/* what we know of our own waits should be in it */
	capture_fold();
	return shared;
}

/* Is the owner of this slot still that process? */
bool
sql_is_live(uint32 number, int pid)
{
	return pid != 0 && ProcGlobal->allProcs[number].pid == pid;
}

const char *
sql_backend_type(int backend_type)
{
	switch (backend_type)
	{
		case PARALLEL_WORKER:
			return "parallel worker";
		case LOGICAL_LAUNCHER:
			return "logical replication launcher";
		default:
			return GetBackendTypeDesc((BackendType) backend_type);
	}
}

const char *
sql_event_type(uint32 event)
{
	const char *type = event ? pgstat_get_wait_event_type(EVENT_NUMBER(event)) : "Other";

	return type ? type : "???";
}

const char *
sql_event_name(uint32 event)
{
	return event ? event_name(EVENT_NUMBER(event)) : "Other";
}

/* wait_event_type, wait_event, idle */
void
sql_put_event(Datum *values, uint32 event)
{
	values[0] = CStringGetTextDatum(sql_event_type(event));
	values[1] = CStringGetTextDatum(sql_event_name(event));
	values[2] = BoolGetDatum(IS_IDLE(event));
}

/* waits, calls, total_time, max_time, histogram */
void
sql_put_counters(Datum *values, const EventStats *stats)
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

/* total_ns, max_ns */
void
sql_put_ns(Datum *values, const EventStats *stats)
{
	values[0] = Int64GetDatum((int64) stats->total_ns);
	values[1] = Int64GetDatum((int64) stats->max_ns);
}

/* Count what a reading had to leave out. */
void
sql_skipped(Shared *shared, uint64 n)
{
	if (n > 0)
		pg_atomic_fetch_add_u64(&shared->skipped, n);
}
