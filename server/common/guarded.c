/*-------------------------------------------------------------------------
 * guarded.c
 *		Doing what can fail where the server expects nothing to.
 *-------------------------------------------------------------------------
 */
#include "guarded.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

/*
 * What the work took belongs to an owner of its own, neither to a transaction
 * nor to nobody: then a segment that fails half-way is let go of.
 */
static void
release_owner(ResourceOwner owner, bool done)
{
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_BEFORE_LOCKS, done, true);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_LOCKS, done, true);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_AFTER_LOCKS, done, true);
	ResourceOwnerDelete(owner);
}

bool
guarded_run(const char *name, void (*work) (void *argument),
			void (*failed) (void *argument, const char *cause), void *argument)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	uint32		announced = *(volatile uint32 *) my_wait_event_info;
	int			error_number = errno;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	volatile ResourceOwner temporary = NULL;
	volatile bool done = false;
	static bool working = false;

	if (working || InterruptHoldoffCount > 0 || CritSectionCount > 0 ||
		CurrentMemoryContext == ErrorContext || proc_exit_inprogress || shmem_exit_inprogress)
		return true;			/* not now */
	working = true;
	/* a query that is cancelled now is so afterwards: neither the work nor its report may be left */
	HOLD_INTERRUPTS();
	/* the wait has not begun: what the work waits for is not that */
	*(volatile uint32 *) my_wait_event_info = 0;
	PG_TRY();
	{
		temporary = ResourceOwnerCreate(NULL, name);
		CurrentResourceOwner = temporary;
		work(argument);
		done = true;
	}
	PG_CATCH();
	{
		MemoryContext report = AllocSetContextCreate(TopMemoryContext, "report of a failure",
													 ALLOCSET_SMALL_SIZES);
		ErrorData  *error;

		/* an error lets go of both */
		QueryCancelHoldoffCount = cancel_holdoff;
		InterruptHoldoffCount = 1;
		MemoryContextSwitchTo(report);
		error = CopyErrorData();
		FlushErrorState();
		/* the work took them: who held one before would hold off interrupts, too */
		LWLockReleaseAll();
		failed(argument, error->message);
		/* FreeErrorData() would leave some of it behind */
		MemoryContextSwitchTo(context);
		MemoryContextDelete(report);
	}
	PG_END_TRY();
	CurrentResourceOwner = owner;
	if (temporary)
		release_owner(temporary, done);
	*(volatile uint32 *) my_wait_event_info = announced;
	working = false;
	RESUME_INTERRUPTS();
	errno = error_number;
	return done;
}
