/*-------------------------------------------------------------------------
 * request.c
 *		A request of the client (request.h).
 *-------------------------------------------------------------------------
 */
#include "request.h"
#include "fetches.h"
#include "fused.h"
#include "plain.h"
#include "secrets.h"
#include "statement.h"
#include "../core/kept.h"
#include "../core/level.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "../../common/pg_compat.h"

static TimestampTz message_seen = 0;	/* statement timestamp of the message under way */
static uint32 messages;			/* answered of this request */

/* Others may have taken the rings of a session that idled. */
static pg_noinline void
claim_rings(void)
{
	if (!recorder_claim())
		level_ring_lost();
	if (!timeline_claim_waits())
		level_waits_lost();
}

/* Something begins, after ReadyForQuery: a request is under way. */
void
request_begins(bool can_open)
{
	bool		drawn;

	if (unlikely(recorder_block.rests))
		claim_rings();
	series_forget();
	text_forget();
	if (trace.ring != NULL && unlikely((ClockSource) timeline_clock != timeline_source))
		timeline_follow_clock();
	level_update(can_open);
	trace.request = true;
	trace.now_level = trace.level;
	drawn = level_statement_rate >= 1 ||
		pg_prng_double(&pg_global_prng_state) < level_statement_rate;
	trace.on = trace.level > 0 && trace.ring != NULL && drawn;
	request_statement(0, false);
	trace.secret_depth = INT_MAX;
	trace.secret_met = false;
	trace.depth = 0;
	trace.current = 0;
	messages = 0;
	trace.request_start = -1;
	message_seen = 0;
	if (trace.on)
	{
		fused_begin();
		if (LEVEL_WAITS(trace.level))
			timeline_follow_waits();
	}
	if (unlikely(trigger_armed))
		trigger_request_begins(trace.on);
}

/*
 * When the message under way arrived, in the ring's time; learned at the first
 * call for each message, which happens "now".
 */
int64
request_message_arrived_by(int64 now)
{
	TimestampTz at = GetCurrentStatementStartTimestamp();

	plain_else();
	if (at == message_seen)
		return trace.arrived;
	message_seen = at;
	trace.arrived = timeline_arrival(at, now);
	/* the wall clock counts in microseconds */
	if (trace.arrived < trace.last_end)
		trace.arrived = trace.last_end;
	trace.covered = 0;
	if (trace.request_start == -1)
		trace.request_start = trace.arrived;
	return trace.arrived;
}

int64
request_message_arrived(void)
{
	return GetCurrentStatementStartTimestamp() == message_seen ? trace.arrived :
		request_message_arrived_by(timeline_now());
}

/* A statement of the request has been answered. */
void
request_answered(int64 now)
{
	messages++;
	trace.answered = true;
	trace.last_end = now;
}

static void
detach(int code, Datum arg)
{
	Shared	   *shared = shmem_get();

	ring_leave();
	if (trace.ring)
		record_flush();
	if (trace.slot && shared)
	{
		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		trace.slot->pid = 0;
		LWLockRelease(&shared->lock);
	}
	trace.on = false;
	trace.client = false;
	trace.request = true;		/* none will be */
}

/* This session is ready for its client: take the slot that belongs to it. */
static void
attach(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *slot;

	if (shared == NULL || MY_PROC_NUMBER >= shared->nslots || MyBackendType != B_BACKEND)
		return;
	slot = shmem_slot(shared, MY_PROC_NUMBER);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	level_begin(slot);
	slot->pid = MyProcPid;
	LWLockRelease(&shared->lock);
	trace.slot = slot;
	trace.client = true;
	before_shmem_exit(detach, (Datum) 0);
}

/* ReadyForQuery is on its way, with this status of the transaction. */
void
request_ends(char status)
{
	bool		traced = trace.on;

	if (trace.slot == NULL)
		attach();
	if (!trace.client)
		return;
	if (unlikely(recorder_block.rests))
		claim_rings();			/* nothing happened in this request */
	secrets_watch_errors();
	trace.unseen = status != 'I' && (trace.unseen || !traced);
	if (trace.request && trace.on)
	{
		RequestRecord record;
		int64		now;

		if (plain.stage != PLAIN_NONE)
			plain_answered();
		now = timeline_now();
		if (unlikely(trace.request_start == -1))
			(void) request_message_arrived_by(now);
		record.cpu = timeline_cpu(now);
		if (unlikely(!fused_end((unsigned char) status, messages, record.cpu, now)))
		{
			record.start = trace.request_start;
			record.status = (unsigned char) status;
			record.messages = messages;
			record_write(RECORD_REQUEST, 0, 0, now, &record, sizeof(record));
		}
		trace.last_end = now;
		if (LEVEL_WAITS(trace.now_level) && trace.slot->trace.waits)
			trace.slot->trace.counters.wait_requests++;
		if (unlikely(trigger_armed))
			trigger_request_ended(now - trace.request_start, messages);
	}
	trace.request = false;
	trace.on = false;
	fused.open = false;
	trace.depth = 0;
	trace.current = 0;
	level_answered();
	if (ring_rest(traced, status))
		level_ring_given_up();
	ended_look();
	if (unlikely(trigger_armed))
		trigger_answer_leaves();
}
