/*-------------------------------------------------------------------------
 * unit.c
 *		The unit under way: switching to its arm, its times, its observation.
 *
 * transaction_bounds.c says what happens to it.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "pgtare.h"

Unit		unit;

/* Put the arm of the coming unit in force, and open that unit. */
void
unit_switch_arm(void)
{
	const TrialDef *def = session.def;
	int64		from = session_ticks();
	uint32		flags = 0;

	memset(&unit, 0, sizeof(unit));
	if (def->nslices > 0)
	{
		slice_follow(from);
		flags = slice_kind() == SLICE_MIXED ? UNIT_MIXED : 0;
	}
	/* before a request that is here already, of a pipeline, the configuration may be read */
	unit.reload_time = PgReloadTime;
	unit.undrawn = run_awaits_request();
	/* until its arm has been drawn it has its own settings */
	unit.arm = unit.undrawn ? 0 : run_arm();
	if (!unit.undrawn &&
		(pg_atomic_read_u32(&session.shared->failed_arm[unit.arm]) ||
		 !settings_apply(def, unit.arm)))
	{
		/* an arm that failed once stays out, for every session alike */
		if (pgtare_begin_write(session.shared, session.generation))
			pg_atomic_write_u32(&session.shared->failed_arm[unit.arm], 1);
		pgtare_end_write(session.shared);
		flags |= UNIT_SWITCH_FAILED;
		settings_restore();
	}
	unit.switch_flags = flags;
	evidence_reset();
	unit.last_statement = GetCurrentStatementStartTimestamp();
	unit.ready_ticks = session_ticks();
	unit.switch_ns = (uint32) Min(session_ns(unit.ready_ticks - from), (int64) UINT32_MAX);
	if (def->take_cpu)
		unit.cpu_ns = clock_system_ns(CLOCK_THREAD_CPUTIME_ID);
}

/*
 * Did the session read the configuration during the unit, as it does at each
 * request of a transaction?  That takes time, and changes values that are the
 * configuration file's.  It leaves alone those that an arm has set, so the unit
 * must not count in any arm: else some arms would be spared that time.
 */
static void
note_reload(void)
{
	if (unlikely(PgReloadTime != unit.reload_time))
		unit.events |= UNIT_RELOADED;
}

/*
 * What is over was a reset and nothing else, as poolers send it between clients:
 * no unit.  The session has its own values now; its arm is put in force again.
 */
void
unit_again(void)
{
	if (pgtare_begin_write(session.shared, session.generation))
		(void) open_close(session.ring);
	pgtare_end_write(session.shared);
	note_reload();
	(void) settings_changed_by_application(false);
	if (unlikely(unit.events & UNIT_RELOADED))
		settings_restore();
	unit_switch_arm();
}

/* All of the unit under way but its times and what it came to */
static void
describe(Observation *o)
{
	memset(o, 0, sizeof(*o));
	o->start_ns = session_ns(unit.first_ticks - session.def->start_ticks);
	o->backend = session.backend;
	o->arm = unit.arm;
	o->requests = (uint16) Min(unit.requests, (uint32) UINT16_MAX);
	o->flags = unit.events | unit.switch_flags;
	run_describe(o);
	o->switch_ns = unit.switch_ns;
	o->pid = MyProcPid;
	o->slice = session.def->nslices > 0 ? slice_number() : NO_SLICE;
}

/* The unit is over: store its observation. */
void
unit_record(int64 ticks, int64 cpu_ns)
{
	Observation o;
	bool		changed;

	note_reload();
	changed = settings_changed_by_application(unit.events & UNIT_RELOADED);
	describe(&o);
	o.service_ns = session_ns(unit.service_ticks);
	o.client_ns = session_ns(unit.client_ticks);
	o.cpu_ns = session.def->take_cpu ? cpu_ns - unit.cpu_ns : -1;
	o.flags |= evidence_flags() | (changed ? UNIT_APP_CHANGED : 0) |
		(session.def->nslices > 0 && slice_over(ticks) ? UNIT_STRADDLED : 0);
	ring_put(&o);
	/* what the configuration says now is the session's own */
	if (unlikely(unit.events & UNIT_RELOADED))
		settings_restore();
}

/* How far the unit under way has come: to a request, to its answer, to a wait for the client */
static void
so_far(OpenUnit *open)
{
	bool		blocked = unit.phase == BUSY && unit.blocked_ticks != 0;
	int64		service = unit.service_ticks;

	if (blocked)
		service += unit.blocked_ticks - unit.request_ticks;
	open->busy = unit.phase == BUSY && !blocked;
	open->since_ticks = open->busy ? unit.request_ticks :
		blocked ? unit.blocked_ticks : unit.ready_ticks;
	describe(&open->so_far);
	open->so_far.flags |= UNIT_OPEN;
	open->so_far.service_ns = session_ns(service);
	open->so_far.client_ns = session_ns(unit.client_ticks);
	open->so_far.cpu_ns = -1;
}

/* Let readers see how far the unit has come. */
void
unit_publish(void)
{
	OpenUnit   *open = open_begin();

	if (open)
		so_far(open);
	open_end(open);
}

/*
 * The session ends: record the unit under way.  A client that takes its leave
 * between transactions has begun none.
 */
void
unit_left_open(void)
{
	OpenUnit	open;
	int64		more;

	if (!unit.begun ||
		(unit.requests == 1 && GetCurrentStatementStartTimestamp() == unit.last_statement))
		return;
	note_reload();
	so_far(&open);
	more = session_ns(session_ticks() - open.since_ticks);
	if (open.busy)
		open.so_far.service_ns += more;
	else
		open.so_far.client_ns += more;
	open.so_far.flags |= evidence_flags() |
		(settings_changed_by_application(unit.events & UNIT_RELOADED) ? UNIT_APP_CHANGED : 0);
	ring_put(&open.so_far);
}

/* A request begins at "ticks". */
void
unit_request_begins(int64 ticks, uint32 flags)
{
	unit.phase = BUSY;
	unit.request_ticks = ticks;
	unit.blocked_ticks = 0;
	unit.requests++;
	unit.events |= flags;
	if (!unit.begun)
	{
		unit.begun = true;
		unit.first_ticks = ticks;
	}
	else
		unit.client_ticks += Max(ticks - unit.ready_ticks, 0);
	unit_publish();
}
