/*-------------------------------------------------------------------------
 * trial.c
 *		Starting, renewing and stopping a trial by SQL.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "pgtare.h"
#include "../common/clock_trust.h"
#include "../common/call_slots.h"
#include "../common/rate.h"

/* A one-dimensional array argument, taken apart */
typedef struct Elements
{
	Datum	   *value;
	bool	   *null;
	int			n;
} Elements;

/*
 * A week: this only catches slips of the pen.  A trial ends with the session that
 * started it, or with its lease, and pgtare.enabled ends it at once.
 */
#define LONGEST_S (7 * 86400)

#define SHORTEST_BASE_NS (20 * 1000 * 1000)

/* Taken when the library was loaded, and inherited by children */
static RateBase at_load;

static uint64 my_trial = 0;		/* generation of the trial that we started */
static bool exit_registered = false;

/* Called when the library is loaded. */
void
trial_init(void)
{
	at_load = rate_base();
}

/* By the counter if the kernel trusts it now; sleeps for up to 20 ms if the base is short. */
ClockRate
trial_clock_rate(void)
{
	return rate_since(clock_trust().counter, &at_load, SHORTEST_BASE_NS);
}

static void
invalid(const char *message)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg_internal("%s", message)));
}

static Elements
array_argument(FunctionCallInfo fcinfo, int number, Oid type)
{
	Elements	e;
	ArrayType  *array;

	if (PG_ARGISNULL(number))
		invalid("an argument of trial_start is null");
	array = PG_GETARG_ARRAYTYPE_P(number);
	if (ARR_NDIM(array) > 1)
		invalid("arrays of trial_start have one dimension");
	if (type == TEXTOID)
		deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &e.value, &e.null, &e.n);
	else if (type == INT8OID)
		deconstruct_array(array, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
						  &e.value, &e.null, &e.n);
	else
		deconstruct_array(array, INT4OID, 4, true, TYPALIGN_INT, &e.value, &e.null, &e.n);
	if (type != TEXTOID)
		for (int i = 0; i < e.n; i++)
			if (e.null[i])
				invalid("a number of trial_start is null");
	return e;
}

static uint32
pool_add(TrialDef *def, uint32 *used, const char *text)
{
	uint32		offset = *used;
	size_t		length = strlen(text) + 1;

	if (length > TEXT_POOL - offset)
		invalid("names and values of the trial's settings are too long together");
	memcpy(def->text + offset, text, length);
	*used += (uint32) length;
	return offset;
}

/* Arms: the settings' names, a value for each arm and setting, block, delays */
static void
read_arms(FunctionCallInfo fcinfo, TrialDef *def, uint32 *used)
{
	Elements	names = array_argument(fcinfo, 0, TEXTOID);
	Elements	values = array_argument(fcinfo, 1, TEXTOID);
	Elements	inject = array_argument(fcinfo, 2, INT8OID);
	Elements	block = array_argument(fcinfo, 3, INT4OID);
	bool		in_block[MAX_ARMS] = {false};

	if (inject.n < 2 || inject.n > MAX_ARMS)
		invalid("a trial has 2 to 32 arms");
	if (names.n > MAX_SETTINGS)
		invalid("a trial has at most 32 settings");
	if (values.n != names.n * inject.n)
		invalid("a trial needs a value for each arm and setting");
	if (block.n < inject.n || block.n > MAX_BLOCK)
		invalid("a block holds each arm at least once, and 64 runs at most");
	def->narms = inject.n;
	def->nsettings = names.n;
	def->nblock = block.n;

	for (int s = 0; s < names.n; s++)
	{
		char	   *name;

		if (names.null[s])
			invalid("the name of a setting is null");
		name = TextDatumGetCString(names.value[s]);
		rights_check_setting(settings_check(name));
		for (int t = 0; t < s; t++)
			if (pg_strcasecmp(name, def->text + def->name[t]) == 0)
				invalid("a setting is named twice");
		def->name[s] = pool_add(def, used, name);
		for (int k = 0; k < def->narms; k++)
		{
			int			i = k * names.n + s;
			char	   *value;

			def->value[k][s] = NO_TEXT;
			if (values.null[i])
				continue;
			value = TextDatumGetCString(values.value[i]);
			settings_try(name, value);	/* the dry run of every arm */
			def->value[k][s] = pool_add(def, used, value);
		}
	}
	for (int k = 0; k < def->narms; k++)
	{
		def->inject_ns[k] = DatumGetInt64(inject.value[k]);
		if (def->inject_ns[k] < 0 || def->inject_ns[k] > INT64CONST(1000000000))
			invalid("inject_ns must lie between 0 and 1,000,000,000");
		rights_check_delay(def->inject_ns[k]);
	}
	for (int i = 0; i < block.n; i++)
	{
		int32		arm = DatumGetInt32(block.value[i]);

		if (arm < 0 || arm >= def->narms)
			invalid("a block names an arm that does not exist");
		def->block[i] = (uint16) arm;
		in_block[arm] = true;
	}
	for (int k = 0; k < def->narms; k++)
		if (!in_block[k])
			invalid("a block must hold every arm");
}

/* The bounds of a run's length */
static void
read_runs(FunctionCallInfo fcinfo, TrialDef *def)
{
	int32		shortest = PG_ARGISNULL(15) ? 0 : PG_GETARG_INT32(15);
	int32		longest = PG_ARGISNULL(16) ? 0 : PG_GETARG_INT32(16);

	if (shortest < 1 || longest < shortest || longest > MAX_RUN)
		invalid("runs have between 1 and 255 transactions");
	def->run_shortest = (uint16) shortest;
	def->run_longest = (uint16) longest;
}

/* Slices: the kinds of a block of slices, and the bounds of their length */
static void
read_slices(FunctionCallInfo fcinfo, TrialDef *def)
{
	Elements	kinds = array_argument(fcinfo, 12, INT4OID);
	int32		min_us = PG_ARGISNULL(13) ? 0 : PG_GETARG_INT32(13);
	int32		max_us = PG_ARGISNULL(14) ? 0 : PG_GETARG_INT32(14);
	bool		mixed = false;

	if (kinds.n == 0)
		return;
	if (kinds.n > MAX_BLOCK)
		invalid("a block of slices holds 64 slices at most");
	if (min_us < 1000 || max_us < min_us || max_us > 1000000)
		invalid("slices last between 1,000 and 1,000,000 microseconds");
	for (int i = 0; i < kinds.n; i++)
	{
		int32		kind = DatumGetInt32(kinds.value[i]);

		if (kind < SLICE_MIXED || kind >= def->narms)
			invalid("a slice names an arm that does not exist");
		mixed |= kind == SLICE_MIXED;
		def->slice_kind[i] = (int16) kind;
	}
	if (mixed && def->narms != 2)
		invalid("in a mixed slice sessions have one of two arms");
	def->nslices = kinds.n;
	def->slice_min_ns = (int64) min_us * 1000;
	def->slice_max_ns = (int64) max_us * 1000;
}

/* Which sessions take part */
static void
read_population(FunctionCallInfo fcinfo, TrialDef *def, uint32 *used)
{
	double		participation = PG_ARGISNULL(9) ? 1.0 : PG_GETARG_FLOAT8(9);

	def->database = PG_ARGISNULL(6) ? InvalidOid :
		get_database_oid(NameStr(*PG_GETARG_NAME(6)), false);
	def->role = PG_ARGISNULL(7) ? InvalidOid :
		get_role_oid(NameStr(*PG_GETARG_NAME(7)), false);
	def->application = pool_add(def, used, PG_ARGISNULL(8) ? "*" :
								text_to_cstring(PG_GETARG_TEXT_PP(8)));
	if (isnan(participation) || participation <= 0 || participation > 1)
		invalid("participation must be above 0 and at most 1");
	def->participation = participation == 1.0 ? UINT32_MAX :
		(uint32) (participation * 4294967295.0);
	rights_limit_population(def);
}

/* Divide the pool among the sessions expected, in powers of two. */
static void
lay_out_rings(Shared *shared, int sessions)
{
	uint64		each = shared->ring_bytes / sizeof(Observation) / sessions;
	uint32		records = 1;

	while (records * 2 <= each && records < (1u << 24))
		records *= 2;
	shared->nrings = sessions;
	shared->ring_records = records;
	for (int i = 0; i < MAX_RINGS; i++)
	{
		Ring	   *ring = &shared->ring[i];

		pg_atomic_write_u64(&ring->head, 0);
		pg_atomic_write_u64(&ring->tail, 0);
		pg_atomic_write_u64(&ring->lost, 0);
		pg_atomic_write_u64(&ring->negative, 0);
		open_clear(ring);
		pg_atomic_write_u32(&ring->state, RING_FREE);
	}
}

/*
 * Wait until nobody writes an observation of the last trial.  That takes less
 * than a microsecond, unless a session was stopped in the midst of it.
 */
static bool
wait_for_writers(Shared *shared)
{
	int			patience = 10000;

	pg_memory_barrier();
	for (int i = 0; i < shared->nwriters; i++)
		while (pg_atomic_read_u32(&shared->writer[i].writing))
		{
			if (patience-- == 0)
				return false;
			pg_usleep(100);
		}
	return true;
}

/* The client that started a trial has gone: nobody would stop it or read it. */
static void
end_my_trial(int code, Datum arg)
{
	Shared	   *shared = pgtare_shared();

	if (shared && my_trial)
		pgtare_end_trial(shared, my_trial, END_OWNER_GONE);
}

PG_FUNCTION_INFO_V1(pgtare_trial_start);

Datum
pgtare_trial_start(PG_FUNCTION_ARGS)
{
	Shared	   *shared = pgtare_require_shared();
	TrialDef   *def = palloc0(sizeof(TrialDef));
	uint32		used = 0;
	double		duration;
	int32		sessions;
	uint64		generation;

	if (!pgtare_enabled)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("trials are switched off by \"pgtare.enabled\"")));
	if (bounds_slots_installed() == 0 && call_slots_problem())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("requests cannot be timed: %s", call_slots_problem())));
	if (bounds_slots_installed() == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("this server's executable has no call slot for recv() or send()"),
				 errdetail("Requests cannot be timed.")));
	if (PG_ARGISNULL(4) || PG_ARGISNULL(5) || PG_ARGISNULL(10) || PG_ARGISNULL(11))
		invalid("an argument of trial_start is null");

	read_arms(fcinfo, def, &used);
	read_population(fcinfo, def, &used);
	read_slices(fcinfo, def);
	read_runs(fcinfo, def);
	def->seed = (uint64) PG_GETARG_INT64(4);
	duration = PG_GETARG_FLOAT8(5);
	if (isnan(duration) || duration <= 0 || duration > LONGEST_S)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("duration must be above 0 and at most %d seconds", LONGEST_S)));
	sessions = PG_GETARG_INT32(10);
	if (sessions < 1 || sessions > MAX_RINGS)
		invalid("sessions must lie between 1 and 1024");
	def->take_cpu = PG_GETARG_BOOL(11);
	def->owner_pid = MyProcPid;
	def->rate = trial_clock_rate();
	if (my_trial == 0 && !exit_registered)
	{
		before_shmem_exit(end_my_trial, (Datum) 0);
		exit_registered = true;
	}

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (pgtare_is_running(shared))
	{
		int			owner = shared->def.owner_pid;

		LWLockRelease(&shared->lock);
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a trial is running already, started by process %d", owner),
				 errhint("Wait for its end, or stop it by \"pgtare stop\" or pgtare.trial_stop().")));
	}
	/* from here on until the number is even again nobody joins or writes */
	generation = pg_atomic_read_u64(&shared->generation) | 1;
	pg_atomic_write_u64(&shared->generation, generation);
	if (!wait_for_writers(shared))
	{
		pg_atomic_write_u64(&shared->generation, generation + 1);
		LWLockRelease(&shared->lock);
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a session of the last trial has been stopped while it wrote")));
	}

	lay_out_rings(shared, sessions);
	pg_atomic_write_u32(&shared->next_backend, 0);
	pg_atomic_write_u32(&shared->next_new, 0);
	pg_atomic_write_u32(&shared->joined_now, 0);
	pg_atomic_write_u32(&shared->no_ring, 0);
	pg_atomic_write_u32(&shared->cannot_join, 0);
	for (int k = 0; k < MAX_ARMS; k++)
		pg_atomic_write_u32(&shared->failed_arm[k], 0);
	def->start_ticks = clock_ticks(def->rate.counter);
	def->deadline_ticks = def->start_ticks +
		clock_ns_to_ticks(&def->rate, (int64) (duration * 1e9));
	def->started = GetCurrentTimestamp();
	memcpy(&shared->def, def, sizeof(TrialDef));
	shared->ended = 0;
	pg_atomic_write_u32(&shared->end_reason, END_NONE);
	pg_atomic_write_u64(&shared->lease_ticks, NO_LEASE);
	pg_write_barrier();
	my_trial = generation + 1;
	pg_atomic_write_u64(&shared->generation, my_trial);
	pg_atomic_write_u32(&shared->running, (uint32) my_trial);
	LWLockRelease(&shared->lock);

	PG_RETURN_INT64((int64) my_trial);
}

PG_FUNCTION_INFO_V1(pgtare_trial_renew);

/*
 * trial_renew(seconds, trial) returns bool: does it run?  From the first call on
 * the trial has a lease: it ends by itself if no other call comes for so long, as
 * when its client hangs or is cut off and the server cannot tell.  Trial 0 is
 * whichever runs; a number keeps a client that hung from a later trial.
 */
Datum
pgtare_trial_renew(PG_FUNCTION_ARGS)
{
	Shared	   *shared = pgtare_require_shared();
	double		seconds = PG_GETARG_FLOAT8(0);
	bool		running;

	if (isnan(seconds) || seconds <= 0 || seconds > LONGEST_S)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a lease must be above 0 and at most %d seconds", LONGEST_S)));
	if (!rights_lock_as_owner(shared, (uint64) PG_GETARG_INT64(1), true))
		PG_RETURN_BOOL(false);
	running = pgtare_is_running(shared);
	if (running)
		pg_atomic_write_u64(&shared->lease_ticks,
							(uint64) (clock_ticks(shared->def.rate.counter) +
									  clock_ns_to_ticks(&shared->def.rate,
														(int64) (seconds * 1e9))));
	LWLockRelease(&shared->lock);
	PG_RETURN_BOOL(running);
}

PG_FUNCTION_INFO_V1(pgtare_trial_stop);

/* trial_stop(trial) returns bool: was it running?  Trial 0 is whichever runs. */
Datum
pgtare_trial_stop(PG_FUNCTION_ARGS)
{
	Shared	   *shared = pgtare_require_shared();
	bool		running;

	if (!rights_lock_as_owner(shared, (uint64) PG_GETARG_INT64(0), true))
		PG_RETURN_BOOL(false);
	running = pgtare_is_running(shared);
	if (running)
		pgtare_end_trial(shared, pg_atomic_read_u64(&shared->generation),
						 shared->def.owner_pid == MyProcPid ? END_FINISHED : END_STOPPED);
	LWLockRelease(&shared->lock);
	PG_RETURN_BOOL(running);
}
