/*-------------------------------------------------------------------------
 * trigger.c
 *		Slow statements of a traced session: a mark in its ring, and a copy of it.
 *
 * A statement's time runs from the arrival of its request, so that planning
 * and the wait for a table's lock are in it, to its answer, or where no other
 * statement follows to the end of the request, so that the commit is in it.
 * The ring is copied after the answer has left.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "utils/backend_status.h"

#include "waits.h"

int			trigger_ms = -1;

static TimestampTz arrived;		/* first message of the request, if we saw it; or 0 */
static TimestampTz began;		/* the statement under way; 0: none */
static TimestampTz answered;	/* the last statement of this request; 0: none */
static uint64 running;			/* its query identifier */

/* The slowest of a request, to be copied */
static uint64 slow_query_id;
static int64 slow_us = -1;
static bool ready = false;		/* the request has been answered, but for the flush */

static void
statement_ended(TimestampTz at)
{
	int64		us = at - began;

	began = 0;
	if (trigger_ms < 0 || us <= (int64) trigger_ms * 1000)
		return;
	capture_mark(RECORD_TRIGGER, 0, us * 1000);
	if (us > slow_us)
	{
		slow_us = us;
		slow_query_id = running;
	}
}

/* An outermost statement starts in a traced session. */
void
trigger_statement_begins(uint64 query_id)
{
	if (trigger_ms < 0)
		return;
	capture.trigger_used = true;
	if (began != 0 && answered > began)
		statement_ended(answered);
	/* what runs before an answer belongs to one statement: planning can run others */
	if (began == 0)
		began = answered ? Max(answered, GetCurrentStatementStartTimestamp()) :
			arrived ? arrived : GetCurrentStatementStartTimestamp();
	running = query_id;
}

/* A message to the client of a traced session is on its way. */
void
trigger_message(char type)
{
	if (trigger_ms < 0 && began == 0 && arrived == 0 && slow_us < 0)
		return;
	capture.trigger_used = true;
	switch (type)
	{
		case '1':				/* ParseComplete */
		case '2':				/* BindComplete */
			if (arrived == 0)
				arrived = GetCurrentStatementStartTimestamp();
			break;
		case 'C':				/* CommandComplete */
			answered = GetCurrentTimestamp();
			break;
		case 'E':				/* ErrorResponse, perhaps before a statement has started */
			if (began == 0)
				trigger_statement_begins(pgstat_get_my_query_id());
			break;
		case 'Z':				/* ReadyForQuery */
			if (began != 0)
				statement_ended(GetCurrentTimestamp());
			arrived = answered = 0;
			ready = slow_us >= 0;
			break;
	}
}

/*
 * Messages to the client have left.  Those of a notice or an error leave at
 * once, too, from within the report: only after the answer is time for a copy.
 */
void
trigger_flushed(void)
{
	int64		us = slow_us;

	if (likely(!ready))
		return;
	/* a message about a failure is flushed, too */
	ready = false;
	slow_us = -1;
	if (capture.ring)
		kept_copy(slow_query_id, us);
}

/* Called when the library is loaded. */
void
trigger_init(void)
{
	DefineCustomIntVariable("wait_event_timing.trigger",
							"Keeps the trace of a session when a statement took longer than this.",
							"-1 keeps none.",
							&trigger_ms, -1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
}
