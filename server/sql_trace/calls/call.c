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
int64		transaction_start;		/* of that one, or of the last */

/* Record what became of it. */
void
transaction_write(TransactionEvent event, uint64 xid, int64 at)
{
	TransactionRecord record;

	if (fused.open && event == TRANSACTION_COMMIT && fused_transaction_committed(xid, transaction_start))
		return;
	record.event = event;
	record.padding = 0;
	record.xid = xid;
	record.start = transaction_start;
	record_write(RECORD_TRANSACTION, trace.depth, trace.current, at, &record, sizeof(record));
}

/* The first call of the transaction under way has begun. */
void
transaction_begins(int64 start, int64 now)
{
	transaction_recorded = MY_LXID;
	trace.secret_transaction = false;
	transaction_start = start;
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
		trigger_transaction_ended(timeline_now() - transaction_start);
	transaction_recorded = InvalidLocalTransactionId;
}

/* An error leaves the call. */
void
call_failed(Call *call, int sqlstate)
{
	call->flags |= CALL_FAILED;
	call->sqlstate = (uint32) sqlstate;
}

/* A call of this depth is over, which held what it called within it. */
void
call_ends(Call *call, int depth)
{
	int64		now;

	trace.depth = depth;
	trace.current = call->parent;
	call_usage_turn(&call->usage);
	now = timeline_now();
	call->busy = now - call->start;
	call_write(call, now);
}
