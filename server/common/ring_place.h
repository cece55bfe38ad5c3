/*-------------------------------------------------------------------------
 * ring_place.h
 *		Where a ring is: from its handle to its memory, and letting go of it.
 *
 * Entries in shared memory name rings by their handles.  All that read a ring of
 * another process map it here, so that only this file knows what a handle is.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_RING_PLACE_H
#define PGTARE_RING_PLACE_H

#include "postgres.h"

#include "storage/dsm.h"

/* Never that of another ring, as long as the server runs and entries name it; 0: none */
typedef uint64 RingHandle;

/* Of one that is in the area (ring_area.h); others have a segment of their own */
#define RING_IN_AREA ((RingHandle) 1 << 63)

/* A ring that can be read */
typedef struct MappedRing
{
	void	   *ring;			/* NULL: it is not mapped, or has been given up */
	dsm_segment *segment;		/* that was mapped for this; NULL: nothing was */
	struct RingHold *hold;		/* that was taken for this; NULL: none was */
} MappedRing;

#pragma GCC visibility push(hidden)

/*
 * Map a ring, until the transaction or the memory context ends, if it is not let go of before.
 * Raises an error if there is no memory.
 */
extern MappedRing ring_place_map(RingHandle handle);
extern void ring_place_unmap(MappedRing *mapped);

/* Is there such a ring? One in the area may have been taken from its owner. */
extern bool ring_place_is_there(RingHandle handle);

/* No entry names a ring any more: its memory is free when the last reader has let go of it. */
extern void ring_place_free(RingHandle handle);

#pragma GCC visibility pop

#endif							/* PGTARE_RING_PLACE_H */
