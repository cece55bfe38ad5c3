/*-------------------------------------------------------------------------
 * module.c
 *		Loading the module: its settings and hooks.
 *
 * Nothing here may fail in a way that locks users out: a session that loads
 * the module by session_preload_libraries must get in, come what may.
 *-------------------------------------------------------------------------
 */
#include "../writer/worker.h"

#include "kept.h"

#include <limits.h>

#include "fmgr.h"
#include "miscadmin.h"

#include "../../common/module_settings.h"

MODULE_MAGIC("sql_trace", PGTARE_VERSION);

bool		trace_enabled = true;
int			trace_level_setting = 0;
bool		trace_recorder = false;
int			trace_recorder_level = 8;
int			trace_recorder_kb = 256;
int			trace_query_level = 12;
double		trace_statement_rate = 1;
int			trace_ring_kb = 4096;
int			trace_memory_kb = RING_MEMORY_SHARE;
int			trace_bind_length = 64;
int			trace_cpu_interval = 1000;
int			trace_clock = CLOCK_SOURCE_TSC;
char	   *trace_sensitive_roles = NULL;
static int	recorder_memory_kb = 0;
static char *application = NULL;
static char *query_ids = NULL;

static const struct config_enum_entry levels[] = {
	{"0", 0, false},
	{"1", 1, false},
	{"4", 4, false},
	{"8", 8, false},
	{"12", 12, false},
	{NULL, 0, false}
};

static const struct config_enum_entry levels_of_applications[] = {
	{"0", 0, false},
	{"1", 1, false},
	{"4", 4, false},
	{"8", 8, false},
	{"12", 12, false},
	{"recorder", LEVEL_RECORDER, false},
	{NULL, 0, false}
};

const ApplicationLevels application_levels = {
	levels_of_applications, "level of a trace", "0, 1, 4, 8, 12 and recorder", "12"
};

void		_PG_init(void);

static void
level_changed(int newval, void *extra)
{
	level_setting_changed(newval, *(GucSource *) extra);
}

static void
query_ids_changed(const char *newval, void *extra)
{
	level_query_ids_changed(extra);
}

static void
application_levels_changed(const char *newval, void *extra)
{
	application_assign(newval, extra);
	level_setting_reported();
}

static void
recorder_changed(bool newval, void *extra)
{
	level_recorder_changed();
}

static void
recorder_level_changed(int newval, void *extra)
{
	level_recorder_changed();
}

static void
roles_changed(const char *newval, void *extra)
{
	secrets_roles_changed();
}

/* Which sessions are traced */
static void
define_scope(void)
{
	DefineCustomBoolVariable("sql_trace.enabled",
							 "Allows sessions to be traced.",
							 "When off, no session is, whatever its settings say.",
							 &trace_enabled,
							 true,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("sql_trace.level",
							 "What is traced: 1 calls and statements, 4 values too, 8 waits too, 12 both.",
							 NULL,
							 &trace_level_setting,
							 0, levels,
							 PGC_SUSET, 0,
							 check_keeps_source, level_changed, NULL);
	DefineCustomStringVariable("sql_trace.application",
							   "Levels of client sessions by name of their application.",
							   "A list of pattern=level; the first pattern that matches counts. "
							   "A level set for session, role or database goes before it.",
							   &application,
							   "",
							   PGC_SIGHUP, 0,
							   application_check, application_levels_changed, NULL);
	DefineCustomStringVariable("sql_trace.query_ids",
							   "Statements to trace wherever they run, by query identifier.",
							   "A list of numbers, as in pg_stat_statements.",
							   &query_ids,
							   "",
							   PGC_SUSET, 0,
							   level_check_query_ids, query_ids_changed, NULL);
	DefineCustomEnumVariable("sql_trace.query_level",
							 "Level at which statements of sql_trace.query_ids are traced.",
							 NULL,
							 &trace_query_level,
							 12, levels,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);
	DefineCustomRealVariable("sql_trace.statement_rate",
							 "Share of the requests of a traced session that are traced.",
							 NULL,
							 &trace_statement_rate,
							 1, 0, 1,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);
}

/*
 * Rings that nobody empties.  A session that loads the library by itself has no
 * memory for them; see define_unused() in ../writer/worker.c.
 */
static void
define_recorder(void)
{
	static char *unused;
	uint64		bytes;

	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("sql_trace.recorder_memory",
								"Shared memory that all recorders take together, reserved at the start.",
								"0: there is no recorder.",
								&recorder_memory_kb,
								0, 0, 64 * 1024 * 1024,
								PGC_POSTMASTER, GUC_UNIT_KB,
								NULL, NULL, NULL);
	else
		DefineCustomStringVariable("sql_trace.recorder_memory",
								   "Of the recorder, which needs a server that preloads the library.",
								   NULL,
								   &unused,
								   "",
								   PGC_SIGHUP, 0,
								   NULL, NULL, NULL);
	DefineCustomBoolVariable("sql_trace.recorder",
							 "Keeps what a session did last in a small ring, if nothing else traces it.",
							 "Needs sql_trace.recorder_memory.",
							 &trace_recorder,
							 false,
							 PGC_SUSET, 0,
							 NULL, recorder_changed, NULL);
	DefineCustomEnumVariable("sql_trace.recorder_level",
							 "Level at which the recorder traces.",
							 NULL,
							 &trace_recorder_level,
							 8, levels,
							 PGC_SUSET, 0,
							 NULL, recorder_level_changed, NULL);
	DefineCustomIntVariable("sql_trace.recorder_ring",
							"Size to which the recorder's rings of a session grow, of calls and of waits each.",
							NULL,
							&trace_recorder_kb,
							256, SMALLEST_RING_KB, 1024 * 1024,
							PGC_SUSET, GUC_UNIT_KB,
							NULL, NULL, NULL);
	bytes = (uint64) recorder_memory_kb * 1024;
	ring_area_init(bytes - dictionary_init(bytes));
}

/* What a trace holds */
static void
define_content(void)
{
	int			usual_clock = clock_trust().counter ? CLOCK_SOURCE_TSC : CLOCK_SOURCE_MONOTONIC;

	DefineCustomIntVariable("sql_trace.ring_size",
							"Shared memory that the trace of a session takes.",
							"Has an effect on sessions that begin a trace; rounded up to a power of two.",
							&trace_ring_kb,
							4096, SMALLEST_RING_KB, 1024 * 1024,
							PGC_SUSET, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.ring_memory",
							"Shared memory that all traces may take, of calls and of waits together.",
							"-1: an eighth of the volume for dynamic shared memory.",
							&trace_memory_kb,
							RING_MEMORY_SHARE, RING_MEMORY_SHARE, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.bind_length",
							"Values that take more bytes are not shown.",
							"-1: all are shown.",
							&trace_bind_length,
							64, -1, 1024 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE,
							NULL, NULL, NULL);
	DefineCustomStringVariable("sql_trace.sensitive_roles",
							   "Roles whose values, and those of their members, are never shown.",
							   NULL,
							   &trace_sensitive_roles,
							   "",
							   PGC_SIGHUP, GUC_LIST_INPUT,
							   NULL, roles_changed, NULL);
	DefineCustomIntVariable("sql_trace.cpu_interval",
							"Shortest time between two readings of CPU time, in microseconds.",
							"0: at the end of each call of the client; -1: never.",
							&trace_cpu_interval,
							1000, -1, 1000 * 1000 * 1000,
							PGC_SUSET, 0,
							NULL, NULL, NULL);
	DefineCustomEnumVariable("sql_trace.clock",
							 "Where time stamps come from.",
							 NULL,
							 &trace_clock,
							 usual_clock, clock_entries,
							 PGC_SUSET, 0,
							 check_clock, NULL, NULL);
}

bool
level_is_valid(int level)
{
	for (const struct config_enum_entry *entry = levels; entry->name; entry++)
		if (entry->val == level)
			return true;
	return false;
}

void
_PG_init(void)
{
	void	  **loaded = find_rendezvous_variable("sql_trace");

	/* to define our settings twice would be an error, and end the session */
	if (*loaded != NULL)
	{
		ereport(WARNING,
				(errmsg("another copy of sql_trace is loaded already, this one is not usable"),
				 errhint("Name the same file in \"shared_preload_libraries\", in "
						 "\"session_preload_libraries\" and in LOAD.")));
		return;
	}
	if (!HAVE_NAMED_DSM && !process_shared_preload_libraries_in_progress)
	{
		*loaded = &trace;
		ereport(WARNING,
				(errmsg("sql_trace is not usable in this session"),
				 errhint("Before PostgreSQL 17 the server itself must load it: add "
						 "sql_trace to \"shared_preload_libraries\" and restart.")));
		return;
	}
	/* in parallel mode this can fail, and what will be loaded again must not be half loaded */
	shmem_init();
	kept_init();
	*loaded = &trace;
	define_scope();
	define_recorder();
	define_content();
	trigger_define();
	worker_define();
	keeper_define();
	analyse_install();
	execute_install();
	utility_install();
	commit_install();
	protocol_install();
	row_sources_init();
	worker_register();
	keeper_register();
	MarkGUCPrefixReserved("sql_trace");
}
