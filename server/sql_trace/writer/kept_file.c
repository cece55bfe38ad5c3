/*-------------------------------------------------------------------------
 * kept_file.c
 *		A kept trace as a trace file, in memory: for the worker that writes it, and
 *		for clients.
 *
 * The calls are those of the copied ring, or of the ring of the session that
 * ended, or of one that goes on.  The waits are those of the copied ring of waits,
 * and of the rings that wait_event_timing has of the session, if that was not copied,
 * and of its parallel workers.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"

#include "utils/backend_status.h"

#include "../../common/event_name.h"
#include "../../common/pg_compat.h"

static char *
same_wait_name(const SameWait *seen)
{
	const char *type = pgstat_get_wait_event_type(seen->event);

	return psprintf("%s/%s", type ? type : "???", event_name(seen->event));
}

static void
put_same_wait(StringInfo json, const SameWait *seen)
{
	appendStringInfo(json, ", \"same_wait\": {\"sessions\": %d, \"waited_ns\": " INT64_FORMAT,
					 seen->sessions, seen->waited_ns);
	tables_json_name(json, "event", same_wait_name(seen));
	appendStringInfoString(json, ", \"at\": \"");
	tables_json_time(json, seen->at);
	appendStringInfoString(json, "\", \"pids\": [");
	for (int i = 0; i < Min(seen->sessions, MOST_IN_SAME_WAIT); i++)
		appendStringInfo(json, "%s%d", i > 0 ? ", " : "", seen->pids[i]);
	appendStringInfoString(json, "]}");
}

/* A sentence for every report */
static char *
same_wait_note(const SameWait *seen)
{
	StringInfoData note;

	initStringInfo(&note);
	appendStringInfo(&note, "in the same wait, %s, as it ended: %d other process%s",
					 same_wait_name(seen), seen->sessions, seen->sessions == 1 ? "" : "es");
	for (int i = 0; i < Min(seen->sessions, MOST_IN_SAME_WAIT); i++)
		appendStringInfo(&note, "%s%d", i > 0 ? ", " : " (", seen->pids[i]);
	if (seen->sessions > 0)
		appendStringInfoString(&note, seen->sessions > MOST_IN_SAME_WAIT ? ", ...)" : ")");
	appendStringInfoString(&note, "; who held the lock is not known");
	return note.data;
}

/*
 * What a session does at this moment, as the server says it.  The ring of one that goes
 * on says what it has done: of a request under way little, of one that is not traced
 * nothing, and what came last in it may be over for long.
 */
typedef struct Doing
{
	const char *state;			/* as pg_stat_activity names it */
	bool		running;		/* a statement */
	TimestampTz since;			/* when that began, or when the session was left idle */
	const char *event;			/* class and name of what it waits for; NULL: nothing */
} Doing;

/* As pg_stat_activity names it; NULL: it is not known. */
static const char *
state_name(BackendState state)
{
	static const char *const names[] = {
		[STATE_IDLE] = "idle",[STATE_RUNNING] = "active",
		[STATE_IDLEINTRANSACTION] = "idle in transaction",
		[STATE_FASTPATH] = "fastpath function call",
		[STATE_IDLEINTRANSACTION_ABORTED] = "idle in transaction (aborted)"
	};

	return state < lengthof(names) ? names[state] : NULL;
}

/* The event that a process waits for; 0: none */
static uint32
event_of(int pid)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
		if (ProcGlobal->allProcs[i].pid == pid)
			return *(volatile uint32 *) &ProcGlobal->allProcs[i].wait_event_info;
	return 0;
}

/* False: the session has gone, or does not say. */
static bool
find_doing(int pid, Doing *found)
{
	uint32		event;
	const char *type;
	int			n;

	found->state = NULL;
	pgstat_clear_backend_activity_snapshot();
	n = pgstat_fetch_stat_numbackends();
	for (int i = 1; i <= n && found->state == NULL; i++)
	{
		const PgBackendStatus *status = &LOCAL_STATUS(i)->backendStatus;

		if (status->st_procpid != pid)
			continue;
		found->state = state_name(status->st_state);
		found->running = status->st_state == STATE_RUNNING || status->st_state == STATE_FASTPATH;
		found->since = found->running ? status->st_activity_start_timestamp :
			status->st_state_start_timestamp;
	}
	pgstat_clear_backend_activity_snapshot();
	event = event_of(pid);
	type = pgstat_get_wait_event_type(event);
	found->event = type ? psprintf("%s/%s", type, event_name(event)) : NULL;
	return found->state != NULL && found->since != 0;
}

static void
put_doing(StringInfo json, int pid)
{
	Doing		doing;

	if (!find_doing(pid, &doing))
		return;
	appendStringInfo(json, ", \"doing\": {\"state\": \"%s\", \"running\": %s, \"since\": \"",
					 doing.state, doing.running ? "true" : "false");
	tables_json_time(json, doing.since);
	appendStringInfoChar(json, '"');
	if (doing.event)
		tables_json_name(json, "event", doing.event);
	appendStringInfoChar(json, '}');
}

static char *
description(const KeptTrace *kept, const SessionRecord *session)
{
	StringInfoData json;
	char		detail[KEPT_DETAIL];

	trigger_detail(&kept->trigger, detail, sizeof(detail));
	initStringInfo(&json);
	appendStringInfo(&json, "{\"id\": " INT64_FORMAT ", \"cause\": \"%s\", \"detail\": \"%s\", "
					 "\"incident\": " INT64_FORMAT ", \"pid\": %d, \"query_id\": " INT64_FORMAT
					 ", \"at\": \"", kept->id, trigger_cause_name(kept->trigger.cause), detail,
					 kept->incident, kept->trace.pid, kept->trigger.query_id);
	tables_json_time(&json, kept->trigger.at);
	appendStringInfoChar(&json, '"');
	tables_json_name(&json, "role", session->role_name);
	tables_json_name(&json, "database", session->database_name);
	tables_json_name(&json, "application", kept->trace.application);
	if (kept->trigger.same_wait.event != 0)
		put_same_wait(&json, &kept->trigger.same_wait);
	if (kept->is_live)
		put_doing(&json, kept->trace.pid);
	appendStringInfoChar(&json, '}');
	return json.data;
}

/* A ring of the session, or of its workers, as the file lists it */
static Drained
begin_ring(Recording *recording, const KeptTrace *kept, const SessionRecord *session, void *ring)
{
	return (Drained) {
		.number = ++recording->nrings,.ring = ring,.user = session->role_name,
		.database = session->database_name,.application = kept->trace.application
	};
}

/* When its oldest record was written */
static TimestampTz
reaches_to(Ring *ring, char *buffer)
{
	uint64		tail = pg_atomic_read_u64(&ring->tail);
	RingCopy	first;

	if (tail == 0)
		return ring->started;
	first = ring_copy(ring, tail, buffer, KEPT_CHUNK);
	/* not before that record: then nobody takes what the ring forgot for a loss */
	return ring->started + (first.size == 0 ? 1 :
							Max((((const RecordHeader *) first.data)->time + 999) / 1000, 1));
}

static void
put_calls(Recording *recording, const KeptTrace *kept, Ring *ring)
{
	Drained		calls = begin_ring(recording, kept, &ring->session, ring);

	calls.started = ring->started;
	calls.pid = kept->trace.pid;
	if (kept->is_copy)
	{
		calls.names = (const char *) ring + kept_copy_size(ring);
		calls.names_size = kept->names;
	}
	tables_write_calls(recording, &calls);
}

static void
put_waits(Recording *recording, const KeptTrace *kept, const SessionRecord *session,
		  const WaitRing *found)
{
	MappedRing	mapped = ring_place_map(found->handle);
	Drained		waits;

	if (mapped.ring == NULL)
		return;
	waits = begin_ring(recording, kept, session, mapped.ring);
	waits.waits = true;
	waits.started = found->started;
	waits.pid = found->pid;
	waits.leader_pid = found->leader_pid;
	tables_write_waits(recording, &waits);
	ring_place_unmap(&mapped);
}

/* Numbers of processes come again: the ring began after the session, and before the trigger fired. */
static bool
is_of_session(const KeptTrace *kept, const SessionRecord *session, const WaitRing *waits)
{
	return waits->handle != 0 && waits->started >= session->session_started &&
		waits->started <= kept->trigger.at &&
		(waits->leader_pid == kept->trace.pid ||
		 (waits->pid == kept->trace.pid && !kept->is_copy));
}

static void
put_all_waits(Recording *recording, const KeptTrace *kept, const SessionRecord *session)
{
	const WaitRingsOffer *offer = tables_waits_offer();
	WaitRing	waits;

	if (offer == NULL)
		return;
	if (kept->waits != 0)
	{
		waits.pid = kept->trace.pid;
		waits.leader_pid = 0;
		waits.handle = kept->waits;
		waits.started = kept->waits_started;
		put_waits(recording, kept, session, &waits);
	}
	for (uint32 place = 0; offer->look(place, &waits); place++)
		if (is_of_session(kept, session, &waits))
			put_waits(recording, kept, session, &waits);
}

static void
put_end(Recording *recording, const KeptTrace *kept, bool cut)
{
	TraceFile  *file = &recording->file;
	StringInfoData json;
	char		detail[KEPT_DETAIL];
	double		reach = (double) (kept->trigger.at - recording->began) / USECS_PER_SEC;

	trigger_detail(&kept->trigger, detail, sizeof(detail));
	initStringInfo(&json);
	appendStringInfo(&json, "{\"stopped_by\": \"kept\", \"why\": \"\", \"seconds\": %.3f, "
					 "\"losses\": {}, \"notes\": [\"kept because of %s (%s) at ", reach,
					 trigger_cause_name(kept->trigger.cause), detail);
	tables_json_time(&json, kept->trigger.at);
	appendStringInfo(&json, "; it reaches back %.3f s before that, %s\"", reach,
					 cut ? "what was earlier had been overwritten" :
					 "to where the trace of the session began");
	if (kept->trigger.same_wait.event != 0)
	{
		appendStringInfoString(&json, ", ");
		tables_json_text(&json, same_wait_note(&kept->trigger.same_wait));
	}
	appendStringInfoString(&json, "]}");
	block_begin(file, TABLE_END, 1);
	block_bytes(file, "json", json.data, json.len);
	block_end(file);
}

/*
 * Make the file of a kept trace, in the memory context under way.  False: it has
 * just been given up.
 */
bool
kept_file(const KeptTrace *kept, StringInfoData *bytes)
{
	MappedRing	mapped = ring_place_map(kept->trace.handle);
	Ring	   *ring = mapped.ring;
	Recording  *recording;

	if (ring == NULL)
		return false;
	recording = palloc0(sizeof(*recording));
	recording->live = kept->is_live;
	recording->buffer = palloc(KEPT_CHUNK);
	recording->began = reaches_to(ring, recording->buffer);
	tables_write_head(recording, description(kept, &ring->session));
	put_calls(recording, kept, ring);
	put_all_waits(recording, kept, &ring->session);
	put_end(recording, kept, pg_atomic_read_u64(&ring->tail) > 0);
	*bytes = recording->file.bytes;
	if (!kept->is_copy && !kept->is_live)
		ended_read(shmem_get(), kept->trace.handle, ring);
	ring_place_unmap(&mapped);
	pfree(recording->buffer);
	pfree(recording);
	return true;
}
