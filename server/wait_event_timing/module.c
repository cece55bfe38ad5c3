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

#include "waits.h"
#include "../common/module_settings.h"

MODULE_MAGIC("wait_event_timing", PGTARE_VERSION);

int			waits_capture = CAPTURE_OFF;
int			waits_clock = CLOCK_SOURCE_TSC;
int			waits_statements_max = 4096;
int			waits_ring_records = 131072;
int			waits_memory_kb = RING_MEMORY_SHARE;
int			waits_trigger = -1;
static char *waits_application = NULL;
bool		waits_hooks = true;

const struct config_enum_entry waits_levels[] = {
	{"off", CAPTURE_OFF, false},
	{"stats", CAPTURE_STATS, false},
	{"trace", CAPTURE_TRACE, false},
	{NULL, 0, false}
};

const ApplicationLevels application_levels = {
	waits_levels, "level of capture", "off, stats and trace", "trace"
};

void		_PG_init(void);

static void
capture_changed(int newval, void *extra)
{
	settings_level_changed(newval, *(GucSource *) extra);
}

static void
clock_changed(int newval, void *extra)
{
	settings_clock_changed(newval);
}

static void
define_settings(void)
{
	bool		preloading = process_shared_preload_libraries_in_progress;
	int			usual_clock = clock_trust().counter ? CLOCK_SOURCE_TSC : CLOCK_SOURCE_MONOTONIC;

	DefineCustomBoolVariable("wait_event_timing.hooks",
							 "Takes over the server's calls of libc when the library is loaded.",
							 "When off, the library is loaded and does nothing.",
							 &waits_hooks,
							 true,
							 preloading ? PGC_POSTMASTER : PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("wait_event_timing.statements_max",
							"Pairs of statement and wait event that are kept.",
							"Has an effect if the server itself loads the library.",
							&waits_statements_max,
							4096, 64, 1 << 20,
							preloading ? PGC_POSTMASTER : PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("wait_event_timing.trace_ring_records",
							"Records of 32 bytes that the trace of a session holds.",
							"Has an effect on sessions that begin a trace; rounded up to a power of two.",
							&waits_ring_records,
							131072, SMALLEST_RING, 1 << 24,
							PGC_SUSET, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("wait_event_timing.trace_memory",
							"Shared memory that all traces may take, of waits and of calls together.",
							"-1: an eighth of the volume for dynamic shared memory.",
							&waits_memory_kb,
							RING_MEMORY_SHARE, RING_MEMORY_SHARE, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomEnumVariable("wait_event_timing.clock",
							 "Where time stamps come from.",
							 NULL,
							 &waits_clock,
							 usual_clock, clock_entries,
							 PGC_SUSET, 0,
							 check_clock, clock_changed, NULL);
	DefineCustomEnumVariable("wait_event_timing.capture",
							 "What is recorded of each wait.",
							 NULL,
							 &waits_capture,
							 CAPTURE_OFF, waits_levels,
							 PGC_SUSET, 0,
							 check_keeps_source, capture_changed, NULL);
	DefineCustomStringVariable("wait_event_timing.capture_application",
							   "What is recorded in client sessions by name of their application.",
							   "A list of pattern=level; the first pattern that matches counts. "
							   "A level set for session, role or database goes before it.",
							   &waits_application,
							   "",
							   PGC_SIGHUP, 0,
							   application_check, application_assign, NULL);
	DefineCustomIntVariable("wait_event_timing.trigger",
							"Keeps the trace of a session when a statement took longer than this.",
							"-1 keeps none.",
							&waits_trigger,
							-1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
	MarkGUCPrefixReserved("wait_event_timing");
}

void
_PG_init(void)
{
	void	  **loaded = find_rendezvous_variable("wait_event_timing");

	/* to define our settings twice would be an error, and end the session */
	if (*loaded != NULL)
	{
		ereport(WARNING,
				(errmsg("another copy of wait_event_timing is loaded already, this one is not usable"),
				 errhint("Name the same file in \"shared_preload_libraries\", in "
						 "\"session_preload_libraries\" and in LOAD.")));
		return;
	}
	if (!HAVE_NAMED_DSM && !process_shared_preload_libraries_in_progress)
	{
		*loaded = &waits_capture;
		ereport(WARNING,
				(errmsg("wait_event_timing is not usable in this session"),
				 errhint("Before PostgreSQL 17 the server itself must load it: add "
						 "wait_event_timing to \"shared_preload_libraries\" and restart.")));
		return;
	}
	/* in parallel mode this can fail, and what is to be loaded again must not be half loaded */
	shmem_init();
	*loaded = &waits_capture;
	define_settings();
	if (!waits_hooks)
		return;
	if (!process_shared_preload_libraries_in_progress)
	{
		if (shmem_get() == NULL)
			return;
		(void) slot_attach();
	}
	protocol_install();
	trace_install();
	explain_install();
	offer_install();
	calls_install();
}
