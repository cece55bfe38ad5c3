/*-------------------------------------------------------------------------
 * statement_view.c
 *		Waits by statement, for SQL.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "sql.h"
#include "under_way.h"

PG_FUNCTION_INFO_V1(wait_event_timing_statements);

#define COLUMNS 17
#define READINGS 10				/* of a bucket that changes */

/* False if another process has it. */
static bool
copy_bucket(StatementBucket *bucket, StatementBucket *copy)
{
	if (!statements_lock(bucket))
		return false;
	memcpy(copy, bucket, sizeof(*copy));
	statements_unlock(bucket);
	return true;
}

/* "identity" 0: none */
static void
put_row(FunctionCallInfo fcinfo, const StatementKey *key, const EventStats *stats,
		const UnderWaySum *running, uint64 identity)
{
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {0};

	values[0] = ObjectIdGetDatum(key->role);
	values[1] = ObjectIdGetDatum(key->database);
	values[2] = Int64GetDatum((int64) key->query_id);
	sql_put_event(&values[3], key->event);
	sql_put_counters(&values[6], stats);
	sql_put_ns(&values[11], stats);
	values[13] = Int64GetDatum(running->waits);
	values[14] = Int64GetDatum((int64) running->total_ns);
	values[15] = Int64GetDatum((int64) identity);
	nulls[15] = identity == 0;
	nulls[16] = true;
	sql_put_row(fcinfo, values, nulls);
}

static StatementKey
key_of(const Statement *s)
{
	return (StatementKey) {s->query_id, s->role, s->database, (uint32) s->stats.key, 0};
}

/* What is under way for each entry of a bucket; false: it is to be read again */
static bool
sums_of(UnderWay *under_way, const StatementBucket *bucket, UnderWaySum *sums)
{
	bool		same = true;

	for (int k = 0; k < STATEMENT_WAYS; k++)
	{
		StatementKey key = key_of(&bucket->way[k]);

		if (key.event != 0 && !under_way_sum(under_way, &key, &sums[k]))
			same = false;
	}
	return same;
}

/* A bucket's entries with what is under way for them; false if it is busy */
static bool
read_bucket(StatementBucket *bucket, StatementBucket *copy, UnderWay *under_way,
			UnderWaySum *sums)
{
	if (!copy_bucket(bucket, copy))
		return false;
	for (int i = 0; !sums_of(under_way, copy, sums) && i < READINGS; i++)
	{
		if (!copy_bucket(bucket, copy))
			return false;
	}
	return true;
}

Datum
wait_event_timing_statements(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();
	StatementBucket *copy = palloc(sizeof(StatementBucket));
	UnderWay   *under_way = under_way_read(shared);
	const EventStats none = {0};
	StatementKey key;
	int			skipped = 0;
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS];

	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < shared->nbuckets; i++)
	{
		UnderWaySum sums[STATEMENT_WAYS];

		CHECK_FOR_INTERRUPTS();
		if (!read_bucket(shmem_bucket(shared, i), copy, under_way, sums))
		{
			skipped++;
			continue;
		}
		for (int k = 0; k < STATEMENT_WAYS; k++)
		{
			const Statement *s = &copy->way[k];

			key = key_of(s);
			if (key.event != 0 && sql_may_see(s->role))
				put_row(fcinfo, &key, &s->stats, &sums[k], s->identity);
		}
	}
	while (under_way_next(under_way, &key))
	{
		UnderWaySum sum;

		(void) under_way_sum(under_way, &key, &sum);
		if (sum.total_ns > 0 || sum.waits > 0)
			put_row(fcinfo, &key, &none, &sum, 0);
	}
	memset(nulls, true, sizeof(nulls));
	values[16] = Int32GetDatum(skipped);
	nulls[16] = false;
	sql_put_row(fcinfo, values, nulls);
	sql_skipped(shared, (uint64) skipped);
	return (Datum) 0;
}
