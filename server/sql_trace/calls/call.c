/*-------------------------------------------------------------------------
 * call.c
 *		What all calls share: counters of blocks and WAL, and that they fail.
 *-------------------------------------------------------------------------
 */
#include "../core/sqltrace.h"

/* Add what has been used since.  Counters of a sum that is not "any" mean nothing. */
void
call_usage_since(const Usage *pg_restrict before, Usage *pg_restrict sum)
{
	/* two counters at a time, as most are the same */
	typedef uint64 Two __attribute__((vector_size(16), aligned(8), may_alias));
	const Two  *now = (const Two *) &pgBufferUsage;
	const Two  *then = (const Two *) before;
	Two		   *to = (Two *) sum;
	Two			used = {0};
	uint64		records = pgWalUsage.wal_records - before->counter[USAGE_WAL];
	uint64		bytes = pgWalUsage.wal_bytes - before->counter[USAGE_WAL + 1];

#pragma GCC unroll 5
	for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
		used |= now[i] ^ then[i];
	if ((used[0] | used[1] | records | bytes) == 0)
		return;
	if (likely(!sum->any))
	{
#pragma GCC unroll 5
		for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
			to[i] = now[i] - then[i];
		sum->counter[USAGE_WAL] = records;
		sum->counter[USAGE_WAL + 1] = bytes;
		sum->any = true;
		return;
	}
#pragma GCC unroll 5
	for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
		to[i] += now[i] - then[i];
	sum->counter[USAGE_WAL] += records;
	sum->counter[USAGE_WAL + 1] += bytes;
}

/* An error leaves the call. */
void
call_failed(Call *call, int sqlstate)
{
	call->flags |= CALL_FAILED;
	call->sqlstate = (uint32) sqlstate;
}
