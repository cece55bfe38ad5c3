/*-------------------------------------------------------------------------
 * unit.c
 *		The unit of a trial: a transaction, from its request to its answer.
 *
 * A unit ends in the protocol layer: ReadyForQuery carries the transaction
 * status, and the flush that follows puts the answer on its way.  It begins
 * with the first bytes that recv() returns after that.  Between the two the
 * session is idle, and there, outside every measured interval, the next arm is
 * drawn and its settings are applied.
 *
 *		recv ... ReadyForQuery, flush | record, draw, switch | recv ...
 *		\_________ service time _____/
 *		         CPU time of the cycle: all but the middle part
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/* we need no more of a Port than its socket; the headers of GSSAPI may be missing */
#undef ENABLE_GSS

#include <errno.h>
#include <sys/socket.h>

#include "access/xact.h"
#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"

#include "../common/interpose.h"
#include "pgtare.h"

/* What units outside any block carry; a session's first draws from this stream */
#define NO_BLOCK UINT32_MAX

typedef enum Phase
{
	IDLE,						/* between units, or between requests of one */
	BUSY						/* a request has arrived */
} Phase;

/* The unit under way */
static struct
{
	Phase		phase;
	bool		begun;			/* its first request has arrived */
	int64		ready_ticks;	/* when we were ready for the next request */
	int64		request_ticks;	/* when the current request arrived */
	int64		blocked_ticks;	/* waiting for more of a request, or 0 */
	TimestampTz last_statement; /* statement timestamp when we became ready */
	int64		cpu_ns;			/* thread CPU at the beginning of the cycle */
	uint32		events;			/* UNIT_... from the protocol */
	int64		service_ticks;
	int64		client_ticks;
	int64		first_ticks;
	uint32		requests;
	uint32		switch_ns;
	uint32		switch_flags;	/* UNIT_... of the switch before */
	uint16		arm;
} unit;

/* Where the session stands in its blocks */
static struct
{
	uint32		unit;			/* units finished */
	uint32		block;
	uint16		position;
	bool		outside;		/* the unit under way belongs to no block */
	bool		runs_decided;	/* whether a pair of runs comes first is decided */
	bool		filled;			/* whether a filler comes first is decided */
	uint32		run;			/* runs finished */
	uint16		run_arm;
	uint16		run_length;		/* of the run under way, 0: none */
	uint16		run_position;
	uint16		order[MAX_BLOCK];
	uint32		mixed;			/* the mixed slice that the block is in, or NO_SLICE */
} place;

static const PQcommMethods *chained;
static PQcommMethods ours;
static char ready_status = 0;	/* of the ReadyForQuery that waits for its flush */

static ssize_t (*real_recv) (int, void *, size_t, int) = NULL;
static ssize_t (*real_recv_chk) (int, void *, size_t, size_t, int) = NULL;

static inline int64
now_ticks(void)
{
	return clock_ticks(session.def->rate.counter);
}

static inline int64
to_ns(int64 ticks)
{
	return clock_ns(&session.def->rate, ticks, &session.negative);
}

/* The first or second run of a pair begins. */
static uint16
begin_run(void)
{
	place.run_position = 0;
	assign_run(session.def, session.backend, place.run, &place.run_arm, &place.run_length);
	return place.run_arm;
}

/*
 * The arm of the coming unit; it is used up only when its request arrives.
 *
 * A session's first unit, a filler now and then, and runs belong to no block:
 * the first meets cold caches, fillers keep blocks from marching in step with
 * an application that repeats the same few transactions, and runs show effects
 * that last longer than a block can.
 */
static uint16
draw(void)
{
	uint16		arm;

	place.outside = true;
	if (session.def->nslices > 0)
	{
		int			kind = slice_kind();

		if (kind != SLICE_MIXED)
			return (uint16) kind;
		/* a block does not go on in another slice, a tenth of a second later */
		if (place.mixed != slice_number())
		{
			place.mixed = slice_number();
			if (place.position > 0)
			{
				place.position = 0;
				place.filled = false;
				place.block++;
			}
		}
	}
	if (place.unit == 0)
	{
		assign_block(session.def, session.backend, NO_BLOCK, place.order);
		return place.order[0];
	}
	if (place.run_length > 0)
		return place.run_arm;
	if (place.position == 0)
	{
		if (!place.runs_decided)
		{
			place.runs_decided = true;
			if (assign_runs_before(session.def, session.backend, place.block))
				return begin_run();
		}
		if (!place.filled)
		{
			place.filled = true;
			if (assign_filler(session.def, session.backend, place.block, &arm))
				return arm;
		}
		assign_block(session.def, session.backend, place.block, place.order);
	}
	place.outside = false;
	return place.order[place.position];
}

static void
advance(void)
{
	place.unit++;
	if (place.run_length > 0)
	{
		if (++place.run_position < place.run_length)
			return;
		if (++place.run % 2 == 1)
			(void) begin_run();
		else
			place.run_length = 0;
		return;
	}
	if (place.outside)
		return;
	if (++place.position == session.def->nblock)
	{
		place.position = 0;
		place.runs_decided = false;
		place.filled = false;
		place.block++;
	}
}

/* Put the next arm in force, and open the next unit. */
static void
switch_arm(void)
{
	const TrialDef *def = session.def;
	int64		from = now_ticks();
	uint32		flags = 0;

	memset(&unit, 0, sizeof(unit));
	if (def->nslices > 0)
	{
		slice_follow(from);
		flags = slice_kind() == SLICE_MIXED ? UNIT_MIXED : 0;
	}
	unit.arm = draw();
	if (pg_atomic_read_u32(&session.shared->failed_arm[unit.arm]) ||
		!settings_apply(def, unit.arm))
	{
		/* an arm that failed once stays out, for every session alike */
		if (pgtare_begin_write(session.shared, session.generation))
			pg_atomic_write_u32(&session.shared->failed_arm[unit.arm], 1);
		pgtare_end_write(session.shared);
		flags |= UNIT_SWITCH_FAILED;
		settings_restore();
	}
	session.restored = false;
	unit.switch_flags = flags;
	evidence_reset();
	unit.last_statement = GetCurrentStatementStartTimestamp();
	unit.ready_ticks = now_ticks();
	unit.switch_ns = (uint32) Min(to_ns(unit.ready_ticks - from), (int64) UINT32_MAX);
	if (def->take_cpu)
		unit.cpu_ns = pgtare_thread_cpu_ns();
}

/*
 * Is the unit under way one of those that no estimate counts?  In a slice of
 * one arm only a session's first is; blocks are a matter of mixed slices.
 */
static bool
unblocked(void)
{
	if (session.def->nslices > 0 && !(unit.switch_flags & UNIT_MIXED))
		return place.unit == 0;
	return place.outside;
}

/* All of the unit under way but its times and what it came to */
static void
describe(Observation *o)
{
	bool		in_run = place.run_length > 0;

	memset(o, 0, sizeof(*o));
	o->start_ns = to_ns(unit.first_ticks - session.def->start_ticks);
	o->backend = session.backend;
	o->unit = place.unit;
	o->block = in_run ? place.run : place.outside ? NO_BLOCK : place.block;
	o->position = in_run ? place.run_position : place.outside ? 0 : place.position;
	o->arm = unit.arm;
	o->requests = (uint16) Min(unit.requests, (uint32) UINT16_MAX);
	o->flags = unit.events | unit.switch_flags | (unblocked() ? UNIT_UNBLOCKED : 0) |
		(in_run ? UNIT_RUN : 0);
	o->switch_ns = unit.switch_ns;
	o->pid = MyProcPid;
	o->slice = session.def->nslices > 0 ? slice_number() : NO_SLICE;
}

static void
record(int64 ticks, int64 cpu_ns)
{
	Observation o;
	bool		changed = settings_changed_by_application(unit.events & UNIT_RELOADED);

	describe(&o);
	o.service_ns = to_ns(unit.service_ticks);
	o.client_ns = to_ns(unit.client_ticks);
	o.cpu_ns = session.def->take_cpu ? cpu_ns - unit.cpu_ns : -1;
	o.flags |= evidence_flags() | (changed ? UNIT_APP_CHANGED : 0) |
		(session.def->nslices > 0 && slice_over(ticks) ? UNIT_STRADDLED : 0);
	ring_put(&o);
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
	open->so_far.service_ns = to_ns(service);
	open->so_far.client_ns = to_ns(unit.client_ticks);
	open->so_far.cpu_ns = -1;
}

static void
publish(void)
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
	so_far(&open);
	more = to_ns(now_ticks() - open.since_ticks);
	if (open.busy)
		open.so_far.service_ns += more;
	else
		open.so_far.client_ns += more;
	open.so_far.flags |= evidence_flags() |
		(settings_changed_by_application(unit.events & UNIT_RELOADED) ? UNIT_APP_CHANGED : 0);
	ring_put(&open.so_far);
}

/* A request begins at "ticks". */
static void
begin_request(int64 ticks, uint32 flags)
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
	publish();
}

/* The answer to a request has been flushed; status as in ReadyForQuery. */
static void
answered(char status)
{
	int64		ticks;

	if (!session.joined)
	{
		if (status != 'I')
			return;
		session_consider_joining();
		if (session.joined)
		{
			memset(&place, 0, sizeof(place));
			place.mixed = NO_SLICE;
			slice_begin();
			switch_arm();
		}
		return;
	}

	ticks = now_ticks();
	if (unit.phase == IDLE)
		begin_request(unit.ready_ticks, UNIT_NO_ARRIVAL);
	unit.service_ticks += ticks - unit.request_ticks;
	unit.phase = IDLE;
	if (status != 'I')
	{
		unit.ready_ticks = ticks;
		unit.last_statement = GetCurrentStatementStartTimestamp();
		publish();
		return;
	}

	record(ticks, session.def->take_cpu ? pgtare_thread_cpu_ns() : 0);
	advance();
	/*
	 * A session that took on another role may be out of the trial's reach now.
	 * A trial that closes lets each session finish its block or runs; slices
	 * have an end of their own.
	 */
	if (session_trial_over(ticks) || !rights_session_may_join(session.def) ||
		(((place.position == 0 && place.run_length == 0) || session.def->nslices > 0) &&
		 session_trial_closing()))
		session_leave();
	else
		switch_arm();
}

/*
 * The first bytes of a request are here.  An idle session learns only now that
 * its trial is over, or that the configuration is about to be read again; it
 * gets its settings back before the request is looked at.  Where its slice has
 * ended meanwhile it takes the arm of the one that runs, so that a session that
 * is mostly idle follows the slices too; the switch is over when the clock of
 * the service time starts.
 */
static void
arrived(void)
{
	int64		ticks = now_ticks();
	uint32		flags = 0;

	if (!unit.begun && !IsTransactionOrTransactionBlock())
	{
		if (session_trial_over(ticks))
		{
			session_leave();
			return;
		}
		if (ConfigReloadPending)
		{
			settings_restore();
			session.restored = true;
			flags = UNIT_RELOADED;
			ticks = now_ticks();
		}
		else if (session.def->nslices > 0 && slice_over(ticks) &&
				 GetCurrentStatementStartTimestamp() == unit.last_statement)
		{
			switch_arm();
			ticks = now_ticks();
		}
	}
	/* where the request's beginning was buffered it is under way already */
	if (GetCurrentStatementStartTimestamp() != unit.last_statement)
		begin_request(unit.ready_ticks, flags | UNIT_NO_ARRIVAL);
	else
		begin_request(ticks, flags);
}

static void
received(int fd, ssize_t result)
{
	if (MyProcPort == NULL || fd != MyProcPort->sock)
		return;
	if (result > 0)
	{
		if (unit.phase == IDLE)
			arrived();
		else if (unit.blocked_ticks)
		{
			/* the client took its time with the rest of the request */
			int64		waited = Max(now_ticks() - unit.blocked_ticks, 0);

			unit.client_ticks += waited;
			unit.request_ticks += waited;
			unit.blocked_ticks = 0;
			publish();
		}
	}
	else if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
	{
		/* the first messages of a request came along with the one before */
		if (unit.phase == IDLE && GetCurrentStatementStartTimestamp() != unit.last_statement)
			begin_request(unit.ready_ticks, UNIT_NO_ARRIVAL);
		if (unit.phase == BUSY && unit.blocked_ticks == 0)
		{
			unit.blocked_ticks = now_ticks();
			publish();
		}
	}
}

static ssize_t
pgtare_recv(int fd, void *buffer, size_t length, int flags)
{
	ssize_t		result = real_recv(fd, buffer, length, flags);

	if (session.joined)
	{
		int			save_errno = errno;

		received(fd, result);
		errno = save_errno;
	}
	return result;
}

static ssize_t
pgtare_recv_chk(int fd, void *buffer, size_t length, size_t size, int flags)
{
	ssize_t		result = real_recv_chk(fd, buffer, length, size, flags);

	if (session.joined)
	{
		int			save_errno = errno;

		received(fd, result);
		errno = save_errno;
	}
	return result;
}

/* Busy-wait inside the measured interval: a known effect, for calibration. */
static void
inject(void)
{
	int64		ns = session.def->inject_ns[unit.arm];
	int64		until = now_ticks() + clock_ns_to_ticks(&session.def->rate, ns);

	/* no place to handle an interrupt: the server does so once it has answered */
	while (ns > 0 && now_ticks() < until && !InterruptPending)
		;
}

static int
pgtare_putmessage(char type, const char *body, size_t length)
{
	switch (type)
	{
		case 'Z':				/* ReadyForQuery */
			if (length > 0)
				ready_status = body[0];
			if (session.joined && ready_status == 'I')
				inject();
			break;
		case 'E':				/* ErrorResponse */
			evidence_error_sent();
			break;
		case 'G':				/* CopyInResponse */
		case 'H':				/* CopyOutResponse */
		case 'W':				/* CopyBothResponse */
			unit.events |= UNIT_COPY;
			break;
		default:
			break;
	}
	return chained->putmessage(type, body, length);
}

static int
pgtare_flush(void)
{
	int			result = chained->flush();

	if (ready_status)
	{
		char		status = ready_status;

		ready_status = 0;
		answered(status);
	}
	return result;
}

static InterposeEntry slots[] = {
	{"recv", (void *) pgtare_recv, (void **) &real_recv, 0},
	{"__recv_chk", (void *) pgtare_recv_chk, (void **) &real_recv_chk, 0},
};

void
unit_install(void)
{
	interpose_install(slots, lengthof(slots));
	if (interpose_problem())
		ereport(process_shared_preload_libraries_in_progress ? WARNING : LOG,
				(errmsg("pgtare: %s", interpose_problem()),
				 errhint("Let the server's processes call mprotect with PROT_WRITE and with "
						 "PROT_READ, and restart the server.")));
	chained = PqCommMethods;
	ours = *chained;
	ours.putmessage = pgtare_putmessage;
	ours.flush = pgtare_flush;
	PqCommMethods = &ours;
}

int
unit_slots_installed(void)
{
	int			n = 0;

	for (int i = 0; i < (int) lengthof(slots); i++)
		n += slots[i].slots;
	return n;
}

/* In this process, at this moment */
int
unit_slots_intact(void)
{
	return interpose_verify(slots, lengthof(slots));
}
