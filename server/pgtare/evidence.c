/*-------------------------------------------------------------------------
 * evidence.c
 *		What ran in a unit, the proof that an arm's instrument was at work, and
 *		whether it failed.
 *
 * Every arm pays for these observations alike.  They are taken from what the
 * server keeps anyway: the executor's query description, the buffer usage
 * counters, and the messages on their way to the server log.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "executor/instrument.h"

#include "pgtare.h"

static uint32 seen;
static bool error_sent;			/* in the transaction under way, or outside of any */
static BufferUsage usage_before;

static ExecutorEnd_hook_type previous_executor_end;
static emit_log_hook_type previous_emit_log;

static void
note_executor_end(QueryDesc *queryDesc)
{
	if (session.joined)
	{
		seen |= UNIT_EXECUTED;
		if (queryDesc->instrument_options != 0)
			seen |= UNIT_INSTRUMENTED;
		if (QUERY_COUNTERS(queryDesc) != NULL)
			seen |= UNIT_TOTAL_TIMED;
		if (queryDesc->plannedstmt && queryDesc->plannedstmt->queryId != 0)
			seen |= UNIT_QUERY_ID;
	}
	previous_executor_end(queryDesc);
}

static void
note_log(ErrorData *edata)
{
	if (session.joined && edata->output_to_server)
		seen |= UNIT_LOGGED;
	if (previous_emit_log)
		previous_emit_log(edata);
}

/*
 * An error that reached the client has failed its transaction, unless that was
 * rolled back to a savepoint and committed.
 */
static void
note_transaction_end(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT && error_sent)
		seen |= UNIT_ABORTED;
	else if (event != XACT_EVENT_ABORT && event != XACT_EVENT_COMMIT &&
			 event != XACT_EVENT_PREPARE)
		return;
	error_sent = false;
}

void
evidence_error_sent(void)
{
	error_sent = true;
}

void
evidence_install(void)
{
	RegisterXactCallback(note_transaction_end, NULL);
	previous_executor_end = BEFORE_US(ExecutorEnd_hook, standard_ExecutorEnd);
	ExecutorEnd_hook = note_executor_end;
	previous_emit_log = emit_log_hook;
	emit_log_hook = note_log;
}

/* Begin a unit. */
void
evidence_reset(void)
{
	seen = 0;
	error_sent = false;
	usage_before = pgBufferUsage;
}

/* End it: the UNIT_... bits of what was seen. */
uint32
evidence_flags(void)
{
	const BufferUsage *now = &pgBufferUsage;

	if (now->shared_blks_read != usage_before.shared_blks_read ||
		now->shared_blks_written != usage_before.shared_blks_written)
		seen |= UNIT_BLOCKS_READ;
	if (INSTR_TIME_GET_MICROSEC(SHARED_READ_TIME(now)) !=
		INSTR_TIME_GET_MICROSEC(SHARED_READ_TIME(&usage_before)) ||
		INSTR_TIME_GET_MICROSEC(SHARED_WRITE_TIME(now)) !=
		INSTR_TIME_GET_MICROSEC(SHARED_WRITE_TIME(&usage_before)))
		seen |= UNIT_IO_TIMED;
	if (TIMES_BY_SYSTEM_CLOCK())
		seen |= UNIT_SYSTEM_CLOCK;
	return seen | (error_sent ? UNIT_ABORTED : 0);
}
