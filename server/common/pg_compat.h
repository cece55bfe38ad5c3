/*-------------------------------------------------------------------------
 * pg_compat.h
 *		What differs between versions of PostgreSQL: nothing else tests the version.
 *
 * A new major version needs a look at this file only.  Each part says what
 * differs and gives it one name for all versions; if a version lacks a
 * feature altogether, HAVE_... says so.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_PG_COMPAT_H
#define PGTARE_PG_COMPAT_H

#include "postgres.h"

#include "utils/guc.h"
#include "utils/guc_tables.h"

/* The version that the module is built for, as server_version_num shows it, and its first part */
#define BUILT_FOR_VERSION PG_VERSION_NUM
#define BUILT_FOR_MAJOR (PG_VERSION_NUM / 10000)

/* From 18 on a library can say its name and version, which pg_get_loaded_modules() shows. */
#if PG_VERSION_NUM >= 180000
#define MODULE_MAGIC(its_name, its_version) \
	PG_MODULE_MAGIC_EXT(.name = its_name, .version = its_version)
#else
#define MODULE_MAGIC(its_name, its_version) PG_MODULE_MAGIC
#endif

/* 16 took the macros of variable-length values out of postgres.h. */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/*
 * 17 took the number of a process out of its PGPROC, and put its local
 * transaction into "vxid".  It numbers what processes say of themselves as their
 * PGPROCs; before, those of auxiliary processes are elsewhere.
 */
#if PG_VERSION_NUM >= 170000
#define MY_PROC_NUMBER MyProcNumber
#define MY_LXID (MyProc->vxid.lxid)
#define HAS_STATUS(number) true
#define STATUS_FROM_MINE(number) ((int) (number) - MyProcNumber)
#else
#define MY_PROC_NUMBER (MyProc->pgprocno)
#define MY_LXID (MyProc->lxid)
#define HAS_STATUS(number) (ProcGlobal->allProcs[number].backendId > 0)
#define STATUS_FROM_MINE(number) (ProcGlobal->allProcs[number].backendId - MyBackendId)
#endif

/* 16 gave what processes say of themselves another name, for those who look at all of them. */
#if PG_VERSION_NUM >= 160000
#define LOCAL_STATUS(index) pgstat_get_local_beentry_by_index(index)
#else
#define LOCAL_STATUS(index) pgstat_fetch_stat_local_beentry(index)
#endif

/* From 17 on a library can make shared memory by name while the server runs. */
#if PG_VERSION_NUM >= 170000
#define HAVE_NAMED_DSM 1
#else
#define HAVE_NAMED_DSM 0
#endif

/* 19 hands an argument through to the function that fills a new segment. */
#if PG_VERSION_NUM >= 190000
#define FILL_PARAMETERS void *segment, void *argument
#define NAMED_DSM(name, size, fill, found) GetNamedDSMSegment(name, size, fill, found, NULL)
#elif PG_VERSION_NUM >= 170000
#define FILL_PARAMETERS void *segment
#define NAMED_DSM(name, size, fill, found) GetNamedDSMSegment(name, size, fill, found)
#endif

/*
 * Before 19 a process gave the name of a tranche of locks to itself; since then
 * whoever makes the tranche names it for all.
 */
#if PG_VERSION_NUM >= 190000
#define NEW_TRANCHE(name) LWLockNewTrancheId(name)
#define NAME_TRANCHE(tranche, name) ((void) (tranche), (void) (name))
#else
#define NEW_TRANCHE(name) LWLockNewTrancheId()
#define NAME_TRANCHE(tranche, name) LWLockRegisterTranche(tranche, name)
#endif

/* 17 tells the times of shared blocks from those of local ones. */
#if PG_VERSION_NUM >= 170000
#define SHARED_READ_TIME(usage) ((usage)->shared_blk_read_time)
#define SHARED_WRITE_TIME(usage) ((usage)->shared_blk_write_time)
#else
#define SHARED_READ_TIME(usage) ((usage)->blk_read_time)
#define SHARED_WRITE_TIME(usage) ((usage)->blk_write_time)
#endif

/* From 18 on EXPLAIN takes options of libraries, and calls them for each plan and node. */
#if PG_VERSION_NUM >= 180000
#define HAVE_EXPLAIN_OPTIONS 1
#else
#define HAVE_EXPLAIN_OPTIONS 0
#endif

/* 18 took the last parameter, "once", away from ExecutorRun(). */
#if PG_VERSION_NUM >= 180000
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define RUN_ARGUMENTS queryDesc, direction, count
#else
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool once
#define RUN_ARGUMENTS queryDesc, direction, count, once
#endif

/* 19 asks whether an option of EXPLAIN may stand in a setting, such as one of auto_explain. */
#if PG_VERSION_NUM >= 190000
#define REGISTER_EXPLAIN_OPTION(name, handler, check) \
	RegisterExtensionExplainOption(name, handler, check)
#elif PG_VERSION_NUM >= 180000
#define REGISTER_EXPLAIN_OPTION(name, handler, check) \
	((void) (check), RegisterExtensionExplainOption(name, handler))
#endif

/* 19 gives planners what EXPLAIN knows, and lets no hook change how a query was jumbled. */
#if PG_VERSION_NUM >= 190000
#define PLANNER_PARAMETERS Query *query, const char *text, int options, \
	ParamListInfo parameters, struct ExplainState *explain
#define PLANNER_ARGUMENTS query, text, options, parameters, explain
typedef const struct JumbleState Jumbled;
#else
#define PLANNER_PARAMETERS Query *query, const char *text, int options, ParamListInfo parameters
#define PLANNER_ARGUMENTS query, text, options, parameters
typedef struct JumbleState Jumbled;
#endif

/* 19 gave nodes counters of their own kind, and the whole execution's another name. */
#if PG_VERSION_NUM >= 190000
typedef struct NodeInstrumentation NodeCounters;
#define QUERY_COUNTERS(queryDesc) ((queryDesc)->query_instr)
#else
typedef struct Instrumentation NodeCounters;
#define QUERY_COUNTERS(queryDesc) ((queryDesc)->totaltime)
#endif

/* 19 takes times from the processor's counter if it may; before, from the system's clock alone. */
#if PG_VERSION_NUM >= 190000
#define TIMES_BY_SYSTEM_CLOCK() (pg_current_timing_clock_source() == TIMING_CLOCK_SOURCE_SYSTEM)
#else
#define TIMES_BY_SYSTEM_CLOCK() true
#endif

/*
 * Memory that a setting's check hook hands to PostgreSQL, which frees it: 16
 * frees by pfree() what 15 freed by free().  NULL if there is none.
 */
static inline void *
setting_alloc(size_t size)
{
#if PG_VERSION_NUM >= 160000
	return guc_malloc(LOG, size);
#else
	return malloc(size);
#endif
}

static inline void
setting_free(void *memory)
{
#if PG_VERSION_NUM >= 160000
	guc_free(memory);
#else
	free(memory);
#endif
}

/*
 * What a setting of some type has beyond what all have.  Before 19 its record
 * began with the common part; since then the common part ends with it.  A cast
 * compiles for both, and writes into other settings on 19.
 */
#if PG_VERSION_NUM >= 190000
#define SETTING_RECORD(conf, type) (&(conf)->_##type)
#else
#define SETTING_RECORD(conf, type) ((struct config_##type *) (conf))
#endif

/* Of the hook for utility statements; 14 was the last to change it */
#define UTILITY_PARAMETERS PlannedStmt *statement, const char *text, bool read_only, \
	ProcessUtilityContext context, ParamListInfo parameters, QueryEnvironment *environment, \
	DestReceiver *receiver, QueryCompletion *done
#define UTILITY_ARGUMENTS statement, text, read_only, context, parameters, environment, receiver, done

/* What a hook of ours goes on to: the one that was there, or what PostgreSQL does without one */
#define BEFORE_US(hook, standard) ((hook) ? (hook) : (standard))

/* A setting by name, or NULL.  15 has no function for it but one that may throw. */
static inline struct config_generic *
setting_by_name(const char *name)
{
#if PG_VERSION_NUM >= 160000
	return find_option(name, false, true, DEBUG5);
#else
	struct config_generic **all = get_guc_variables();
	int			n = GetNumConfigOptions();

	for (int i = 0; i < n; i++)
		if (pg_strcasecmp(all[i]->name, name) == 0)
			return all[i];
	return NULL;
#endif
}

#endif							/* PGTARE_PG_COMPAT_H */
