/*-------------------------------------------------------------------------
 * explain.c
 *		EXPLAIN (ANALYZE, WAITS), from PostgreSQL 18 on.
 *
 * The session's counters are copied when the plan starts and compared when it
 * has finished; waits of planning are not in it.  A session that captures
 * nothing does so for this statement.  Parallel workers add theirs to an area
 * of their leader before they report the end of their part.
 *
 * EXPLAIN EXECUTE goes past ExplainOneQuery_hook, so the option itself arms
 * the start of the executor.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "sql.h"

#if HAVE_EXPLAIN_OPTIONS

#include "access/parallel.h"
#include "access/xact.h"
#include "commands/defrem.h"
#include "commands/explain.h"
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/memutils.h"

static int	extension_id;
static explain_validate_options_hook_type previous_validate;
static explain_per_plan_hook_type previous_per_plan;

/* An EXPLAIN (ANALYZE, WAITS) under way: one can run inside what another explains */
typedef struct Explained
{
	struct Explained *outer;
	ExplainState *es;
	int			depth;			/* of the EXPLAIN among nested statements */
	bool		raised;			/* we capture only for its sake */
	uint32		asked;			/* of our slot, when it was raised */
	uint32		level_sets;		/* as well */
	Slot	   *before;			/* counters when the plan started, or NULL */
	ExplainArea *area;			/* for parallel workers, or NULL */
} Explained;

Explained  *explain_innermost = NULL;

static bool
raise_level(void)
{
	uint32		expected = CAPTURE_OFF;

	return pg_atomic_compare_exchange_u32(&capture.slot->level, &expected, CAPTURE_STATS);
}

/* Back to off, unless another session has requested a level since then, or this one has set it. */
static void
lower_level(Explained *mine)
{
	uint32		expected = CAPTURE_STATS;

	if (mine->raised && capture.slot && capture.level_sets == mine->level_sets &&
		pg_atomic_read_u32(&capture.slot->asked) == mine->asked)
	{
		pg_atomic_compare_exchange_u32(&capture.slot->level, &expected, CAPTURE_OFF);
		timing_follow_level();
	}
	mine->raised = false;
}

/* A plan has been explained, or failed. */
static void
forget(Explained *mine)
{
	lower_level(mine);
	if (mine->area)
		pg_atomic_write_u32(&mine->area->pid, 0);
	mine->area = NULL;
	if (mine->before)
		pfree(mine->before);
	mine->before = NULL;
}

static void
disarm(void)
{
	Explained  *mine = explain_innermost;

	forget(mine);
	explain_innermost = mine->outer;
	pfree(mine);
}

/* Called when an EXPLAIN of some depth is over, or failed; and all of them at a transaction's end. */
void
explain_ends(int depth)
{
	while (explain_innermost && explain_innermost->depth >= depth)
		disarm();
}

static void
option_given(ExplainState *es, DefElem *option, ParseState *pstate)
{
	bool	   *wanted = palloc(sizeof(bool));

	*wanted = defGetBoolean(option);
	SetExplainExtensionState(es, extension_id, wanted);
}

/* auto_explain gives options after the executor has started: too late to copy counters. */
static bool
not_in_setting(const char *name, const char *value, NodeTag type)
{
	GUC_check_errdetail("Option WAITS works in EXPLAIN only, not in a setting.");
	return false;
}

static bool
option_wanted(ExplainState *es)
{
	bool	   *wanted = GetExplainExtensionState(es, extension_id);

	return wanted && *wanted;
}

static void
options_known(ExplainState *es, List *options, ParseState *pstate)
{
	Explained  *mine;

	if (previous_validate)
		previous_validate(es, options, pstate);
	if (!option_wanted(es))
		return;
	if (!es->analyze)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("EXPLAIN option %s requires ANALYZE", "WAITS")));
	mine = MemoryContextAllocZero(TopMemoryContext, sizeof(Explained));
	mine->es = es;
	mine->depth = trace_depth();
	mine->outer = explain_innermost;
	explain_innermost = mine;
}

static ExplainArea *
take_area(Shared *shared, int depth)
{
	ExplainArea *found = NULL;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_EXPLAINS && found == NULL; i++)
		if (pg_atomic_read_u32(&shared->explains[i].pid) == 0)
			found = &shared->explains[i];
	if (found)
	{
		memset(found->events, 0, sizeof(found->events));
		found->workers = 0;
		found->depth = depth;
		pg_write_barrier();
		pg_atomic_write_u32(&found->pid, MyProcPid);
	}
	LWLockRelease(&shared->lock);
	return found;
}

/* That of the innermost EXPLAIN of our leader */
static ExplainArea *
area_of_leader(Shared *shared)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;
	ExplainArea *found = NULL;

	for (int i = 0; leader && i < MAX_EXPLAINS; i++)
	{
		ExplainArea *area = &shared->explains[i];

		if (pg_atomic_read_u32(&area->pid) == (uint32) leader->pid &&
			(found == NULL || area->depth > found->depth))
			found = area;
	}
	return found;
}

/* The caller holds the lock. */
static void
add_to_area(ExplainArea *area, const EventStats *event)
{
	for (int k = 0; k < EXPLAIN_EVENTS; k++)
	{
		EventStats *into = &area->events[k];

		if (into->key == 0)
			into->key = event->key;
		if (into->key == event->key)
		{
			stats_merge(into, event);
			return;
		}
	}
}

/* Called when a plan starts, in a parallel worker or with an EXPLAIN: ours, if that requests it. */
void
explain_executor_starts(bool instrumented)
{
	Shared	   *shared = shmem_get();
	Explained  *mine = explain_innermost;

	if (shared == NULL)
		return;
	if (IsParallelWorker())
	{
		if (capture.slot && area_of_leader(shared))
			(void) raise_level();
		return;
	}
	if (mine == NULL || mine->before != NULL || !instrumented)
		return;
	if (!slot_present())
		return;
	capture_fold();
	mine->before = MemoryContextAlloc(TopMemoryContext, sizeof(Slot));
	(void) stats_copy_slot(capture.slot, mine->before);
	mine->area = take_area(shared, mine->depth);
	mine->asked = pg_atomic_read_u32(&capture.slot->asked);
	mine->level_sets = capture.level_sets;
	mine->raised = raise_level();
}

/* Called when the outermost plan of a parallel worker ends: it hands over its counters. */
void
explain_executor_ends(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *slot = capture.slot;
	ExplainArea *leaders;

	if (shared == NULL || slot == NULL)
		return;
	capture_fold();
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	leaders = area_of_leader(shared);
	for (uint32 i = 0; leaders && i < slot->nevents; i++)
		add_to_area(leaders, &slot->events[i]);
	if (leaders)
		leaders->workers++;
	LWLockRelease(&shared->lock);
}

/* What the workers of a statement within ours waited for counts for ours as well. */
static void
pass_to_outer(Shared *shared, const Explained *inner)
{
	ExplainArea *outer = inner->outer ? inner->outer->area : NULL;

	if (outer == NULL || inner->area == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int k = 0; k < EXPLAIN_EVENTS && inner->area->events[k].key != 0; k++)
		add_to_area(outer, &inner->area->events[k]);
	outer->workers += inner->area->workers;
	LWLockRelease(&shared->lock);
}

/* What one event added since the copy was made */
static EventStats
difference(const EventStats *now, const Slot *then)
{
	EventStats	d = *now;

	for (uint32 i = 0; i < then->nevents; i++)
	{
		if (then->events[i].key == now->key)
		{
			d.waits -= then->events[i].waits;
			d.calls -= then->events[i].calls;
			d.total_ns -= then->events[i].total_ns;
			break;
		}
	}
	return d;
}

static int
by_time(const void *a, const void *b)
{
	const EventStats *x = a;
	const EventStats *y = b;

	return x->total_ns < y->total_ns ? 1 : x->total_ns > y->total_ns ? -1 : 0;
}

static void
print_event(ExplainState *es, const EventStats *event)
{
	const char *type = sql_event_type((uint32) event->key);
	const char *name = sql_event_name((uint32) event->key);
	double		ms = (double) event->total_ns / 1e6;

	if (es->format == EXPLAIN_FORMAT_TEXT)
	{
		ExplainIndentText(es);
		appendStringInfo(es->str, "%s %s: waits=%" PRIu64 " time=%.3f ms\n", type, name,
						 event->waits, ms);
		return;
	}
	ExplainOpenGroup("Wait", NULL, true, es);
	ExplainPropertyText("Wait Event Type", type, es);
	ExplainPropertyText("Wait Event", name, es);
	ExplainPropertyUInteger("Waits", NULL, event->waits, es);
	ExplainPropertyUInteger("Calls", NULL, event->calls, es);
	ExplainPropertyFloat("Time", "ms", ms, 3, es);
	ExplainCloseGroup("Wait", NULL, true, es);
}

static void
print_events(ExplainState *es, EventStats *events, int n, int workers)
{
	qsort(events, n, sizeof(EventStats), by_time);
	if (es->format == EXPLAIN_FORMAT_TEXT)
	{
		ExplainIndentText(es);
		appendStringInfoString(es->str, n > 0 ? "Waits:" : "Waits: none");
		if (workers > 0)
			appendStringInfo(es->str, " (with those of %d parallel workers)", workers);
		appendStringInfoChar(es->str, '\n');
		es->indent++;
	}
	else
	{
		ExplainPropertyInteger("Workers With Waits", NULL, workers, es);
		ExplainOpenGroup("Waits", "Waits", false, es);
	}
	for (int i = 0; i < n; i++)
		print_event(es, &events[i]);
	if (es->format == EXPLAIN_FORMAT_TEXT)
		es->indent--;
	else
		ExplainCloseGroup("Waits", "Waits", false, es);
}

static void
plan_explained(PlannedStmt *plannedstmt, IntoClause *into, ExplainState *es,
			   const char *queryString, ParamListInfo params, QueryEnvironment *queryEnv)
{
	EventStats *events;
	Slot	   *slot = capture.slot;
	Explained  *mine = explain_innermost;
	Slot	   *before;
	ExplainArea *area;
	int			n = 0;
	int			workers = 0;

	if (previous_per_plan)
		previous_per_plan(plannedstmt, into, es, queryString, params, queryEnv);
	if (mine == NULL || mine->es != es || mine->before == NULL || slot == NULL)
		return;
	before = mine->before;
	area = mine->area;
	capture_fold();
	/* after a reset only what came later is left */
	if (before->reset_done != slot->reset_done)
		before->nevents = 0;
	events = palloc(sizeof(EventStats) * (SLOT_EVENTS + EXPLAIN_EVENTS));
	for (uint32 i = 0; i < slot->nevents; i++)
	{
		events[n] = difference(&slot->events[i], before);
		if (events[n].waits > 0)
			n++;
	}
	for (int k = 0; area && k < EXPLAIN_EVENTS && area->events[k].key != 0; k++)
	{
		int			i = 0;

		while (i < n && events[i].key != area->events[k].key)
			i++;
		if (i == n)
		{
			memset(&events[n], 0, sizeof(EventStats));
			events[n++].key = area->events[k].key;
		}
		stats_merge(&events[i], &area->events[k]);
	}
	if (area)
		workers = area->workers;
	pass_to_outer(shmem_get(), mine);
	forget(mine);
	print_events(es, events, n, workers);
	pfree(events);
}

void
explain_install(void)
{
	extension_id = GetExplainExtensionId("wait_event_timing");
	REGISTER_EXPLAIN_OPTION("waits", option_given, not_in_setting);
	previous_validate = explain_validate_options_hook;
	explain_validate_options_hook = options_known;
	previous_per_plan = explain_per_plan_hook;
	explain_per_plan_hook = plan_explained;
}

#endif
