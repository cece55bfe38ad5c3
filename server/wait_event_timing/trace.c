/*-------------------------------------------------------------------------
 * trace.c
 *		Messages to the client, statements and transactions in the trace of a process.
 *
 * Where a request ends, waits are folded in.
 *
 * A client's statement is over when the client learns it, not when its plan
 * is: the commit that comes before that message belongs to it.  In the extended
 * protocol the commit comes later, with the Sync; there a statement lasts until
 * the next one begins or the request ends, but for a Flush.  Without a client it
 * is over with its plan.
 *
 * What runs next to the portal of the client (planning, deferred triggers) is
 * marked as nested while a statement is under way.
 *
 * A module that writes a trace of calls next to ours tells of statements itself: if
 * nobody else wants this trace, it has waits only.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "../common/protocol_hooks.h"

#include "access/parallel.h"
#include "access/transam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/backend_status.h"
#include "utils/portal.h"

#include "../common/application.h"
#include "ring_write.h"
#include "waits.h"

/* Messages that tell something; all others only pass, rows among them */
#define TELLING (MESSAGE('1') | MESSAGE('2') | MESSAGE('C') | MESSAGE('s') | MESSAGE('Z'))

#define CPU_READINGS_PER_S 1000	/* at most */

static ExecutorStart_hook_type previous_start;
static ExecutorRun_hook_type previous_run;
static ExecutorFinish_hook_type previous_finish;
static ExecutorEnd_hook_type previous_end;
static ProcessUtility_hook_type previous_utility;
static ProtocolHooks hooks;

static uint64 bound = 0;		/* query identifier of what was bound last in this request */

CpuReading	trace_cpu;
static int64 cpu_read_at = 0;	/* in ticks of ... */
static ClockSource cpu_read_by; /* ... this clock */
static uint64 cpu_valid_for = 0;	/* ticks until the next reading */
static bool followed = false;	/* tracing, when we last looked */

/* Of the client's statement */
static bool under_way = false;
static bool completed = false;		/* its CommandComplete is on its way */
static bool extended = false;	/* the request came by the messages of the extended protocol */
static uint64 rows_done;
static const QueryDesc *own = NULL; /* its plan: only compared */

/* Did nobody but a module that writes a trace of its own request that of the waits? */
static inline bool
only_waits(void)
{
	return capture.asked_for_waits != 0 &&
		pg_atomic_read_u32(&capture.slot->asked) == capture.asked_for_waits &&
		pg_atomic_read_u32(&capture.slot->configured) != CAPTURE_TRACE;
}

/* Are statements marked?  A process keeps its ring when it is traced no more. */
static inline bool
tracing(void)
{
	return unlikely(capture.ring != NULL) &&
		pg_atomic_read_u32(capture.level) == CAPTURE_TRACE && !only_waits();
}

/* The processor time of this process so far: a system call, which costs as much as all else here. */
static void
mark_cpu(int at)
{
	const ClockRate *rate = timing_rate(shmem_get(), capture.clock);

	cpu_read_at = clock_source_read(capture.clock);
	cpu_read_by = capture.clock;
	cpu_valid_for = rate->hz / CPU_READINGS_PER_S;
	capture_mark(RECORD_CPU, at, cpu_reading(&trace_cpu, capture.clock, cpu_read_at, rate));
}

/* The same, if the last is not of just now; also where levels are switched to and fro. */
static void
mark_cpu_at_times(int at)
{
	/* unsigned: the clock may step back */
	if (capture.clock != cpu_read_by ||
		(uint64) (clock_source_read(capture.clock) - cpu_read_at) >= cpu_valid_for)
		mark_cpu(at);
}

static void
mark_end(int at, uint64 rows)
{
	mark_cpu_at_times(at);
	capture_mark(RECORD_STATEMENT_END, at, (int64) rows);
}

/* The level may have changed: what is traced from now on needs a time to count from. */
void
trace_follow_level(void)
{
	bool		now = tracing();

	if (now && !followed)
		mark_cpu_at_times(0);
	followed = now;
}

/* The statement of the client is over. */
static void
end_statement(void)
{
	if (under_way && tracing())
		mark_end(0, rows_done);
	under_way = completed = false;
}

/* Functions run portals, too: those have a name, if not of the kind that no client gives. */
static inline bool
portal_is_clients(void)
{
	return ActivePortal != NULL &&
		(ActivePortal->name[0] == '\0' ||
		 (extended && strncmp(ActivePortal->name, "<unnamed", strlen("<unnamed")) != 0));
}

/* Says nothing of an error: where this is listed, a statement runs. */
static void
within_statement(void *arg)
{
}

/*
 * A statement runs, or its triggers do, until this is taken off the list of what
 * PostgreSQL asks for the context of an error.  Whoever catches an error puts that
 * list back: so none needs to be caught here.
 */
static inline void
enter(ErrorContextCallback *context)
{
	context->callback = within_statement;
	context->previous = error_context_stack;
	error_context_stack = context;
}

static inline void
leave(const ErrorContextCallback *context)
{
	error_context_stack = context->previous;
}

/* How many statements run, one within the other */
int
trace_depth(void)
{
	int			depth = 0;

	for (const ErrorContextCallback *each = error_context_stack; each; each = each->previous)
		depth += each->callback == within_statement;
	return depth;
}

/* Is what begins now at this depth a statement of the client?  A rule only adds to one. */
static bool
is_clients(int depth)
{
	return depth == 0 && MyProcPort != NULL && portal_is_clients() &&
		(!under_way || completed || extended);
}

/* At this depth, that of what runs next to the client's statement */
static inline int
mark_depth(int depth)
{
	return depth == 0 && under_way ? 1 : depth;
}

/* Returns whether it is the client's, and so ends when the client learns it. */
static bool
begin_statement(uint64 query_id)
{
	int			depth = trace_depth();
	bool		clients = is_clients(depth);

	/* until the request ends nobody else may have it */
	if (depth == 0 && likely(!capture.block.rests || recorder_claim()))
		ring_prefetch(capture.ring);
	if (clients)
	{
		end_statement();
		under_way = true;
		rows_done = 0;

		capture_mark(RECORD_STATEMENT_BEGIN, 0, (int64) query_id);
	}
	else
		capture_mark(RECORD_STATEMENT_BEGIN, mark_depth(depth), (int64) query_id);
	return clients;
}

static void
trace_start(QueryDesc *queryDesc, int eflags)
{
	if (MyBackendType != B_BACKEND)
		ring_follow_in_background();
	if (tracing() && begin_statement((uint64) queryDesc->plannedstmt->queryId))
		own = queryDesc;
	else if (queryDesc == own)
		own = NULL;				/* a failure freed that one */
	if (unlikely(explain_innermost != NULL || IsParallelWorker()))
		explain_executor_starts(queryDesc->instrument_options != 0);
	previous_start(queryDesc, eflags);
}

static void
trace_run(RUN_PARAMETERS)
{
	ErrorContextCallback frame;

	/* the client fetches more from a portal, with a request of its own */
	if (queryDesc == own && !under_way && tracing() && trace_depth() == 0)
		(void) begin_statement((uint64) queryDesc->plannedstmt->queryId);
	enter(&frame);
	previous_run(RUN_ARGUMENTS);
	leave(&frame);
	if (queryDesc == own && queryDesc->estate)
		rows_done = queryDesc->estate->es_processed;
}

static void
trace_finish(QueryDesc *queryDesc)
{
	ErrorContextCallback frame;

	enter(&frame);
	previous_finish(queryDesc);
	leave(&frame);
}

static void
trace_end(QueryDesc *queryDesc)
{
	if (queryDesc == own)
		own = NULL;
	else if (tracing())
		mark_end(mark_depth(trace_depth()),
				 queryDesc->estate ? queryDesc->estate->es_processed : 0);
	if (IsParallelWorker() && trace_depth() == 0)
		explain_executor_ends();
	previous_end(queryDesc);
}

/*
 * The identifier of a utility statement.  pg_stat_statements clears it in the
 * plan, also in one that is kept and executed again; the server has reported it
 * before, when the statement was analysed, or bound.
 */
static uint64
utility_query_id(const PlannedStmt *statement)
{
	if (statement->queryId != 0 || trace_depth() > 0)
		return (uint64) statement->queryId;
	if (bound != 0 && pgstat_get_my_query_id() == 0)
		pgstat_report_query_id(bound, false);
	return pgstat_get_my_query_id();
}

/* A request has been answered, but for the flush. */
static void
answered(const char *status)
{
	end_statement();
	bound = 0;
	extended = false;
	if (likely(capture.slot != NULL) || slot_present())
	{
		capture_fold();
		application_follow();
		if (capture.ring != NULL || pg_atomic_read_u32(capture.level) == CAPTURE_TRACE ||
			ring_refused_at != 0)
			ring_answered(status);
		trace_follow_level();
	}
	ended_look();
}

/* A message ends a statement that is traced, or a request. */
static pg_noinline int
noted(char type, const char *body, size_t length)
{
	if (type == 'C' || type == 's')
	{
		completed = true;
		if (!extended)
			end_statement();
	}
	if (type == 'Z')			/* ReadyForQuery */
		answered(body);
	return hooks.chained->putmessage(type, body, length);
}

/* A message to the client is on its way. */
static int
trace_putmessage(char type, const char *body, size_t length)
{
	if (likely(!message_is_of(TELLING, type)))
		return hooks.chained->putmessage(type, body, length);
	if (type == '1' || type == '2') /* ParseComplete, BindComplete */
	{
		extended = true;
		if (type == '2' && MyBEEntry != NULL)
			bound = (uint64) MyBEEntry->st_query_id;
	}
	/* CommandComplete and PortalSuspended end what is under way */
	if (type == 'Z' || unlikely(under_way))
		return noted(type, body, length);
	return hooks.chained->putmessage(type, body, length);
}

/* What was sent is to reach the client, which may take its time before it goes on. */
static int
trace_flush(void)
{
	if (unlikely(completed))
		end_statement();
	return hooks.chained->flush();
}

/* What an EXPLAIN has requested goes with it, also if it fails. */
static pg_noinline void
utility_explain(UTILITY_PARAMETERS)
{
	PG_TRY();
	{
		previous_utility(UTILITY_ARGUMENTS);
	}
	PG_CATCH();
	{
		explain_ends(trace_depth());
		PG_RE_THROW();
	}
	PG_END_TRY();
	explain_ends(trace_depth());
}

static void
trace_utility(UTILITY_PARAMETERS)
{
	const bool	marked = tracing();
	bool		clients = false;
	uint64		query_id = utility_query_id(statement);
	ErrorContextCallback frame;

	if (marked)
		clients = begin_statement(query_id);
	enter(&frame);
	if (IsA(statement->utilityStmt, ExplainStmt))
		utility_explain(UTILITY_ARGUMENTS);
	else
		previous_utility(UTILITY_ARGUMENTS);
	leave(&frame);
	if (clients)
		rows_done = done ? done->nprocessed : 0;
	else if (marked && tracing())
		mark_end(mark_depth(trace_depth()), done ? done->nprocessed : 0);
}

static void
trace_transaction(XactEvent event, void *arg)
{
	/* clients look after each request */
	if (event == XACT_EVENT_PRE_COMMIT && MyBackendType != B_BACKEND)
	{
		if (slot_present())
		{
			slot_follow_leader();
			ring_follow_in_background();
		}
		ended_look();
	}
	if (event == XACT_EVENT_ABORT)
		capture_abandon();
	if (unlikely(explain_innermost != NULL))
		explain_ends(0);
	/* to end what wrote nothing is no event */
	if (event == XACT_EVENT_COMMIT && GetTopTransactionIdIfAny() != InvalidTransactionId &&
		!proc_exit_inprogress && tracing())
		capture_mark(RECORD_COMMIT, 0, 0);
	else if (event == XACT_EVENT_ABORT && tracing())
	{
		int			depth = trace_depth();

		/* at depth 0 it ends the statement; within one, a procedure goes on */
		mark_cpu_at_times(depth);
		capture_mark(RECORD_ABORT, depth, 0);
		if (depth == 0)
			under_way = completed = false;
	}
}

void
trace_install(void)
{
	previous_start = BEFORE_US(ExecutorStart_hook, standard_ExecutorStart);
	ExecutorStart_hook = trace_start;
	previous_run = BEFORE_US(ExecutorRun_hook, standard_ExecutorRun);
	ExecutorRun_hook = trace_run;
	previous_finish = BEFORE_US(ExecutorFinish_hook, standard_ExecutorFinish);
	ExecutorFinish_hook = trace_finish;
	previous_end = BEFORE_US(ExecutorEnd_hook, standard_ExecutorEnd);
	ExecutorEnd_hook = trace_end;
	previous_utility = BEFORE_US(ProcessUtility_hook, standard_ProcessUtility);
	ProcessUtility_hook = trace_utility;
	RegisterXactCallback(trace_transaction, NULL);
	protocol_hooks_install(&hooks, trace_putmessage, trace_flush);
}
