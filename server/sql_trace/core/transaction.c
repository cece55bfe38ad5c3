/*-------------------------------------------------------------------------
 * transaction.c
 *		The transaction under way: that it began is recorded with the first call in it.
 *-------------------------------------------------------------------------
 */
#include "../calls/fused.h"

#include "access/transam.h"

static LocalTransactionId recorded = InvalidLocalTransactionId; /* the one under way */
static int64 began;

/* Record what became of it. */
void
transaction_write(TransactionEvent event, uint64 xid, int64 at)
{
	TransactionRecord record;

	if (fused.open && event == TRANSACTION_BEGIN && fused_transaction_began(at, began))
		return;
	if (fused.open && event == TRANSACTION_COMMIT && fused_transaction_committed(xid, began))
		return;
	record.event = event;
	record.padding = 0;
	record.xid = xid;
	record.start = began;
	(void) record_write(RECORD_TRANSACTION, trace.depth, trace.current, at, &record, sizeof(record));
}

/* A call began; was it the first of its transaction? */
void
transaction_touched(int64 start)
{
	if (MY_LXID == recorded || !LocalTransactionIdIsValid(MY_LXID))
		return;
	recorded = MY_LXID;
	trace.secret_transaction = false;
	began = start;
	transaction_write(TRANSACTION_BEGIN, 0, timeline_now());
}

/* Has it been recorded that one began? */
bool
transaction_is_known(void)
{
	return recorded != InvalidLocalTransactionId;
}

/* It is over. */
void
transaction_over(void)
{
	recorded = InvalidLocalTransactionId;
}
