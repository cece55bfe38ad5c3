/*-------------------------------------------------------------------------
 * under_way.h
 *		Waits of statements that are not in the table of statements yet.
 *-------------------------------------------------------------------------
 */
#ifndef UNDER_WAY_H
#define UNDER_WAY_H

#include "waits.h"

/* Whose waits, and for what */
typedef struct StatementKey
{
	uint64		query_id;
	Oid			role;
	Oid			database;
	uint32		event;
	uint32		unused;			/* 0: keys are compared as bytes */
} StatementKey;

/* What all processes have of one key */
typedef struct UnderWaySum
{
	int64		waits;
	uint64		total_ns;
} UnderWaySum;

typedef struct UnderWay UnderWay;

#pragma GCC visibility push(hidden)

extern UnderWay *under_way_read(Shared *shared);
extern bool under_way_sum(UnderWay *all, const StatementKey *key, UnderWaySum *sum);
extern bool under_way_next(UnderWay *all, StatementKey *key);

#pragma GCC visibility pop

#endif							/* UNDER_WAY_H */
