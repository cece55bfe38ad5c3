/*-------------------------------------------------------------------------
 * row_shared.c
 *		The part of parallel workers in the row sources of a query.
 *
 * PostgreSQL shares instrumentation of nodes only if EXPLAIN asks for it.
 * So the leader offers a place in shared memory, by its process and the text
 * of the statement; a worker finds it, measures as the leader does, and adds
 * what it found to it, node by node, before it reports its end.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "access/parallel.h"
#include "common/hashfn.h"
#include "executor/execParallel.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/proc.h"

#include "../../common/clock.h"
#include "../../common/module_shmem.h"

#define QUERIES 32
#define NODES 128
#define SEGMENTS 16

typedef struct SharedNode
{
	int32		node_id;
	int32		workers;
	RowTotal	total;
} SharedNode;

typedef struct SharedRows
{
	pg_atomic_uint32 leader;	/* its pid, or 0 */
	uint32		text;			/* hash of the statement */
	uint64		offered;		/* the higher the later */
	int32		every;
	bool		counts;
	ClockSource clock;
	RowCosts	costs;
	int32		gathers;
	int32		nsegments;		/* of them that are known */
	uint32		segments[SEGMENTS];
	int32		nnodes;
	SharedNode	nodes[NODES];
} SharedRows;

typedef struct Area
{
	LWLock		lock;
	int			tranche;
	uint64		offers;
	SharedRows	queries[QUERIES];
} Area;

MODULE_LOCK_LEADS(Area);

static void
initialise(void *fresh)
{
	memset(fresh, 0, sizeof(Area));
}

static Size
size(void)
{
	return sizeof(Area);
}

static ModuleShmem memory = {
	"sql_trace row sources", "sql_trace_rows", "3", size, initialise
};

void
row_shared_init(void)
{
	module_shmem_init(&memory);
}

static Area *
reachable(void)
{
	return module_shmem_get(&memory);
}

static uint32
hash_of(const QueryDesc *desc)
{
	const char *text = desc->sourceText ? desc->sourceText : "";

	return hash_bytes((const unsigned char *) text, (int) strlen(text));
}

static bool
has_segment(const SharedRows *place, uint32 segment)
{
	for (int i = 0; i < place->nsegments; i++)
		if (place->segments[i] == segment)
			return true;
	return false;
}

static bool
is_gather(const PlanState *node)
{
	return IsA(node, GatherState) || IsA(node, GatherMergeState);
}

/* What a Gather shares with its workers; 0 before they are there, or after */
static uint32
segment_of(const PlanState *node)
{
	const ParallelExecutorInfo *info = IsA(node, GatherState) ?
		((const GatherState *) node)->pei : ((const GatherMergeState *) node)->pei;

	return info && info->pcxt && info->pcxt->seg ? dsm_segment_handle(info->pcxt->seg) : 0;
}

/* The caller holds the lock. */
static void
note_segments(RowQuery *query)
{
	SharedRows *place = query->shared;

	for (int i = 0; place && i < query->nrows; i++)
	{
		uint32		segment = is_gather(query->rows[i].node) ? segment_of(query->rows[i].node) : 0;

		if (segment != 0 && !has_segment(place, segment) && place->nsegments < SEGMENTS)
			place->segments[place->nsegments++] = segment;
	}
}

/* A node of the leader's plan has been called for the first time. */
void
row_shared_called(Row *row)
{
	Area	   *shared = reachable();

	if (row->query->shared == NULL || shared == NULL || !is_gather(row->node))
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	note_segments(row->query);
	LWLockRelease(&shared->lock);
}

/* The caller holds the lock; the place is nobody's yet. */
static void
describe(SharedRows *place, const RowQuery *query)
{
	place->text = hash_of(query->desc);
	place->every = query->every;
	place->counts = query->counts;
	place->clock = query->clock;
	place->costs = row_costs;
	place->gathers = place->nsegments = place->nnodes = 0;
	for (int i = 0; i < query->nrows; i++)
	{
		const Row  *row = &query->rows[i];

		place->gathers += is_gather(row->node);
		if (!row->leaders || place->nnodes == NODES)
			continue;
		memset(&place->nodes[place->nnodes], 0, sizeof(SharedNode));
		place->nodes[place->nnodes++].node_id = row->node->plan->plan_node_id;
	}
}

/* The leader is about to run a plan that workers may take part in. */
void
row_shared_offer(RowQuery *query)
{
	Area	   *shared = reachable();

	if (shared == NULL || IsParallelWorker() || !query->desc->plannedstmt->parallelModeNeeded)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	/* ours may run within others of this process, whose workers are there already */
	for (RowQuery *each = row_queries; each; each = each->outer)
		note_segments(each);
	for (int i = 0; i < QUERIES && query->shared == NULL; i++)
	{
		SharedRows *place = &shared->queries[i];

		if (pg_atomic_read_u32(&place->leader) != 0)
			continue;
		describe(place, query);
		place->offered = ++shared->offers;
		pg_write_barrier();
		pg_atomic_write_u32(&place->leader, (uint32) MyProcPid);
		query->shared = place;
	}
	LWLockRelease(&shared->lock);
}

/* The caller holds the lock. */
static SharedRows *
find_leaders(Area *shared, const QueryDesc *desc)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;
	uint32		segment = DatumGetUInt32(MyBgworkerEntry->bgw_main_arg);
	SharedRows *last = NULL;

	for (int i = 0; leader && i < QUERIES; i++)
	{
		SharedRows *place = &shared->queries[i];

		if (pg_atomic_read_u32(&place->leader) != (uint32) leader->pid ||
			place->text != hash_of(desc))
			continue;
		if (has_segment(place, segment))
			return place;
		if (place->nsegments < place->gathers && (last == NULL || place->offered > last->offered))
			last = place;
	}
	return last;
}

/* In a worker: how often the leader has calls timed; 0 if not at all. */
int
row_shared_wanted(QueryDesc *desc, bool *counts)
{
	Area	   *shared = reachable();
	SharedRows *place;
	int			every = 0;

	/* what runs within the leader's statement has none itself */
	if (shared == NULL || row_queries != NULL)
		return 0;
	LWLockAcquire(&shared->lock, LW_SHARED);
	place = find_leaders(shared, desc);
	if (place)
	{
		every = place->every;
		*counts = place->counts;
		row_clock_know(place->clock, &place->costs);
	}
	LWLockRelease(&shared->lock);
	return every;
}

/* In a worker whose part has ended */
void
row_shared_publish(RowQuery *query)
{
	Area	   *shared = reachable();
	SharedRows *place;

	if (shared == NULL || !query->collected)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	place = find_leaders(shared, query->desc);
	for (int k = 0; place && k < place->nnodes; k++)
	{
		for (int i = 0; i < query->nresults; i++)
		{
			if (query->results[i].node_id != place->nodes[k].node_id)
				continue;
			row_add(&place->nodes[k].total, &query->results[i].total);
			place->nodes[k].workers++;
			break;
		}
	}
	LWLockRelease(&shared->lock);
}

/* In the leader: what workers found of a node, and how many did */
int
row_shared_workers(RowQuery *query, int node_id, RowTotal *total)
{
	Area	   *shared = reachable();
	int			workers = 0;

	if (shared == NULL || query->shared == NULL)
		return 0;
	LWLockAcquire(&shared->lock, LW_SHARED);
	for (int k = 0; k < query->shared->nnodes; k++)
	{
		SharedNode *node = &query->shared->nodes[k];

		if (node->node_id != node_id)
			continue;
		*total = node->total;
		workers = node->workers;
		break;
	}
	LWLockRelease(&shared->lock);
	return workers;
}

/* The place is free again; called whenever a query's memory goes, after errors as well. */
void
row_shared_withdraw(RowQuery *query)
{
	if (query->shared && reachable())
		pg_atomic_write_u32(&query->shared->leader, 0);
	query->shared = NULL;
}
