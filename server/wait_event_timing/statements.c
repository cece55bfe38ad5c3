/*-------------------------------------------------------------------------
 * statements.c
 *		Counters by statement and event, in a table of bounded size.
 *
 * Waits are folded in from inside other waits, where no lock may be waited
 * for.  So the table consists of small buckets, each with a word that is taken
 * if it is free; if it is not, the wait is counted as missed.  A statement that
 * finds its bucket full takes the place of the one unused for longest.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "waits.h"

#define LOCK_ATTEMPTS 200
#define RESET_PAUSE_US 100
#define RESET_PAUSES 10000		/* in all: about a second */

/*
 * The bucket we hold, or are about to, from one pending wait to the next: mostly
 * it is the same.  It is here before its word is taken, as a handler can end
 * the process at any point.
 */
static StatementBucket *volatile held;
static StatementBucket *volatile looked_at; /* the same of a process that looks at the table */
static Statement *current;
static int64 now;

static bool
take(StatementBucket *bucket)
{
	for (int i = 0; i < LOCK_ATTEMPTS; i++)
	{
		uint32		expected = 0;

		if (pg_atomic_compare_exchange_u32(&bucket->lock, &expected, (uint32) MyProcPid))
			return true;
		pg_spin_delay();
	}
	return false;
}

static void
let_go(StatementBucket *bucket)
{
	if (pg_atomic_read_u32(&bucket->lock) != (uint32) MyProcPid)
		return;
	pg_memory_barrier();
	pg_atomic_write_u32(&bucket->lock, 0);
}

bool
statements_lock(StatementBucket *bucket)
{
	looked_at = bucket;
	if (take(bucket))
		return true;
	looked_at = NULL;
	return false;
}

void
statements_unlock(StatementBucket *bucket)
{
	let_go(bucket);
	looked_at = NULL;
}

void
statements_begin(Shared *shared)
{
	held = NULL;
	current = NULL;
	now = 0;
}

void
statements_end(void)
{
	if (held)
		let_go(held);
	held = NULL;
	current = NULL;
}

/* Called when the process ends, or was thrown out of what it did: it holds nothing any more. */
void
statements_abandon(void)
{
	statements_end();
	if (looked_at)
		statements_unlock(looked_at);
}

static inline bool
matches(const Statement *statement, const Pending *wait)
{
	return statement->query_id == wait->query_id && statement->stats.key == wait->event &&
		statement->role == MyProc->roleId && statement->database == MyProc->databaseId;
}

static Statement *
find(Shared *shared, StatementBucket *bucket, uint32 number, const Pending *wait)
{
	Statement  *victim = NULL;

	for (int i = 0; i < STATEMENT_WAYS; i++)
	{
		Statement  *way = &bucket->way[i];

		if (matches(way, wait))
			return way;
		if (victim == NULL || way->stats.key == 0 ||
			(victim->stats.key != 0 && way->last_used < victim->last_used))
			victim = way;
	}
	if (victim->stats.key != 0)
		pg_atomic_fetch_add_u64(&shared->evictions, 1);
	memset(victim, 0, sizeof(*victim));
	victim->query_id = wait->query_id;
	victim->role = MyProc->roleId;
	victim->database = MyProc->databaseId;
	victim->stats.key = wait->event;
	/* buckets are fewer than 2^20 */
	victim->identity = ((uint64) ++bucket->made << 20) | number;
	return victim;
}

/*
 * Make the entry of this wait the current one; false if its bucket was taken by
 * another process for too long.  Not inline, as other waits would pay for it.
 */
static pg_noinline bool
change_entry(Shared *shared, const Pending *wait)
{
	uint64		hash = (wait->query_id ^ ((uint64) wait->event << 32) ^ wait->event ^
						((uint64) MyProc->roleId << 20) ^ MyProc->databaseId) *
		UINT64CONST(0x9E3779B97F4A7C15);
	uint32		number = (uint32) (hash >> 32) & (shared->nbuckets - 1);
	StatementBucket *bucket = shmem_bucket(shared, number);

	if (bucket != held)
	{
		statements_end();
		held = bucket;
		if (!take(bucket))
		{
			held = NULL;
			return false;
		}
	}
	if (now == 0)
		now = clock_ticks(shared->rate.counter);
	current = find(shared, bucket, number, wait);
	current->last_used = now;
	return true;
}

/* False if there was no room for the wait in time. */
bool
statements_add(Shared *shared, const Pending *wait, uint64 ns)
{
	if (MyProc == NULL)
		return false;
	if ((current == NULL || !matches(current, wait)) && !change_entry(shared, wait))
		return false;
	stats_count(&current->stats, wait, ns);
	return true;
}

/* Those that hold a bucket never wait, but one that is stopped would hold us up for ever. */
void
statements_reset(Shared *shared)
{
	int			pauses = RESET_PAUSES;
	int			left_out = 0;

	for (uint32 i = 0; i < shared->nbuckets; i++)
	{
		StatementBucket *bucket = shmem_bucket(shared, i);

		bool		taken;

		while (!(taken = statements_lock(bucket)) && pauses-- > 0)
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(RESET_PAUSE_US);
		}
		if (!taken)
		{
			left_out++;
			continue;
		}
		memset(bucket->way, 0, sizeof(bucket->way));
		statements_unlock(bucket);
	}
	pg_atomic_write_u64(&shared->evictions, 0);
	if (left_out > 0)
		ereport(WARNING,
				(errmsg("%d of %u parts of the table of statements were not reset", left_out,
						shared->nbuckets),
				 errdetail("A process that is stopped, or gets no processor, was writing there.")));
}
