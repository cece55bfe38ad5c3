/*-------------------------------------------------------------------------
 * module_shmem.c
 *		A module's shared memory: in the main segment, or in a named dynamic one.
 *-------------------------------------------------------------------------
 */
#include "module_shmem.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/resowner.h"

#include "guarded.h"
#include "pg_compat.h"
#if HAVE_NAMED_DSM
#include "storage/dsm_registry.h"
#endif

/* Of this library, to be made when the server starts */
static ModuleShmem *first = NULL;

static shmem_request_hook_type previous_request;
static shmem_startup_hook_type previous_startup;

static void
initialise(ModuleShmem *shmem, void *memory)
{
	ModuleLock *lock = memory;

	shmem->initialise(memory);
	lock->tranche = NEW_TRANCHE(shmem->tranche);
	LWLockInitialize(&lock->lock, lock->tranche);
}

/* Have waits for the lock show the tranche's name, in this process. */
static void
name_lock(const ModuleShmem *shmem)
{
	NAME_TRANCHE(((ModuleLock *) shmem->attached)->tranche, shmem->tranche);
}

static void
request_memory(void)
{
	if (previous_request)
		previous_request();
	for (ModuleShmem *each = first; each; each = each->next)
		RequestAddinShmemSpace(each->size());
}

static void
create_in_main_segment(void)
{
	if (previous_startup)
		previous_startup();
	for (ModuleShmem *each = first; each; each = each->next)
	{
		bool		found;

		LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
		each->attached = ShmemInitStruct(each->name, each->size(), &found);
		if (!found)
			initialise(each, each->attached);
		LWLockRelease(AddinShmemInitLock);
		name_lock(each);
	}
}

static void
create_at_start(ModuleShmem *shmem)
{
	if (first == NULL)
	{
		previous_request = shmem_request_hook;
		shmem_request_hook = request_memory;
		previous_startup = shmem_startup_hook;
		shmem_startup_hook = create_in_main_segment;
	}
	shmem->next = first;
	first = shmem;
}

void
module_try(const char *name, void (*work) (void *argument),
		   void (*failed) (void *argument, const char *cause), void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	/* in parallel mode no subtransaction can be had; a worker goes on without, as its leader may */
	if (IsParallelWorker())
	{
		(void) guarded_run(name, work, failed, argument);
		return;
	}
	if (IsInParallelMode())
	{
		work(argument);
		return;
	}
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		work(argument);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		failed(argument, error->message);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

#if HAVE_NAMED_DSM

/* Before 19, PostgreSQL's callback for a new segment takes no argument. */
static ModuleShmem *being_attached;

static void
initialise_segment(FILL_PARAMETERS)
{
	initialise(being_attached, segment);
}

static void
attach(void *argument)
{
	ModuleShmem *shmem = argument;
	Size		size = shmem->size();
	char		name[64];
	bool		found;

	snprintf(name, sizeof(name), "%s/%s/%zu", shmem->name, shmem->version, size);
	being_attached = shmem;
	shmem->attached = NAMED_DSM(name, size, initialise_segment, &found);
}

static void
not_attached(void *argument, const char *cause)
{
	ModuleShmem *shmem = argument;

	shmem->attached = NULL;
	/* the leader has been told */
	if (!IsParallelWorker())
		ereport(WARNING,
				(errmsg("%s is not usable in this session: %s", shmem->name, cause),
				 errhint("Its shared memory needs %zu MB in /dev/shm, unless "
						 "\"shared_preload_libraries\" names the library.",
						 shmem->size() / (1024 * 1024) + 1)));
}

static void
attach_in_session(ModuleShmem *shmem)
{
	if (MyProc == NULL || !IsTransactionState() || (shmem->may_attach && !shmem->may_attach()))
		return;
	module_try(shmem->name, attach, not_attached, shmem);
	if (shmem->attached)
		name_lock(shmem);
}

#endif

void
module_shmem_init(ModuleShmem *shmem)
{
	shmem->dynamic = !process_shared_preload_libraries_in_progress;
	if (!shmem->dynamic)
		create_at_start(shmem);
#if HAVE_NAMED_DSM
	else
		attach_in_session(shmem);
#endif
}

void *
module_shmem_get_or_error(const ModuleShmem *shmem)
{
	void	   *memory = module_shmem_get(shmem);

	if (memory == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s is not loaded in this session", shmem->name),
				 errhint("Add it to \"shared_preload_libraries\" and restart the server; from "
						 "PostgreSQL 17 on \"session_preload_libraries\" serves new sessions.")));
	return memory;
}
