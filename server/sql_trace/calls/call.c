/*-------------------------------------------------------------------------
 * call.c
 *		What all calls share: numbers, counters of blocks and WAL, their record.
 *-------------------------------------------------------------------------
 */
#include "../core/sqltrace.h"

#define SHARED_AT 0
#define LOCAL_TEMP_AT 4
#define WAL_AT 10

/* Add what has been used since. */
void
call_usage_since(const Usage *pg_restrict before, Usage *pg_restrict sum)
{
	const uint64 *pg_restrict blocks = (const uint64 *) &pgBufferUsage;

	for (int i = 0; i < NUSAGE_BLOCKS; i++)
		sum->counter[i] += blocks[i] - before->counter[i];
	sum->counter[NUSAGE_BLOCKS] += pgWalUsage.wal_records - before->counter[NUSAGE_BLOCKS];
	sum->counter[NUSAGE_BLOCKS + 1] += pgWalUsage.wal_bytes - before->counter[NUSAGE_BLOCKS + 1];
}

static bool
any(const Usage *usage, int from, int to)
{
	uint64		bits = 0;

	for (int i = from; i < to; i++)
		bits |= usage->counter[i];
	return bits != 0;
}

/* An error leaves the call. */
void
call_failed(Call *call, int sqlstate)
{
	call->flags |= CALL_FAILED;
	call->sqlstate = (uint32) sqlstate;
}

/* The call has ended. */
void
call_write(const Call *call, int64 end)
{
	CallRecord	record;
	Size		size = sizeof(record);

	if (!trace.on)
		return;					/* it has met a limit */
	record.call_kind = call->kind;
	record.flags = call->flags;
	if (any(&call->usage, SHARED_AT, LOCAL_TEMP_AT))
	{
		record.flags |= CALL_SHARED;
		size += (LOCAL_TEMP_AT - SHARED_AT) * sizeof(uint64);
	}
	if (any(&call->usage, LOCAL_TEMP_AT, WAL_AT))
	{
		record.flags |= CALL_LOCAL_TEMP;
		size += (WAL_AT - LOCAL_TEMP_AT) * sizeof(uint64);
	}
	if (any(&call->usage, WAL_AT, NUSAGE))
	{
		record.flags |= CALL_WAL;
		size += (NUSAGE - WAL_AT) * sizeof(uint64);
	}
	if (call->fetches > 1)
	{
		record.flags |= CALL_SEVERAL;
		size += sizeof(uint64);
	}
	record.sqlstate = call->sqlstate;
	record.parent = call->parent;
	record.text = call->text;
	record.query_id = call->query_id;
	record.plan = call->plan;
	record.execution = call->execution;
	record.start = call->start;
	record.busy = call->busy;
	record.cpu = trace.depth == 0 ? timeline_cpu(end) : -1;
	record.rows = call->rows;
	if (call->parent == 0)
	{
		trace.covered += call->busy;
		trace.last_end = end;
	}
	if (!record_begin(RECORD_CALL, trace.depth, call->number, end, size, &record.header))
		return;
	record_put(&record, sizeof(record));
	if (record.flags & CALL_SHARED)
		record_put(&call->usage.counter[SHARED_AT], (LOCAL_TEMP_AT - SHARED_AT) * sizeof(uint64));
	if (record.flags & CALL_LOCAL_TEMP)
		record_put(&call->usage.counter[LOCAL_TEMP_AT], (WAL_AT - LOCAL_TEMP_AT) * sizeof(uint64));
	if (record.flags & CALL_WAL)
		record_put(&call->usage.counter[WAL_AT], (NUSAGE - WAL_AT) * sizeof(uint64));
	if (record.flags & CALL_SEVERAL)
		record_put(&call->fetches, sizeof(uint64));
	record_end();
}
