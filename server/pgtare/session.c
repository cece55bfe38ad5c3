/*-------------------------------------------------------------------------
 * session.c
 *		What a session has of the trial that it takes part in, and when that is over.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "utils/guc.h"

#include "pgtare.h"

Session		session;
bool		pgtare_enabled = true;

bool
session_trial_over(int64 now_ticks)
{
	if (!pgtare_enabled)
	{
		pgtare_end_trial(session.shared, session.generation, END_KILL_SWITCH);
		return true;
	}
	if (now_ticks >= session.def->deadline_ticks)
	{
		pgtare_end_trial(session.shared, session.generation, END_DEADLINE);
		return true;
	}
	if (pgtare_lease_expired(session.shared, now_ticks))
	{
		pgtare_end_trial(session.shared, session.generation, END_LEASE_EXPIRED);
		return true;
	}
	return !pgtare_runs(session.shared, session.generation);
}

/* Switched off in the configuration file: end the trial at once, for everybody. */
static void
enabled_changed(bool newval, void *extra)
{
	Shared	   *shared;

	/* a parallel worker is given what its leader has read, be it long ago */
	if (newval || InitializingParallelWorker)
		return;
	shared = pgtare_shared();
	if (shared)
		pgtare_end_trial(shared, pg_atomic_read_u64(&shared->generation), END_KILL_SWITCH);
}

/* Called when the library is loaded. */
void
session_init(void)
{
	DefineCustomBoolVariable("pgtare.enabled",
							 "Allows trials; switching it off ends one that is running.",
							 NULL,
							 &pgtare_enabled, true,
							 PGC_SIGHUP, 0, NULL, enabled_changed, NULL);
}
