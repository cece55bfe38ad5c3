/*-------------------------------------------------------------------------
 * call.h
 *		What all calls share: counters of blocks and WAL, that they fail, and the
 *		transaction that they are in.
 *
 * That a transaction began is recorded with the first call in it.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_CALL_H
#define SQL_TRACE_CALL_H

#include "../core/record.h"

#include "storage/lock.h"
#include "storage/proc.h"

#include "../../common/pg_compat.h"

#pragma GCC visibility push(hidden)

/* of the transaction under way, if it has been recorded that it began */
extern LocalTransactionId transaction_recorded;
extern int64 transaction_start;
extern void transaction_begins(int64 start, int64 now);
extern void transaction_write(TransactionEvent event, uint64 xid, int64 at);
extern bool transaction_is_known(void);
extern void transaction_over(void);

extern void call_failed(Call *call, int sqlstate);
extern void call_ends(Call *call, int depth);

/* Has it not been recorded that the transaction under way began? */
static inline bool
transaction_is_new(void)
{
	return unlikely(MY_LXID != transaction_recorded && LocalTransactionIdIsValid(MY_LXID));
}

/* Counters of this process as they are */
static inline void
call_usage(Usage *usage)
{
	memcpy(usage->counter, &pgBufferUsage, NUSAGE_BLOCKS * sizeof(uint64));
	usage->counter[NUSAGE_BLOCKS] = pgWalUsage.wal_records;
	usage->counter[NUSAGE_BLOCKS + 1] = pgWalUsage.wal_bytes;
}

/* Has nothing been used since these counters? */
static inline bool
call_usage_same(const Usage *usage)
{
	const Two  *now = (const Two *) &pgBufferUsage;
	const Two  *then = (const Two *) usage;
	Two			differs = {0};

#pragma GCC unroll 5
	for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
		differs |= now[i] ^ then[i];
	return !any_used(differs) && pgWalUsage.wal_records == usage->counter[USAGE_WAL] &&
		pgWalUsage.wal_bytes == usage->counter[USAGE_WAL + 1];
}

/*
 * Counters as they were become what has been used since; what has been used so far becomes
 * counters from which to go on.
 */
static inline void
call_usage_turn(Usage *usage)
{
	const Two  *now = (const Two *) &pgBufferUsage;
	Two		   *then = (Two *) usage;

#pragma GCC unroll 5
	for (int i = 0; i < NUSAGE_BLOCKS / 2; i++)
		then[i] = now[i] - then[i];
	usage->counter[USAGE_WAL] = pgWalUsage.wal_records - usage->counter[USAGE_WAL];
	usage->counter[USAGE_WAL + 1] = pgWalUsage.wal_bytes - usage->counter[USAGE_WAL + 1];
}

#pragma GCC visibility pop

#endif							/* SQL_TRACE_CALL_H */
