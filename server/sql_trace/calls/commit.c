/*-------------------------------------------------------------------------
 * commit.c
 *		Calls of commit and rollback: from where deferred triggers have run, to the end.
 *-------------------------------------------------------------------------
 */
#include "fetches.h"
#include "fused.h"
#include "plain.h"
#include "request.h"
#include "../core/module.h"
#include "../core/shmem.h"

#include "access/xact.h"
#include "storage/ipc.h"

/* The commit under way; number 0: none.  Of its fields, those that are not set stay 0. */
static Call commit = {.kind = CALL_COMMIT};
static uint64 commit_xid;

static uint64
xid_so_far(void)
{
	return U64FromFullTransactionId(GetTopFullTransactionIdIfAny());
}

static pg_noinline void
commit_begins(void)
{
	commit.start = timeline_now();
	commit.number = plain.stage == PLAIN_ENDED ? ++trace.calls :
		call_begins(commit.start, commit.start);
	commit.parent = trace.current;
	commit.text = trace.text;
	commit_xid = xid_so_far();
	call_usage(&commit.usage);
}

static pg_noinline void
commit_ends(TransactionEvent event)
{
	int64		now;

	if (unlikely(executions != NULL || series.running))
		execute_forget(0, 0);
	now = timeline_now();
	if (plain.stage == PLAIN_ENDED && event == TRANSACTION_COMMIT && call_usage_same(&commit.usage))
		plain_committed(&commit, now, commit_xid);
	else
	{
		plain_else();
		call_usage_turn(&commit.usage);
		commit.busy = now - commit.start;
		call_write(&commit, now);
		if (trace.on)
			transaction_write(event, commit_xid, now);
	}
	commit.number = 0;
	transaction_over();
}

static void
aborted(void)
{
	Call		call = {.kind = CALL_ROLLBACK,.flags = CALL_ESTIMATED};
	int64		now;

	plain_else();
	execute_forget(0, CALL_ABORTED);
	commit.number = 0;
	if (trace.on && transaction_is_known())
	{
		now = timeline_now();
		call.number = ++trace.calls;
		call.parent = trace.current;
		call.text = trace.text;
		/* nothing else of the request may have been recorded */
		call.start = trace.current == 0 ? Max(request_message_arrived(), trace.last_end) : now;
		call.busy = now - call.start;
		call_write(&call, now);
		if (trace.on)
			transaction_write(TRANSACTION_ABORT, xid_so_far(), now);
	}
	transaction_over();
}

static void
transaction_event(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
	{
		/* as it ends, a process removes temporary tables in a transaction of its own */
		if (trace.on && !proc_exit_inprogress)
			commit_begins();
		/* of clients, requests do that */
		if (!trace.client)
			ended_look();
	}
	else if ((event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE) && commit.number != 0)
		commit_ends(event == XACT_EVENT_COMMIT ? TRANSACTION_COMMIT : TRANSACTION_PREPARE);
	else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE)
		/* its beginning may have been recorded, in another request */
		transaction_recorded = InvalidLocalTransactionId;
	else if (event == XACT_EVENT_ABORT)
		aborted();
	/* parallel workers are not traced */
}

static void
subtransaction_event(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	plain_else();
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		execute_inherit(GetCurrentTransactionNestLevel());
	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	execute_forget(GetCurrentTransactionNestLevel(), CALL_ABORTED);
	if (trace.on && transaction_is_known())
		transaction_write(TRANSACTION_SUBABORT, 0, timeline_now());
}

void
commit_init(void)
{
	RegisterXactCallback(transaction_event, NULL);
	RegisterSubXactCallback(subtransaction_event, NULL);
}
