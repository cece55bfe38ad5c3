/*-------------------------------------------------------------------------
 * module_shmem.h
 *		A module's shared memory: in the main segment, or in a named dynamic one.
 *
 * Preloaded by the server, a module asks for room in the main segment.  Loaded
 * by a session (PostgreSQL 17 and later) it uses a dynamic segment, which lives
 * until the server restarts.  The name of that carries version and size: a
 * rebuilt module never meets another's layout.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_MODULE_SHMEM_H
#define PGTARE_MODULE_SHMEM_H

#include "postgres.h"

#include "access/parallel.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

/* Once for a session: what its parallel workers report is shown by it, for each of them. */
static inline int
warning_in_leader(void)
{
	return IsParallelWorker() ? DEBUG1 : WARNING;
}

/* What the memory begins with */
typedef struct ModuleLock
{
	LWLock		lock;
	int			tranche;
} ModuleLock;

/* A structure that does: its first two members are these */
#define MODULE_LOCK_LEADS(type) \
	StaticAssertDecl(offsetof(type, lock) == offsetof(ModuleLock, lock) && \
					 offsetof(type, tranche) == offsetof(ModuleLock, tranche), \
					 "shared memory of a module begins with its lock")

typedef struct ModuleShmem
{
	const char *name;			/* of the memory */
	const char *tranche;		/* of its lock, as in waits for it */
	const char *version;		/* of its layout */
	Size		(*size) (void);
	void		(*initialise) (void *memory);	/* all of it but the lock; it may hold anything */
	bool		(*may_attach) (void);	/* whether a session may use a dynamic segment; or NULL */
	bool		dynamic;		/* a session has loaded the module */
	void	   *attached;		/* valid only in a process that has a PGPROC */
	struct ModuleShmem *next;
} ModuleShmem;

#pragma GCC visibility push(hidden)

/* Called when the library is loaded, once for each memory; a session gets in whatever happens. */
extern void module_shmem_init(ModuleShmem *shmem);

/*
 * Do what can fail while a session loads the library, within a transaction: the session gets
 * in although there may be no memory, and "failed" gets the message of the error.
 */
extern void module_try(const char *name, void (*work) (void *argument),
					   void (*failed) (void *argument, const char *cause), void *argument);

/*
 * The memory, or NULL if there is none.  Children inherit the pointer, but some
 * have let go of the memory behind it: only a PGPROC proves that it is there.
 */
static inline void *
module_shmem_get(const ModuleShmem *shmem)
{
	return MyProc != NULL ? shmem->attached : NULL;
}

/* The same, for functions of SQL that are of no use without it */
extern void *module_shmem_get_or_error(const ModuleShmem *shmem);

#pragma GCC visibility pop

#endif							/* PGTARE_MODULE_SHMEM_H */
