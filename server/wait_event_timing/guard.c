/*-------------------------------------------------------------------------
 * guard.c
 *		Work that can fail where a process holds nothing: a failure becomes a message.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "../common/guarded.h"
#include "../common/lately.h"
#include "waits.h"

#define REFUSAL_LOG_INTERVAL_US (60 * USECS_PER_SEC)

/*
 * A client hears of it; of other processes the log does, once in a while.
 * Without a message it is only counted.
 */
static void
report_refusal(Shared *shared, const char *message, const char *cause)
{
	bool		client = MyBackendType == B_BACKEND;
	TimestampTz now = GetCurrentTimestamp();

	pg_atomic_fetch_add_u64(&shared->refused, 1);
	if (message == NULL)
		return;
	if (!client)
	{
		bool		logged;

		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		logged = lately(shared->refused_at, now, REFUSAL_LOG_INTERVAL_US);
		if (!logged)
			shared->refused_at = now;
		LWLockRelease(&shared->lock);
		if (logged)
			return;
	}
	ereport(client ? WARNING : LOG,
			(errmsg("%s: %s", message, cause),
			 errhint("Waits are counted and timed all the same.")));
}

typedef struct Guarded
{
	Shared	   *shared;
	void		(*work) (Shared *shared);
	const char *message;
} Guarded;

static void
guarded_work(void *argument)
{
	Guarded    *guarded = argument;

	guarded->work(guarded->shared);
}

static void
guarded_failed(void *argument, const char *cause)
{
	Guarded    *guarded = argument;

	report_refusal(guarded->shared, guarded->message, cause);
}

/*
 * Do work that can fail while the process holds nothing; a failure becomes a
 * message.  False: it failed.
 */
bool
guard_run(void (*work) (Shared *shared), const char *message)
{
	Guarded		guarded = {shmem_get(), work, message};

	return guarded.shared == NULL ||
		guarded_run("wait_event_timing", guarded_work, guarded_failed, &guarded);
}
