/*-------------------------------------------------------------------------
 * doing.c
 *		What a session does at this moment, as the server says it.
 *
 * The ring of a session that goes on says what it has done.  Of a request under way it
 * may say little, and of one that is not traced nothing: what came last in the ring may
 * be over for long.  So the file of such a ring has what pg_stat_activity shows.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"

#include "utils/backend_status.h"

#include "../../common/event_name.h"
#include "../../common/pg_compat.h"

/* As pg_stat_activity names it; NULL: it is not known. */
static const char *
state_name(BackendState state)
{
	switch (state)
	{
		case STATE_IDLE:
			return "idle";
		case STATE_RUNNING:
			return "active";
		case STATE_IDLEINTRANSACTION:
			return "idle in transaction";
		case STATE_FASTPATH:
			return "fastpath function call";
		case STATE_IDLEINTRANSACTION_ABORTED:
			return "idle in transaction (aborted)";
		default:
			return NULL;
	}
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
bool
doing_now(int pid, Doing *found)
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
