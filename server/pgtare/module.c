/*-------------------------------------------------------------------------
 * module.c
 *		Loading the module: its settings and hooks.
 *
 * Nothing here may fail in a way that locks users out: a session that loads
 * the module by session_preload_libraries must get in, come what may.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "pgtare.h"
#include "../common/clock_trust.h"
#include "../common/rate.h"

#define SHORTEST_BASE_NS (20 * 1000 * 1000)

MODULE_MAGIC("pgtare", PGTARE_VERSION);

bool		pgtare_enabled = true;
int			pgtare_ring_memory = 32 * 1024;

/* Taken when the library was loaded, and inherited by children */
static ClockPair at_load;
static bool counter;

void		_PG_init(void);

static void
clock_init(void)
{
	counter = clock_trust().counter;
	at_load = clock_pair(counter);
}

/* Sleeps for up to 20 ms if the library was loaded only just now. */
ClockRate
pgtare_clock_rate(void)
{
	return rate_since(counter, at_load, SHORTEST_BASE_NS);
}

/* Switched off in the configuration file: end the trial at once, for everybody. */
static void
enabled_changed(bool newval, void *extra)
{
	Shared	   *shared;

	if (newval)
		return;
	shared = pgtare_shared();
	if (shared)
		pgtare_end_trial(shared, pg_atomic_read_u64(&shared->generation), END_KILL_SWITCH);
}

static void
define_settings(void)
{
	bool		preloading = process_shared_preload_libraries_in_progress;

	DefineCustomBoolVariable("pgtare.enabled",
							 "Allows trials; switching it off ends one that is running.",
							 NULL,
							 &pgtare_enabled,
							 true,
							 PGC_SIGHUP, 0,
							 NULL, enabled_changed, NULL);
	DefineCustomIntVariable("pgtare.ring_memory",
							"Shared memory for observations not yet read.",
							"Has an effect only if the server preloads the library.",
							&pgtare_ring_memory,
							32 * 1024, 1024, INT_MAX / 1024,
							preloading ? PGC_POSTMASTER : PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	MarkGUCPrefixReserved("pgtare");
}

void
_PG_init(void)
{
	/*
	 * To define our settings twice would be an error, and end the session.  This
	 * copy stays idle: it has no shared memory, and its functions say so.
	 */
	if (settings_find("pgtare.enabled") != NULL)
	{
		ereport(WARNING,
				(errmsg("another copy of pgtare is loaded already, this one is not usable"),
				 errhint("Name the same file in \"shared_preload_libraries\", in "
						 "\"session_preload_libraries\" and in LOAD.")));
		return;
	}
	clock_init();
	define_settings();
	pgtare_shmem_init();
	protocol_install();
	evidence_install();
}
