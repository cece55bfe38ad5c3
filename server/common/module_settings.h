/*-------------------------------------------------------------------------
 * module_settings.h
 *		What several modules have in common when they are loaded: that there is no
 *		other copy of them, and settings.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_MODULE_SETTINGS_H
#define PGTARE_MODULE_SETTINGS_H

#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "clock_trust.h"
#include "module_shmem.h"
#include "pg_compat.h"

/*
 * Where the library notes that it is loaded, or NULL: this copy is not usable.  To
 * define its settings twice would be an error, and end the session.
 */
static inline void **
module_place(const char *name)
{
	void	  **loaded = find_rendezvous_variable(name);

	if (*loaded != NULL)
	{
		ereport(warning_in_leader(),
				(errmsg("another copy of %s is loaded already, this one is not usable", name),
				 errhint("Name the same file in \"shared_preload_libraries\", in "
						 "\"session_preload_libraries\" and in LOAD.")));
		return NULL;
	}
	if (!HAVE_NAMED_DSM && !process_shared_preload_libraries_in_progress)
	{
		*loaded = loaded;
		ereport(warning_in_leader(),
				(errmsg("%s is not usable in this session", name),
				 errhint("Before PostgreSQL 17 the server itself must load it: add "
						 "%s to \"shared_preload_libraries\" and restart.", name)));
		return NULL;
	}
	return loaded;
}

static const struct config_enum_entry clock_entries[] = {
	{"tsc", CLOCK_SOURCE_TSC, false},
	{"tscp", CLOCK_SOURCE_TSCP, false},
	{"monotonic", CLOCK_SOURCE_MONOTONIC, false},
	{"monotonic_coarse", CLOCK_SOURCE_MONOTONIC_COARSE, false},
	{"syscall", CLOCK_SOURCE_SYSCALL, false},
	{NULL, 0, false}
};

/* The source travels with the value, through transactions that are undone as well. */
static inline bool
check_keeps_source(int *newval, void **extra, GucSource source)
{
	GucSource  *kept = setting_alloc(sizeof(GucSource));

	if (kept == NULL)
		return false;
	*kept = source;
	*extra = kept;
	return true;
}

/*
 * The counter is refused as long as it is no clock.  Where a value cannot be refused, the system's
 * clock takes its place: a boot value, with which a parallel worker begins to take over its
 * leader's settings, and what it takes over.
 */
static inline bool
check_clock(int *newval, void **extra, GucSource source)
{
	if (clock_source_counts(*newval))
	{
		ClockTrust	trust = clock_trust();

		if (!trust.counter && (source == PGC_S_DEFAULT || InitializingParallelWorker))
			*newval = CLOCK_SOURCE_MONOTONIC;
		else if (!trust.counter)
		{
			GUC_check_errdetail("The processor's counter is no clock here: %s.", trust.reason);
			return false;
		}
	}
	if (*newval == CLOCK_SOURCE_TSCP && !clock_rdtscp_usable())
	{
		GUC_check_errdetail("This machine's processor, or its hypervisor, lacks RDTSCP.");
		return false;
	}
	return true;
}

/* Why times come from this clock; wait_counters/caveats.py knows a counter given up by the words. */
static inline char *
clock_reason(ClockSource clock)
{
	ClockTrust	trust = clock_trust();

	if (clock_source_counts(clock) && !trust.counter)
		return psprintf("chosen when the server started, or later, but no longer trusted: %s",
						trust.reason);
	return pstrdup(trust.reason);
}

#endif							/* PGTARE_MODULE_SETTINGS_H */
