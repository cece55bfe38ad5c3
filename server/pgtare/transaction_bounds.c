/*-------------------------------------------------------------------------
 * transaction_bounds.c
 *		Where a unit of a trial, which is a transaction, begins and ends.
 *
 * A unit ends in the protocol layer: ReadyForQuery carries the transaction
 * status, and the flush that follows puts the answer on its way.  It begins
 * with the first bytes that recv() returns after that.  Between the two the
 * session is idle, and there, outside every measured interval, the settings of the
 * next arm are applied if it is another.  A DISCARD ALL or RESET by itself, which a
 * pooler sends between its clients, is no unit: the arm is put in force again.
 *
 * Sending is no service time: it wakes the client.  If that runs on the same
 * processor, the session may have to wait in send() until the client has read the
 * answer, the sooner the longer it has been running, so that an arm would be charged
 * for its client.
 *
 *		recv ... ReadyForQuery | send | rest of flush | record, draw, switch | recv ...
 *		\____ service time ____/      \_____________/
 *		         CPU time of the cycle: all but "record, draw, switch"
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "../common/protocol_hooks.h"	/* before libpq-be.h */

#include <errno.h>
#include <sys/socket.h>

#include "access/xact.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "utils/timestamp.h"

#include "../common/call_slots.h"
#include "pgtare.h"

static ProtocolHooks hooks;
static char ready_status = 0;	/* of the ReadyForQuery that waits for its flush */
static int64 send_ticks = 0;	/* of the request under way: sending to the client */
static int64 full_ticks = 0;	/* since when the client has to read before more can be sent */

static ssize_t (*real_send) (int, const void *, size_t, int) = NULL;
static ssize_t (*real_recv) (int, void *, size_t, int) = NULL;
static ssize_t (*real_recv_chk) (int, void *, size_t, size_t, int) = NULL;

/* A statement is done: is it a reset?  "tag": as in CommandComplete. */
static void
note_command(const char *tag)
{
	if (strcmp(tag, "DISCARD ALL") == 0 || strcmp(tag, "RESET") == 0)
		unit.reset = true;
	else
		unit.worked = true;
}

/* The answer to a request has been flushed; status as in ReadyForQuery. */
static void
answered(char status)
{
	int64		ticks;
	bool		no_unit;

	if (!session.joined)
	{
		if (status != 'I')
			return;
		joining_consider();
		if (session.joined)
		{
			run_join();
			slice_begin();
			unit_switch_arm();
		}
		return;
	}

	ticks = session_ticks();
	if (unit.phase == IDLE)
		unit_request_begins(unit.ready_ticks, UNIT_NO_ARRIVAL);
	unit.service_ticks += ticks - unit.request_ticks - send_ticks;
	unit.client_ticks += send_ticks;
	send_ticks = 0;
	unit.phase = IDLE;
	if (status != 'I')
	{
		unit.ready_ticks = ticks;
		unit.last_statement = GetCurrentStatementStartTimestamp();
		unit_publish();
		return;
	}

	no_unit = unit.reset && !unit.worked;
	if (!no_unit)
	{
		unit_record(ticks,
					session.def->take_cpu ? clock_system_ns(CLOCK_THREAD_CPUTIME_ID) : 0);
		run_advance();
	}
	/* A session that took on another role may be out of the trial's reach now. */
	if (session_trial_over(ticks) || !rights_session_may_join(session.def))
		joining_leave();
	else if (no_unit)
		unit_again();
	else
		unit_switch_arm();
}

/*
 * The first bytes of a request are here, or of the message by which a client takes its
 * leave.  An idle session learns only now that
 * its trial is over, or that the configuration is about to be read again; it
 * gets its settings back before the request is looked at.  If its slice has
 * ended by then it takes the arm of the one that runs, so that a session that
 * is mostly idle follows the slices too; the switch is over when the clock of
 * the service time starts.
 */
static void
arrived(bool leaves)
{
	int64		ticks = session_ticks();
	uint32		flags = 0;

	if (!unit.begun && !IsTransactionOrTransactionBlock())
	{
		if (session_trial_over(ticks))
		{
			joining_leave();
			return;
		}
		if (ConfigReloadPending)
		{
			settings_restore();
			flags = UNIT_RELOADED;
			ticks = session_ticks();
		}
		else if (GetCurrentStatementStartTimestamp() == unit.last_statement &&
				 (unit.undrawn ? !leaves : session.def->nslices > 0 && slice_over(ticks)))
		{
			if (unit.undrawn)
				run_draw_first();
			unit_switch_arm();
			ticks = session_ticks();
		}
	}
	/* if the request's beginning was buffered it is under way already */
	if (GetCurrentStatementStartTimestamp() != unit.last_statement)
		unit_request_begins(unit.ready_ticks, flags | UNIT_NO_ARRIVAL);
	else
	{
		send_ticks = full_ticks = 0;	/* what came unasked, as notifications */
		unit_request_begins(ticks, flags);
	}
}

static void
received(int fd, const void *buffer, ssize_t result)
{
	if (MyProcPort == NULL || fd != MyProcPort->sock)
		return;
	if (result > 0)
	{
		if (unit.phase == IDLE)
			/* Terminate; over TLS it looks like a request */
			arrived(*(const char *) buffer == 'X');
		else if (unit.blocked_ticks)
		{
			/* the client took its time with the rest of the request */
			int64		waited = Max(session_ticks() - unit.blocked_ticks, 0);

			unit.client_ticks += waited;
			unit.request_ticks += waited;
			unit.blocked_ticks = 0;
			unit_publish();
		}
	}
	else if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
	{
		/* the first messages of a request came along with the one before */
		if (unit.phase == IDLE && GetCurrentStatementStartTimestamp() != unit.last_statement)
			unit_request_begins(unit.ready_ticks, UNIT_NO_ARRIVAL);
		if (unit.phase == BUSY && unit.blocked_ticks == 0)
		{
			unit.blocked_ticks = session_ticks();
			unit_publish();
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

		received(fd, buffer, result);
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

		received(fd, buffer, result);
		errno = save_errno;
	}
	return result;
}

static ssize_t
pgtare_send(int fd, const void *buffer, size_t length, int flags)
{
	int64		from,
				to;
	ssize_t		result;

	if (!session.joined || MyProcPort == NULL || fd != MyProcPort->sock)
		return real_send(fd, buffer, length, flags);
	from = full_ticks ? full_ticks : session_ticks();
	result = real_send(fd, buffer, length, flags);
	to = session_ticks();
	send_ticks += to - from;
	full_ticks = result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? to : 0;
	return result;
}

/* Busy-wait inside the measured interval: a known effect, for calibration. */
static void
inject(void)
{
	int64		ns = session.def->inject_ns[unit.arm];
	int64		until = session_ticks() + clock_ns_to_ticks(&session.def->rate, ns);

	/* no place to handle an interrupt: the server does so once it has answered */
	while (ns > 0 && session_ticks() < until && !InterruptPending)
		;
}

static int
pgtare_putmessage(char type, const char *body, size_t length)
{
	bool		ready = type == 'Z' && length > 0;
	int			result;

	switch (type)
	{
		case 'Z':				/* ReadyForQuery */
			if (session.joined && ready && body[0] == 'I')
				inject();
			break;
		case 'C':				/* CommandComplete */
			if (session.joined && length > 0)
				note_command(body);
			break;
		case 'E':				/* ErrorResponse */
			unit.worked = true;
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
	result = hooks.chained->putmessage(type, body, length);
	if (ready)
		ready_status = body[0];
	return result;
}

/* What another module reports in the meantime is flushed within this flush, and is no answer. */
static int
pgtare_flush(void)
{
	char		status = ready_status;
	int			result;

	ready_status = 0;
	result = hooks.chained->flush();
	if (status)
		answered(status);
	return result;
}

static CallSlot slots[] = {
	{"send", (void *) pgtare_send, (void **) &real_send, 0},
	{"recv", (void *) pgtare_recv, (void **) &real_recv, 0},
	{"__recv_chk", (void *) pgtare_recv_chk, (void **) &real_recv_chk, 0},
};

void
bounds_install(void)
{
	call_slots_replace(slots, lengthof(slots));
	if (call_slots_problem())
		ereport(process_shared_preload_libraries_in_progress ? WARNING : LOG,
				(errmsg("pgtare: %s", call_slots_problem()),
				 errhint("Let the server's processes call mprotect with PROT_WRITE and with "
						 "PROT_READ, and restart the server.")));
	protocol_hooks_install(&hooks, pgtare_putmessage, pgtare_flush);
}

/* None if either end of a request cannot be timed. */
int
bounds_slots_installed(void)
{
	int			sends = slots[0].slots,
				n = 0;

	for (int i = 0; i < (int) lengthof(slots); i++)
		n += slots[i].slots;
	return sends > 0 && n > sends ? n : 0;
}

/* In this process, at this moment */
int
bounds_slots_intact(void)
{
	return call_slots_intact(slots, lengthof(slots));
}
