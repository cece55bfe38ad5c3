/*-------------------------------------------------------------------------
 * ring_place.c
 *		Where a ring is: from its handle to its memory, and letting go of it.
 *
 * A ring is in a dynamic segment of its own, and its handle is the segment's.
 *-------------------------------------------------------------------------
 */
#include "ring_place.h"

MappedRing
ring_place_map(RingHandle handle, bool lasts)
{
	MappedRing	mapped = {NULL, NULL};
	/* our own is mapped already */
	dsm_segment *segment = dsm_find_mapping((dsm_handle) handle);

	if (segment == NULL)
		segment = mapped.segment = dsm_attach((dsm_handle) handle);
	if (segment == NULL)
		return mapped;
	if (lasts && mapped.segment)
		dsm_pin_mapping(mapped.segment);
	mapped.ring = dsm_segment_address(segment);
	return mapped;
}

void
ring_place_unmap(MappedRing *mapped)
{
	if (mapped->segment)
		dsm_detach(mapped->segment);
	mapped->segment = NULL;
	mapped->ring = NULL;
}

void
ring_place_free(RingHandle handle)
{
	dsm_unpin_segment((dsm_handle) handle);
}
