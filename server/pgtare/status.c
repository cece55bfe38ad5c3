/*-------------------------------------------------------------------------
 * status.c
 *		What the trial, and the module itself, are doing.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"

#include "pgtare.h"
#include "../common/clock_trust.h"
#include "../common/call_slots.h"
#include "../common/sql_rows.h"

static const char *
reason_name(EndReason reason)
{
	switch (reason)
	{
		case END_NONE:
			break;
		case END_FINISHED:
			return "finished";
		case END_STOPPED:
			return "stopped";
		case END_DEADLINE:
			return "deadline";
		case END_OWNER_GONE:
			return "owner gone";
		case END_KILL_SWITCH:
			return "kill switch";
		case END_LEASE_EXPIRED:
			return "lease expired";
	}
	return NULL;
}

PG_FUNCTION_INFO_V1(pgtare_trial_status);

/* trial_status(): one row; see the script for its columns */
Datum
pgtare_trial_status(PG_FUNCTION_ARGS)
{
	Shared	   *shared = pgtare_require_shared();
	Datum		values[15];
	bool		nulls[15] = {false};
	uint64		observations = 0;
	uint64		lost = 0;
	uint64		negative = 0;
	Datum		failed[MAX_ARMS];
	int			nfailed = 0;
	const char *reason;
	bool		running;
	double		left = 0;
	uint64		ignored = 0;

	LWLockAcquire(&shared->lock, LW_SHARED);
	running = pgtare_is_running(shared);
	for (int i = 0; i < shared->nrings; i++)
	{
		uint64		head = pg_atomic_read_u64(&shared->ring[i].head);

		observations += head;
		lost += pg_atomic_read_u64(&shared->ring[i].lost);
		negative += pg_atomic_read_u64(&shared->ring[i].negative);
	}
	for (int k = 0; k < shared->def.narms; k++)
		if (pg_atomic_read_u32(&shared->failed_arm[k]))
			failed[nfailed++] = Int32GetDatum(k);
	if (running)
		left = clock_ns(&shared->def.rate, shared->def.deadline_ticks -
						clock_ticks(shared->def.rate.counter), &ignored) / 1e9;
	LWLockRelease(&shared->lock);

	reason = running ? NULL : reason_name(pg_atomic_read_u32(&shared->end_reason));
	values[0] = BoolGetDatum(running);
	values[1] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->generation));
	values[2] = Int32GetDatum(shared->def.owner_pid);
	values[3] = TimestampTzGetDatum(shared->def.started);
	values[4] = TimestampTzGetDatum(shared->ended);
	values[5] = Float8GetDatum(left);
	values[6] = reason ? CStringGetTextDatum(reason) : (Datum) 0;
	values[7] = Int32GetDatum((int32) pg_atomic_read_u32(&shared->next_backend));
	values[8] = Int32GetDatum((int32) pg_atomic_read_u32(&shared->joined_now));
	values[9] = Int32GetDatum((int32) pg_atomic_read_u32(&shared->no_ring));
	values[10] = Int32GetDatum((int32) pg_atomic_read_u32(&shared->cannot_join));
	values[11] = Int64GetDatum((int64) observations);
	values[12] = Int64GetDatum((int64) lost);
	values[13] = Int64GetDatum((int64) negative);
	values[14] = PointerGetDatum(construct_array(failed, nfailed, INT4OID, 4, true,
												 TYPALIGN_INT));
	nulls[2] = shared->def.started == 0;
	nulls[3] = shared->def.started == 0;
	nulls[4] = running || shared->ended == 0;
	nulls[6] = reason == NULL;
	return sql_row(fcinfo, values, nulls);
}

PG_FUNCTION_INFO_V1(pgtare_info);

/* info(): one row; see the script for its columns */
Datum
pgtare_info(PG_FUNCTION_ARGS)
{
	Shared	   *shared = pgtare_shared();
	Datum		values[10];
	bool		nulls[10] = {false};
	ClockRate	rate = trial_clock_rate();
	const char *problem = call_slots_problem();

	values[0] = CStringGetTextDatum(PGTARE_VERSION);
	values[1] = BoolGetDatum(shared != NULL);
	values[2] = CStringGetTextDatum(rate.counter ? "tsc" : "monotonic");
	values[3] = Float8GetDatum((double) rate.hz);
	values[4] = Int32GetDatum(bounds_slots_installed());
	values[5] = Int32GetDatum(bounds_slots_intact());
	values[6] = Int64GetDatum(shared ? (int64) shared->ring_bytes : 0);
	nulls[6] = shared == NULL;
	values[7] = Int32GetDatum(MAX_RINGS);
	values[8] = problem ? CStringGetTextDatum(problem) : (Datum) 0;
	nulls[8] = problem == NULL;
	values[9] = CStringGetTextDatum(clock_trust().reason);
	return sql_row(fcinfo, values, nulls);
}

PG_FUNCTION_INFO_V1(pgtare_library_version);

/* library_version(): of this library, whatever files are installed now */
Datum
pgtare_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(PGTARE_VERSION));
}
