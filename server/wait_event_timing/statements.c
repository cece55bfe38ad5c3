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

/* The bucket we hold, from one pending wait to the next: mostly it is the same */
static StatementBucket *held;
static Statement *current;
static int64 now;

bool
statements_lock(StatementBucket *bucket)
{
	for (int i = 0; i < LOCK_ATTEMPTS; i++)
	{
		uint32		expected = 0;

		if (pg_atomic_compare_exchange_u32(&bucket->lock, &expected, 1))
			return true;
		pg_spin_delay();
	}
	return false;
}

void
statements_unlock(StatementBucket *bucket)
{
	pg_memory_barrier();
	pg_atomic_write_u32(&bucket->lock, 0);
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
		statements_unlock(held);
	held = NULL;
	current = NULL;
}

static inline bool
matches(const Statement *statement, const Pending *wait)
{
	return statement->query_id == wait->query_id && statement->stats.key == wait->event &&
		statement->role == MyProc->roleId && statement->database == MyProc->databaseId;
}

static Statement *
find(Shared *shared, StatementBucket *bucket, const Pending *wait)
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
	return victim;
}

/* False if the bucket was taken by another process for too long. */
bool
statements_add(Shared *shared, const Pending *wait, uint64 ns)
{
	if (MyProc == NULL)
		return false;
	if (current == NULL || !matches(current, wait))
	{
		uint64		hash = (wait->query_id ^ ((uint64) wait->event << 32) ^ wait->event ^
							((uint64) MyProc->roleId << 20) ^ MyProc->databaseId) *
			UINT64CONST(0x9E3779B97F4A7C15);
		StatementBucket *bucket = shmem_bucket(shared, (uint32) (hash >> 32) & (shared->nbuckets - 1));

		if (bucket != held)
		{
			statements_end();
			if (!statements_lock(bucket))
				return false;
			held = bucket;
		}
		if (now == 0)
			now = clock_ticks(shared->rate.counter);
		current = find(shared, bucket, wait);
		current->last_used = now;
	}
	stats_count(&current->stats, wait, ns);
	return true;
}

void
statements_reset(Shared *shared)
{
	for (uint32 i = 0; i < shared->nbuckets; i++)
	{
		StatementBucket *bucket = shmem_bucket(shared, i);

		/* those who hold it never wait, so neither do we for long */
		while (!statements_lock(bucket))
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(100);
		}
		memset(bucket->way, 0, sizeof(bucket->way));
		statements_unlock(bucket);
	}
	pg_atomic_write_u64(&shared->evictions, 0);
}
