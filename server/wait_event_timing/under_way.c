/*-------------------------------------------------------------------------
 * under_way.c
 *		Waits of statements that are not in the table of statements yet.
 *
 * A process adds its waits to the table now and then.  What it has not added
 * is in its slot: waits that are over, and the one under way, whose statement
 * the server tells in the process's status.  A reader collects these first, and
 * then reads the table.  If a process has added its waits in the meantime, what
 * was collected of it is dropped: nothing is counted twice.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/backend_status.h"
#include "utils/hsearch.h"

#include "sql.h"
#include "under_way.h"

#define ATTEMPTS 1000
#define NONE (-1)

/* Waits of one process for one key */
typedef struct Part
{
	uint32		slot;
	uint32		changes;		/* of the slot when it was read */
	int64		waits;
	uint64		total_ns;
	int			next;			/* of the same key, or NONE */
} Part;

typedef struct Entry
{
	StatementKey key;			/* first, as the hash table wants it */
	int			first;			/* part, or NONE */
	bool		seen;			/* the table has a row for it */
} Entry;

struct UnderWay
{
	Shared	   *shared;
	HTAB	   *entries;
	Part	   *parts;
	int			nparts;
	int			room;
	bool		scanning;
	HASH_SEQ_STATUS scan;
};

static void
add(UnderWay *all, const StatementKey *key, uint32 slot, uint32 changes, int64 waits, uint64 ns)
{
	bool		found;
	Entry	   *entry = hash_search(all->entries, key, HASH_ENTER, &found);
	Part	   *part;

	if (!found)
	{
		entry->first = NONE;
		entry->seen = false;
	}
	/* a process's own parts come one after the other */
	if (entry->first != NONE && all->parts[entry->first].slot == slot)
	{
		part = &all->parts[entry->first];
		part->waits += waits;
		part->total_ns += ns;
		return;
	}
	if (all->nparts == all->room)
	{
		all->room *= 2;
		all->parts = repalloc(all->parts, all->room * sizeof(Part));
	}
	part = &all->parts[all->nparts];
	*part = (Part) {slot, changes, waits, ns, entry->first};
	entry->first = all->nparts++;
}

/* What the server says that a process runs; 0: nothing.  As statement_of() has it in the process */
static uint64
statement_now(uint32 number, int pid, uint32 event)
{
	volatile PgBackendStatus *status;

	if (IS_IDLE(event) || MyBEEntry == NULL || !HAS_STATUS(number))
		return 0;
	status = MyBEEntry + STATUS_FROM_MINE(number);
	for (int attempt = 0; attempt < ATTEMPTS; attempt++)
	{
		int			before;
		int			after;
		int			owner;
		BackendState state;
		uint64		query_id;

		pgstat_begin_read_activity(status, before);
		owner = status->st_procpid;
		state = status->st_state;
		query_id = (uint64) status->st_query_id;
		pgstat_end_read_activity(status, after);
		if (!pgstat_read_activity_complete(before, after))
			continue;
		if (owner != pid ||
			(WAIT_CLASS(event) == CLASS_CLIENT && state != STATE_RUNNING &&
			 state != STATE_FASTPATH))
			return 0;
		return query_id;
	}
	return 0;
}

/*
 * Copy what comes before the tables of a slot, with no wait beginning or ending
 * in between, and what its process runs.  False if nobody has it, or not soon
 * enough.
 */
static bool
copy_head(const Slot *from, uint32 number, Slot *to, uint64 *query_id, int64 *now)
{
	for (int attempt = 0; attempt < ATTEMPTS; attempt++)
	{
		uint32		changes = pg_atomic_read_u32(unconstify(pg_atomic_uint32 *, &from->changes));
		uint32		turns = from->turns;
		uint32		npending = from->npending;

		if (from->pid == 0)
			return false;
		if ((changes & 1) != 0 || (turns & 1) != 0)
		{
			pg_spin_delay();
			continue;
		}
		pg_read_barrier();
		memcpy(to, from, offsetof(Slot, index));
		*query_id = to->current_event == 0 ? 0 : statement_now(number, to->pid, to->current_event);
		*now = clock_source_read(to->clock);
		pg_read_barrier();
		if (changes == pg_atomic_read_u32(unconstify(pg_atomic_uint32 *, &from->changes)) &&
			changes == pg_atomic_read_u32(&to->changes) &&
			turns == from->turns && turns == to->turns &&
			npending == from->npending && npending == to->npending &&
			to->current_event == from->current_event &&
			to->current_start == from->current_start &&
			to->call_start == from->call_start && to->clock == from->clock)
			return to->pid != 0;
		pg_spin_delay();
	}
	return false;
}

static void
read_slot(UnderWay *all, uint32 number, Slot *copy)
{
	const PGPROC *process = &ProcGlobal->allProcs[number];
	const ClockRate *rate;
	uint64		query_id;
	uint64		ignored = 0;
	int64		now;
	uint32		changes;
	StatementKey key = {0};

	if (!copy_head(shmem_slot(all->shared, number), number, copy, &query_id, &now))
		return;
	key.role = process->roleId;
	key.database = process->databaseId;
	if (!sql_is_live(number, copy->pid) || !sql_may_see(key.role))
		return;
	rate = timing_rate(all->shared, copy->clock);
	changes = pg_atomic_read_u32(&copy->changes);
	for (uint32 i = 0; i < Min(copy->npending, PENDING_WAITS); i++)
	{
		const Pending *wait = &copy->pending[i];

		key.query_id = wait->query_id;
		key.event = wait->event;
		if (WAIT_CLASS(wait->event) != 0 && wait->query_id != 0)
			add(all, &key, number, changes, 1, clock_ns(rate, wait->length, &ignored));
	}
	if (query_id != 0)
	{
		bool		lock = WAIT_CLASS(copy->current_event) == CLASS_LOCK;
		int64		start = lock ? copy->call_start : copy->current_start;

		/* of a wait for a lock that goes on, earlier calls are among those that are over */
		bool		goes_on = lock && copy->call_start != copy->current_start;

		key.query_id = query_id;
		key.event = copy->current_event;
		add(all, &key, number, changes, goes_on ? 0 : 1, clock_ns(rate, now - start, &ignored));
	}
}

/* All that there is now, of roles that the caller may see */
UnderWay *
under_way_read(Shared *shared)
{
	UnderWay   *all = palloc0(sizeof(UnderWay));
	Slot	   *copy = palloc(sizeof(Slot));
	HASHCTL		control = {.keysize = sizeof(StatementKey), .entrysize = sizeof(Entry),
	.hcxt = CurrentMemoryContext};

	all->shared = shared;
	all->entries = hash_create("waits under way", 256, &control,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	all->room = 256;
	all->parts = palloc(all->room * sizeof(Part));
	for (uint32 i = 0; i < shared->nslots; i++)
		read_slot(all, i, copy);
	pfree(copy);
	/* what follows is read after all of it */
	pg_read_barrier();
	return all;
}

/*
 * The sum of a key, whose row in the table has been read before the call.  False
 * if a process has added its waits since they were collected: then these are
 * dropped, and the row is to be read again.
 */
bool
under_way_sum(UnderWay *all, const StatementKey *key, UnderWaySum *sum)
{
	Entry	   *entry = hash_search(all->entries, key, HASH_FIND, NULL);
	bool		all_there = true;

	*sum = (UnderWaySum) {0};
	if (entry == NULL)
		return true;
	entry->seen = true;
	pg_read_barrier();
	for (int *link = &entry->first; *link != NONE;)
	{
		Part	   *part = &all->parts[*link];

		if (pg_atomic_read_u32(&shmem_slot(all->shared, part->slot)->changes) != part->changes)
		{
			*link = part->next;
			all_there = false;
			continue;
		}
		sum->waits += part->waits;
		sum->total_ns += part->total_ns;
		link = &part->next;
	}
	return all_there;
}

/* One key after the other that under_way_sum() was not asked for; false: there is none any more */
bool
under_way_next(UnderWay *all, StatementKey *key)
{
	Entry	   *entry;

	if (!all->scanning)
		hash_seq_init(&all->scan, all->entries);
	all->scanning = true;
	while ((entry = hash_seq_search(&all->scan)) != NULL)
	{
		if (entry->seen)
			continue;
		*key = entry->key;
		return true;
	}
	return false;
}
