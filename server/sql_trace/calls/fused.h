/*-------------------------------------------------------------------------
 * fused.h
 *		What is kept back of a request, to be written as one record (fused.c).
 *-------------------------------------------------------------------------
 */
#ifndef FUSED_H
#define FUSED_H

#include "../core/sqltrace.h"

#pragma GCC visibility push(hidden)

extern void fused_begin(void);
extern bool fused_transaction_began(int64 at, int64 start);
extern bool fused_transaction_committed(uint64 xid, int64 start);
extern bool fused_binds(uint64 call, uint32 parameters, uint32 entries, const char *values,
						Size size, int64 time);
extern bool fused_end(int status, uint32 messages, int64 cpu, int64 now);

#pragma GCC visibility pop

#endif							/* FUSED_H */
