/*-------------------------------------------------------------------------
 * module_settings.h
 *		What settings of several modules have in common.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_MODULE_SETTINGS_H
#define PGTARE_MODULE_SETTINGS_H

#include "clock_trust.h"
#include "pg_compat.h"

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

static inline bool
check_clock(int *newval, void **extra, GucSource source)
{
	if (clock_source_counts(*newval))
	{
		ClockTrust	trust = clock_trust();

		if (!trust.counter)
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

#endif							/* PGTARE_MODULE_SETTINGS_H */
