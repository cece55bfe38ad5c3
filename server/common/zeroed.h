/*-------------------------------------------------------------------------
 * zeroed.h
 *		A segment of dynamic shared memory that holds zeros.
 *
 * A segment made for us does.  One from the region that
 * min_dynamic_shared_memory reserves holds what others have left there, which
 * readers of ours must not see.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_ZEROED_H
#define PGTARE_ZEROED_H

#include "storage/dsm.h"
#include "storage/dsm_impl.h"

static inline dsm_segment *
zeroed_segment(Size size)
{
	dsm_segment *segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);

	if (segment == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("too many dynamic shared memory segments")));
	if (min_dynamic_shared_memory > 0)
		memset(dsm_segment_address(segment), 0, dsm_segment_map_length(segment));
	return segment;
}

#endif							/* PGTARE_ZEROED_H */
