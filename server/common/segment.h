/*-------------------------------------------------------------------------
 * segment.h
 *		Attaching the named dynamic segment of a module that a session loads.
 *
 * The segment's name carries version and size: a rebuilt module never meets
 * another's layout.  Needs the headers of PostgreSQL 17 or later.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_SEGMENT_H
#define PGTARE_SEGMENT_H

#include "access/parallel.h"
#include "access/xact.h"
#include "storage/dsm_registry.h"
#include "utils/resowner.h"

static inline void *
segment_attach(const char *module, const char *version, Size size, void (*initialise) (void *))
{
	char		name[64];
	bool		found;

	snprintf(name, sizeof(name), "%s/%s/%zu", module, version, size);
	return GetNamedDSMSegment(name, size, initialise, &found);
}

/*
 * The same within a transaction of a session that must get in although there
 * may be no memory: the failure becomes a warning, and the result is NULL.
 */
static inline void *
segment_attach_or_warn(const char *module, const char *version, Size size,
					   void (*initialise) (void *))
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	void	   *volatile segment = NULL;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		segment = segment_attach(module, version, size, initialise);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		segment = NULL;
		ereport(WARNING,
				(errmsg("%s is not usable in this session: %s", module, error->message),
				 errhint("Its shared memory needs %zu MB in /dev/shm, unless "
						 "\"shared_preload_libraries\" names the library.",
						 size / (1024 * 1024) + 1)));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return segment;
}

/* In a parallel worker the segment is there, and no subtransaction can be had. */
static inline void *
segment_attach_in_session(const char *module, const char *version, Size size,
						  void (*initialise) (void *))
{
	if (IsParallelWorker() || IsInParallelMode())
		return segment_attach(module, version, size, initialise);
	return segment_attach_or_warn(module, version, size, initialise);
}

#endif							/* PGTARE_SEGMENT_H */
