/*-------------------------------------------------------------------------
 * fused.h
 *		One record per request: its calls are kept back until it has been answered.
 *
 * Most requests are one statement that raises no error and runs no other statement.
 * For these, the transaction's begin and end, the calls, the values and the request
 * itself make one record, a quarter the size of separate ones.  Each call still
 * takes its number when it begins.
 *
 * What is kept back lies in the ring's memory, in front of its records, and is
 * always complete.  So a reader sees the request that is open.
 *
 * A request that does not fit is written as separate records: record_flush() first
 * writes what was kept back, and then the other record follows.  Texts and plans
 * are the exception: they go before the record that names them.
 *-------------------------------------------------------------------------
 */
#ifndef FUSED_H
#define FUSED_H

#include "../core/record.h"
#include "../core/ring.h"

#pragma GCC visibility push(hidden)

extern void fused_begin(void);
extern bool fused_transaction_began(int64 at, int64 start);
extern bool fused_transaction_committed(uint64 xid, int64 start);
extern bool fused_binds(uint64 call, uint32 parameters, uint32 entries, const char *values,
						Size size, int64 time);
extern bool fused_end(int status, uint32 messages, int64 cpu, int64 now);
extern bool fused_plain_begins(uint64 text);
extern void fused_spill(void);
extern void call_write(const Call *call, int64 end);

/* open_request.c */
extern uint32 plain_add(FusedRecord *record, uint32 size, const PlainRequest *plain,
						PlainStage stage);
extern Size fused_look(const Ring *ring, uint64 head, char *to);

#pragma GCC visibility pop

#endif							/* FUSED_H */
