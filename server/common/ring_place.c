/*-------------------------------------------------------------------------
 * ring_place.c
 *		Where a ring is: from its handle to its memory, and letting go of it.
 *
 * A ring is in a dynamic segment of its own, and its handle is the segment's; or
 * it is in the area, and is held there while somebody reads it.
 *-------------------------------------------------------------------------
 */
#include "ring_place.h"

#include "fmgr.h"
#include "utils/memutils.h"

#include "ring_area.h"

/* A ring of the area that this process reads: it goes with the memory context it was mapped in */
typedef struct RingHold
{
	RingHandle	handle;			/* 0: not any more */
	MemoryContextCallback at_end;
} RingHold;

const RingAreaOffer *
ring_area(void)
{
	static void **variable = NULL;

	if (variable == NULL)
		variable = find_rendezvous_variable(RING_AREA_OFFER);
	return *variable;
}

static void
let_go(void *argument)
{
	RingHold   *hold = argument;

	if (hold->handle != 0)
		ring_area()->let_go(hold->handle);
	hold->handle = 0;
}

/* An error that ends what we do frees the memory of the hold, and lets go of the ring. */
static MappedRing
map_in_area(RingHandle handle)
{
	MappedRing	mapped = {0};
	RingHold   *hold = palloc0(sizeof(RingHold));

	hold->at_end.func = let_go;
	hold->at_end.arg = hold;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &hold->at_end);
	mapped.ring = ring_area() ? ring_area()->hold(handle) : NULL;
	if (mapped.ring)
	{
		hold->handle = handle;
		mapped.hold = hold;
	}
	return mapped;
}

static MappedRing
map_segment(dsm_handle handle)
{
	MappedRing	mapped = {0};
	/* our own is mapped already */
	dsm_segment *segment = dsm_find_mapping(handle);

	if (segment == NULL)
		segment = mapped.segment = dsm_attach(handle);
	if (segment != NULL)
		mapped.ring = dsm_segment_address(segment);
	return mapped;
}

MappedRing
ring_place_map(RingHandle handle)
{
	return (handle & RING_IN_AREA) != 0 ? map_in_area(handle) : map_segment((dsm_handle) handle);
}

void
ring_place_unmap(MappedRing *mapped)
{
	if (mapped->segment)
		dsm_detach(mapped->segment);
	if (mapped->hold)
		let_go(mapped->hold);
	memset(mapped, 0, sizeof(*mapped));
}

bool
ring_place_is_there(RingHandle handle)
{
	if ((handle & RING_IN_AREA) != 0)
		return ring_area() != NULL && ring_area()->is_there(handle);
	return handle != 0;
}

void
ring_place_free(RingHandle handle)
{
	if ((handle & RING_IN_AREA) == 0)
		dsm_unpin_segment((dsm_handle) handle);
	else if (ring_area())
		ring_area()->free(handle);
}
