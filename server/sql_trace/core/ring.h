/*-------------------------------------------------------------------------
 * ring.h
 *		The ring of a session: where its records are.
 *
 * A ring has one writer, its session, which takes no lock.  Readers take none
 * either: they copy, and look afterwards at whether the copy was overwritten under
 * their hands (ring.c).
 *
 * Whoever asks for a trace gets a ring in a dynamic segment of its own.  A ring
 * that nobody asked for, but the recorder, is in an area of the main segment
 * (../../common/ring_area.h): it begins small and grows, and its session claims it
 * as a request begins and lets it rest when that has been answered, so that others
 * who need memory may take it (recorder_ring.c).
 *
 * The memory of all other rings is counted together with those of other modules
 * (../../common/ring_memory.h).  A ring is made where the session holds nothing
 * and an error can be caught (ring_make.c).
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_RING_H
#define SQL_TRACE_RING_H

#include "postgres.h"

#include "../../common/ring_area.h"
#include "record.h"
#include "records.h"
#include "shmem.h"
#include "trace.h"

#define SMALLEST_RING_KB 64

/* How far a plain request has come (../calls/plain.h) */
typedef enum PlainStage
{
	PLAIN_NONE,
	PLAIN_STARTED,
	PLAIN_BOUND,
	PLAIN_RUNNING,
	PLAIN_RAN,
	PLAIN_ANSWERED,				/* before its end, as a portal lives until the Sync */
	PLAIN_ENDED,
	PLAIN_COMMITTED
} PlainStage;

/*
 * What is known of a plain request, and no item of its record yet.  What belongs to a
 * stage does not change once that has been reached.
 */
typedef struct PlainRequest
{
	uint32		stage;			/* PlainStage */
	uint32		bound;			/* 1: by a Bind message that has been answered */
	uint64		number;			/* of the execution; those of its bind and its commit follow */
	uint64		text;
	int64		query_id;
	uint64		plan;
	int64		bind_query_id;
	int64		bind_start;
	int64		bind_busy;
	int64		start;			/* of the execution; where that of a bind ends */
	int64		end;
	int64		busy;			/* while it is open, and "usage", too: those to count from */
	uint64		rows;
	Usage		usage;
	int64		commit_start;
	int64		commit_end;
	uint64		xid;
	int64		transaction;	/* when it began */
} PlainRequest;

/*
 * The request under way, as far as it is kept back: the record that it is going to
 * be.  Only its session writes, and only adds, until it begins anew.
 */
#define FUSED_ROOM 1024

typedef struct OpenRequest
{
	uint32		generation;		/* of what is kept back */
	uint32		size;			/* 0: nothing is */
	PlainRequest plain;
	union
	{
		FusedRecord record;
		char		bytes[FUSED_ROOM];
	};
} OpenRequest;

/*
 * Positions count bytes ever written.  [tail, head) holds whole records; the
 * owner moves "tail" before it overwrites, and "head" after it has written.
 */
typedef struct Ring
{
	pg_atomic_uint64 head;
	char		padding1[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint64)];
	pg_atomic_uint64 tail;
	pg_atomic_uint64 drained;	/* how far a reader has come */
	char		padding2[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint64)];
	uint64		size;			/* power of two */
	TimestampTz started;
	SessionRecord session;
	char		padding3[PG_CACHE_LINE_SIZE];
	OpenRequest open;
	char		data[FLEXIBLE_ARRAY_MEMBER];
} Ring;

StaticAssertDecl(offsetof(Ring, data) <= RING_PIECE_HEADER, "a block has room for the header");

typedef struct RingCopy
{
	uint64		position;		/* of the first record */
	char	   *data;
	Size		size;			/* of whole records */
	uint64		next;			/* where to go on, past a record for which there was no room */
	bool		sound;			/* else no record begins there */
} RingCopy;

#pragma GCC visibility push(hidden)

/* ring.c */
extern void ring_reset(void);
extern uint64 ring_head(void);
extern bool ring_begins_record(const Ring *ring, uint64 position);
extern RingCopy ring_copy(Ring *ring, uint64 from, char *buffer, Size room);
extern void ring_note_drained(Ring *ring, uint64 position);
extern void ring_read(const Ring *ring, uint64 from, uint64 n, char *to);

/* ring_make.c */
extern bool ring_open(bool recorder);
extern bool ring_rest(bool traced, char status);
extern void ring_leave(void);

/* recorder_ring.c */
extern int	recorder_ring_kb;	/* setting: to which it grows */
extern RingBlock recorder_block;	/* of our ring, if it is in the area */
extern uint64 recorder_grow_at; /* position from which on it should grow */
extern bool recorder_claim(void);
extern void recorder_may_grow(void);
extern void recorder_grow(void *unused);

/* Is the record that begins here in our ring still whole? */
static inline bool
ring_holds(uint64 position)
{
	return position >= pg_atomic_read_u64(&trace.ring->tail);
}

/* When our ring was last written */
static inline TimestampTz
ring_last_written(void)
{
	return trace.ring->started + trace.last_end / 1000;
}

/* Nobody writes to our ring, which is in the area, for now. */
static inline void
recorder_let_rest(void)
{
	ring_block_rest(&recorder_block, ring_last_written());
}

#pragma GCC visibility pop

#endif							/* SQL_TRACE_RING_H */
