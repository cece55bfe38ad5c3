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

/*
 * Tell of the error under way, and be done with it.  If there is no memory
 * left, that can fail as well, and then nothing is reported.
 */
static void
report_failure(const char *name, void (*failed) (void *argument, const char *cause),
			   void *argument, MemoryContext memory)
{
	PG_TRY();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(memory);
		error = CopyErrorData();
		FlushErrorState();
		if (failed)
			failed(argument, error->message);
		else
			ereport(LOG, (errmsg("%s: %s", name, error->message)));
	}
	PG_CATCH();
	{
		FlushErrorState();
	}
	PG_END_TRY();
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
	volatile MemoryContext report = NULL;
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
		/* taken beforehand: the failure may be that there is none left */
		report = AllocSetContextCreate(TopMemoryContext, "report of a failure",
									   ALLOCSET_DEFAULT_SIZES);
		temporary = ResourceOwnerCreate(NULL, name);
		CurrentResourceOwner = temporary;
		work(argument);
		done = true;
	}
	PG_CATCH();
	{
		/* an error lets go of it, and of the other one below */
		InterruptHoldoffCount = 1;
		/* the work took them: one held before would hold off interrupts, too */
		LWLockReleaseAll();
		if (report)
			report_failure(name, failed, argument, report);
		else
			FlushErrorState();
	}
	PG_END_TRY();
	/* the work may have caught errors of its own, which set both to 0 */
	QueryCancelHoldoffCount = cancel_holdoff;
	InterruptHoldoffCount = 1;
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (temporary)
		release_owner(temporary, done);
	if (report)
		MemoryContextDelete(report);
	*(volatile uint32 *) my_wait_event_info = announced;
	working = false;
	RESUME_INTERRUPTS();
	errno = error_number;
	return done;
}
