/*-------------------------------------------------------------------------
 * record.h
 *		Writing records, and what waits to be written before the next one.
 *
 * Two things may be kept back: the request under way (calls/fused.c), and younger
 * than all of that, fetches in a row (calls/fetches.c).  Both leave a function
 * here, which any other record calls first; so this part needs neither.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_RECORD_H
#define SQL_TRACE_RECORD_H

#include "postgres.h"

#include "executor/instrument.h"

#include "records.h"

/* Counters of blocks and WAL, in the order of a CALL's groups */
#define NUSAGE 12
#define NUSAGE_BLOCKS 10
#define USAGE_SHARED 0			/* where each group begins */
#define USAGE_LOCAL_TEMP 4
#define USAGE_WAL 10
typedef struct Usage
{
	uint64		counter[NUSAGE];
} Usage;

StaticAssertDecl(offsetof(BufferUsage, shared_blks_hit) == 0 &&
				 offsetof(BufferUsage, local_blks_hit) == 4 * sizeof(uint64) &&
				 offsetof(BufferUsage, temp_blks_read) == 8 * sizeof(uint64) &&
				 offsetof(BufferUsage, temp_blks_written) == 9 * sizeof(uint64),
				 "blocks are counted in the order of a CALL's groups");

/* What is known of a call; written when it has ended */
typedef struct Call
{
	CallKind	kind;
	uint16		flags;
	uint32		sqlstate;
	uint64		number;
	uint64		parent;
	uint64		text;
	int64		query_id;
	uint64		plan;
	uint64		execution;
	int64		start;
	int64		busy;
	uint64		rows;
	uint64		fetches;		/* in one record; more than 1: several */
	Usage		usage;
} Call;

/* What is kept back of the request under way */
typedef struct Fused
{
	bool		open;			/* what happens is kept back */
	bool		named;			/* a call has told its text */
	bool		plain;			/* there has been a plain request (../calls/plain.h) */
	bool		last_is_commit; /* among the calls */
	bool		committed;
	uint32		size;			/* of the record so far */
	uint64		first;			/* number of the first call of the request */
} Fused;

#pragma GCC visibility push(hidden)

extern Fused fused;
extern int64 record_time;		/* of the last one */
extern void (*record_kept_back) (void); /* writes what is kept back of the request */
extern void (*record_held_back) (void); /* writes the fetches that are held back, or NULL */

extern bool record_begin(RecordKind kind, int depth, uint64 call, int64 time, Size size,
						 RecordHeader *header);
extern bool record_write_with(RecordKind kind, int depth, uint64 call, int64 time, void *record,
							  Size size, const void *rest, Size rest_size);
extern bool record_write_ahead(RecordKind kind, uint64 call, void *record, Size size,
							   const void *rest, Size rest_size);
extern void record_call(const Call *call, int depth, int64 end, int64 cpu);

/* Counters two at a time */
typedef uint64 Two __attribute__((vector_size(16), aligned(8), may_alias));

static inline bool
any_used(Two counters)
{
	return (counters[0] | counters[1]) != 0;
}

/* The counters of a call, where they are to be; returns what follows them. */
static inline uint64 *
add_usage(uint64 *to, const Usage *usage, uint16 *flags)
{
	const Two  *from = (const Two *) usage;
	Two		   *put = (Two *) to;

	StaticAssertStmt(USAGE_LOCAL_TEMP == 4 && USAGE_WAL == 10 && NUSAGE == 12,
					 "groups of two, three and one pair");
	if (any_used(from[0] | from[1]))
	{
		*flags |= CALL_SHARED;
		*put++ = from[0];
		*put++ = from[1];
	}
	if (likely(!any_used(from[2] | from[3] | from[4] | from[5])))
		return (uint64 *) put;
	if (any_used(from[2] | from[3] | from[4]))
	{
		*flags |= CALL_LOCAL_TEMP;
		*put++ = from[2];
		*put++ = from[3];
		*put++ = from[4];
	}
	if (any_used(from[5]))
	{
		*flags |= CALL_WAL;
		*put++ = from[5];
	}
	return (uint64 *) put;
}

/* Write a record of fixed size, whose header is filled in. */
static inline void
record_write(RecordKind kind, int depth, uint64 call, int64 time, void *record, Size size)
{
	(void) record_write_with(kind, depth, call, time, record, size, NULL, 0);
}

static inline void
record_flush(void)
{
	if (fused.open)
		record_kept_back();
	if (record_held_back)
		record_held_back();
}

#pragma GCC visibility pop

#endif							/* SQL_TRACE_RECORD_H */
