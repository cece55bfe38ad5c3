/*-------------------------------------------------------------------------
 * ring_area.h
 *		An area of the server's main shared memory, in which sessions have rings
 *		that nobody empties: a budget for all of them.
 *
 * The area consists of pieces.  A block is one piece, or two, four, eight that lie
 * side by side (a buddy allocator, under a lock).  Each block that is taken gets a
 * number that no other ever has; the number and the place make the ring's handle.
 *
 * A block has an owner.  It claims the block before it writes to it, and lets it
 * rest when it has done so.  If the area is used up, whoever needs a piece takes the
 * block that has rested for longest, unless that was written a moment ago or is
 * being read.  Owner and taker decide by one word: the owner's claim fails if the
 * block has been taken, and a block that is claimed cannot be taken.
 *
 * Rings begin with one piece, which is small, so that many sessions can have one.
 * Those that grow leave some of the area to those that begin.
 *
 * A reader holds a block for as long as it reads.  If its owner gives up the block
 * meanwhile, the memory goes to nobody else until the reader has let go of it.
 *
 * The library that has the area offers it to others in the same process:
 * find_rendezvous_variable(RING_AREA_OFFER); the name carries the version of
 * the structures.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_RING_AREA_H
#define PGTARE_RING_AREA_H

#include "postgres.h"

#include "port/atomics.h"
#include "utils/timestamp.h"

#include "ring_place.h"

#define RING_AREA_OFFER "sql_trace/ring area/2"

/* Room for records in a piece, a power of two, and for a ring's header in front of them */
#define RING_PIECE ((uint64) 16 * 1024)
#define RING_PIECE_HEADER ((uint64) 2 * 1024)

/* A block that was written within this time is not taken from its owner. */
#define RING_REST_US (2 * USECS_PER_SEC)

/* A block, as its owner knows it */
typedef struct RingBlock
{
	RingHandle	handle;			/* 0: none */
	uint64		idle;			/* "state" while it rests; one more while it is claimed */
	void	   *memory;			/* room for the header of the ring, and for ... */
	uint64		room;			/* ... records: a power of two */
	pg_atomic_uint64 *state;
	pg_atomic_uint64 *used;		/* when it was last written */
	bool		rests;
} RingBlock;

typedef struct RingAreaUse
{
	uint64		bytes;
	uint64		free_bytes;
	uint64		rings;
	uint64		gave_way;		/* rings that were taken from their owners */
	uint64		refused;		/* rings for which there was no room */
} RingAreaUse;

typedef struct RingAreaOffer
{
	/*
	 * A block of zeros with room for so much, claimed.  A ring that begins gets one
	 * piece, for which another owner may have to make way; one that grows has to do
	 * with what is free, but for a share.  False: there is none.
	 */
	bool		(*take) (uint64 room, bool begins, RingBlock *block);

	/* The owner gives it up, or those who list it do. */
	void		(*free) (RingHandle handle);

	/* To read it; NULL: it has been given up.  Until it is let go of, it stays as it is. */
	void	   *(*hold) (RingHandle handle);
	void		(*let_go) (RingHandle handle);

	/* Has it an owner, or is it listed? */
	bool		(*is_there) (RingHandle handle);

	RingAreaUse (*use) (void);
} RingAreaOffer;

#pragma GCC visibility push(hidden)

/* ring_area.c, of the library that has the area: called when the server loads it */
extern void ring_area_init(uint64 bytes);

/* ring_place.c: the area, or NULL if this server has none */
extern const RingAreaOffer *ring_area(void);

#pragma GCC visibility pop

/* Its owner is about to use it.  False: it has been taken, and must not be looked at. */
static inline bool
ring_block_claim(RingBlock *block)
{
	uint64		idle = block->idle;

	if (!block->rests)
		return true;
	block->rests = false;
	if (likely(pg_atomic_compare_exchange_u64(block->state, &idle, idle + 1)))
		return true;
	block->handle = 0;
	return false;
}

/*
 * Its owner, which wrote to it last at this time, does not use it for now; or
 * leaves it to those who list it, and who may have given it up already.
 */
static inline void
ring_block_rest(RingBlock *block, TimestampTz used)
{
	uint64		claimed = block->idle + 1;

	pg_atomic_write_u64(block->used, (uint64) used);
	(void) pg_atomic_compare_exchange_u64(block->state, &claimed, block->idle);
	block->rests = true;
}

#endif							/* PGTARE_RING_AREA_H */
