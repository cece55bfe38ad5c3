/*-------------------------------------------------------------------------
 * call.c
 *		What all calls share (call.h).
 *-------------------------------------------------------------------------
 */
#include "call.h"
#include "fused.h"
#include "../core/kept.h"
#include "../core/timeline.h"

#include "access/transam.h"

/* The one under way, if it has been recorded that it began */
LocalTransactionId transaction_recorded = InvalidLocalTransactionId;
static int64 began;

/* Record what became of it. */
void
transaction_write(TransactionEvent event, uint64 xid, int64 at)
{
	TransactionRecord record;

	if (fused.open && event == TRANSACTION_COMMIT && fused_transaction_committed(xid, began))
		return;
	record.event = event;
	record.padding = 0;
	record.xid = xid;
	record.start = began;
	(void) record_write(RECORD_TRANSACTION, trace.depth, trace.current, at, &record, sizeof(record));
}

/* The first call of the transaction under way has begun. */
void
transaction_begins(int64 start, int64 now)
{
	transaction_recorded = MY_LXID;
	trace.secret_transaction = false;
	began = start;
	if (!fused.open || !fused_transaction_began(now, start))
		transaction_write(TRANSACTION_BEGIN, 0, now);
}

/* Has it been recorded that one began? */
bool
transaction_is_known(void)
{
	return transaction_recorded != InvalidLocalTransactionId;
}

/* It is over. */
void
transaction_over(void)
{
	if (unlikely(trigger_armed) && trace.on && transaction_is_known())
		trigger_transaction_ended(timeline_now() - began);
	transaction_recorded = InvalidLocalTransactionId;
}

/* Add what has been used since.  Counters of a sum that is not "any" mean nothing. */
void
call_usage_since(const Usage *pg_restrict before, Usage *pg_restrict sum)
{
	/* two counters at a time, as most are the same */
	typedef uint64 Two __attribute__((vector_size(16), aligned(8), may_alias));
	const Two  *now = (const Two *) &pgBufferUsage;
	const Two  *then = (const Two *) before;
	Two		   *to = (Two *) sum;
	Two			used = {0};
	uint64		records = pgWalUsage.wal_records - before->counter[USAGE_WAL];
	uint64		bytes = pgWalUsage.wal_bytes - before->counter[USAGE_WAL + 1];

#pragma GCC unroll 5
	for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
		used |= now[i] ^ then[i];
	if ((used[0] | used[1] | records | bytes) == 0)
		return;
	if (likely(!sum->any))
	{
#pragma GCC unroll 5
		for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
			to[i] = now[i] - then[i];
		sum->counter[USAGE_WAL] = records;
		sum->counter[USAGE_WAL + 1] = bytes;
		sum->any = true;
		return;
	}
#pragma GCC unroll 5
	for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
		to[i] += now[i] - then[i];
	sum->counter[USAGE_WAL] += records;
	sum->counter[USAGE_WAL + 1] += bytes;
}

/* An error leaves the call. */
void
call_failed(Call *call, int sqlstate)
{
	call->flags |= CALL_FAILED;
	call->sqlstate = (uint32) sqlstate;
}
