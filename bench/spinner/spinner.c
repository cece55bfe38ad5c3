/*-------------------------------------------------------------------------
 * spinner.c
 *		An injector of known delays: what a weighing should find, and what it found.
 *
 * Each execution spins for spinner.settled_ns.  In the first spinner.cold_runs of them
 * after a change of its settings it spins longer: by spinner.cold_ns in the first, and
 * ever less in the others, as an instrument does whose code and data are not in the
 * processor's caches yet.  What it really took, behind the first ones, is added up in
 * shared memory, by the delay that was asked for.  With spinner.only it spins in
 * statements of one kind only: those that read the clock, or all others.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <time.h>

#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/tuplestore.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

#define DELAYS 16
#define SETTLED 8				/* executions that are not counted */

typedef struct Counted
{
	pg_atomic_uint64 asked;		/* settled_ns + 1, or 0: free */
	pg_atomic_uint64 transactions;
	pg_atomic_uint64 spun_ns;
} Counted;

static int	settled_ns = 0;
static int	cold_ns = 0;
static int	cold_runs = 8;
static int	only = 0;			/* 0: all statements, 1: those that read the clock, 2: others */
static int	executions = 0;		/* since the last change */
static Counted *counted = NULL;

static ExecutorRun_hook_type previous_run;
static shmem_request_hook_type previous_request;
static shmem_startup_hook_type previous_startup;

static inline int64
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void
count(int64 spun)
{
	uint64		asked = (uint64) settled_ns + 1;

	for (int i = 0; counted && i < DELAYS; i++)
	{
		uint64		found = 0;

		if (pg_atomic_compare_exchange_u64(&counted[i].asked, &found, asked) || found == asked)
		{
			pg_atomic_fetch_add_u64(&counted[i].transactions, 1);
			pg_atomic_fetch_add_u64(&counted[i].spun_ns, spun);
			return;
		}
	}
}

/* The same is done for a delay of 0, so that it costs what the others cost besides theirs. */
static void
spin(const char *text)
{
	bool		stamp = strstr(text, "clock_timestamp") != NULL;
	bool		mine = only == 0 || (only == 1) == stamp;
	int64		began = now_ns();
	int64		until = mine ? began + settled_ns : began;
	int64		now;

	if (mine && executions < cold_runs)
		until += (int64) cold_ns * (cold_runs - executions) / cold_runs;
	do
		now = now_ns();
	while (now < until);
	if (mine && executions >= SETTLED)
		count(now - began);
	executions++;
}

#if PG_VERSION_NUM >= 180000
static void
spin_and_run(QueryDesc *queryDesc, ScanDirection direction, uint64 rows)
{
	spin(queryDesc->sourceText);
	if (previous_run)
		previous_run(queryDesc, direction, rows);
	else
		standard_ExecutorRun(queryDesc, direction, rows);
}
#else
static void
spin_and_run(QueryDesc *queryDesc, ScanDirection direction, uint64 rows, bool once)
{
	spin(queryDesc->sourceText);
	if (previous_run)
		previous_run(queryDesc, direction, rows, once);
	else
		standard_ExecutorRun(queryDesc, direction, rows, once);
}
#endif

static void
note_change(int newval, void *extra)
{
	executions = 0;
}

static void
request(void)
{
	if (previous_request)
		previous_request();
	RequestAddinShmemSpace(sizeof(Counted) * DELAYS);
}

static void
startup(void)
{
	bool		found;

	if (previous_startup)
		previous_startup();
	counted = ShmemInitStruct("spinner", sizeof(Counted) * DELAYS, &found);
	for (int i = 0; i < DELAYS && !found; i++)
	{
		pg_atomic_init_u64(&counted[i].asked, 0);
		pg_atomic_init_u64(&counted[i].transactions, 0);
		pg_atomic_init_u64(&counted[i].spun_ns, 0);
	}
}

void
_PG_init(void)
{
	DefineCustomIntVariable("spinner.settled_ns", "Delay of each execution, in ns.", NULL,
							&settled_ns, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, note_change, NULL);
	DefineCustomIntVariable("spinner.cold_ns", "More of it in the first execution, in ns.", NULL,
							&cold_ns, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, note_change, NULL);
	DefineCustomIntVariable("spinner.only", "Kind of statements: 1 clock, 2 others, 0 all.", NULL,
							&only, 0, 0, 2, PGC_USERSET, 0, NULL, note_change, NULL);
	DefineCustomIntVariable("spinner.cold_runs", "Executions that take longer.", NULL,
							&cold_runs, 8, 1, 100, PGC_USERSET, 0, NULL, note_change, NULL);
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = spin_and_run;
	previous_request = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
}

PG_FUNCTION_INFO_V1(spinner_counted);

Datum
spinner_counted(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *set = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; counted && i < DELAYS; i++)
	{
		uint64		asked = pg_atomic_read_u64(&counted[i].asked);
		Datum		values[3];
		bool		nulls[3] = {false};

		if (asked == 0)
			continue;
		values[0] = Int32GetDatum((int32) (asked - 1));
		values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&counted[i].transactions));
		values[2] = Int64GetDatum((int64) pg_atomic_read_u64(&counted[i].spun_ns));
		tuplestore_putvalues(set->setResult, set->setDesc, values, nulls);
	}
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(spinner_forget);

Datum
spinner_forget(PG_FUNCTION_ARGS)
{
	for (int i = 0; counted && i < DELAYS; i++)
	{
		pg_atomic_write_u64(&counted[i].asked, 0);
		pg_atomic_write_u64(&counted[i].transactions, 0);
		pg_atomic_write_u64(&counted[i].spun_ns, 0);
	}
	PG_RETURN_VOID();
}
