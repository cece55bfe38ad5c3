/*-------------------------------------------------------------------------
 * client_messages.c
 *		Messages to the client tell what has no hook.
 *
 * ParseComplete ends a parse, BindComplete a bind, ReadyForQuery a request,
 * ErrorResponse carries an error.  Whatever happens here must not fail, nor
 * allocate: an error may be under way.
 *-------------------------------------------------------------------------
 */
#include "fetches.h"
#include "fused.h"
#include "plain.h"
#include "request.h"
#include "secrets.h"
#include "statement.h"
#include "../core/kept.h"
#include "../core/level.h"
#include "../core/module.h"

#include "mb/pg_wchar.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"

#include "../../common/protocol_hooks.h"

/* Messages that tell something, and of those the ones that do without a trace, too */
#define TELLING_ALWAYS (MESSAGE('E') | MESSAGE('S') | MESSAGE('Z'))
#define TELLING (TELLING_ALWAYS | MESSAGE('1') | MESSAGE('2') | MESSAGE('C') | MESSAGE('s') | \
				 MESSAGE('I'))

#define MOST_OF_MESSAGE 1024	/* bytes of an error's message */

static ProtocolHooks hooks;

/* A Bind message has been answered: what took its time, except calls of their own. */
static pg_noinline void
bound(void)
{
	/* what is not set below stays 0 */
	static Call call = {.kind = CALL_BIND,.flags = CALL_ESTIMATED};
	int64		now;
	const Execution *execution;
	bool		secret;

	call.start = request_message_arrived();
	if (plain_bound(call.start))
		return;
	plain_else();
	if (transaction_is_new())
		transaction_begins(call.start, timeline_now());
	call.number = ++trace.calls;
	call.query_id = (int64) pgstat_get_my_query_id();
	execution = execution_bound(call.start);
	if (likely(execution != NULL))
	{
		call.text = execution->call.text;
		secret = execution->secret;
	}
	else
		call.text = text_of_message(debug_query_string, &call.query_id, &secret);
	if (secret)
		call.query_id = 0;		/* of a utility statement it hashes what that says */
	request_statement(call.text, secret);
	now = timeline_now();
	call.busy = Max(now - call.start - trace.covered, 0);
	execute_bound(now);
	call_write(&call, now);
}

static uint32
sqlstate_of(const char *text)
{
	for (int i = 0; i < 5; i++)
		if (text[i] == '\0')
			return 0;
	return MAKE_SQLSTATE(text[0], text[1], text[2], text[3], text[4]);
}

static uint32
severity_of(const char *text)
{
	return strcmp(text, "FATAL") == 0 ? 2 : strcmp(text, "PANIC") == 0 ? 3 : 1;
}

/* An error is on its way: fields of a letter and a string each. */
static pg_noinline void
failed(const char *body, size_t length)
{
	ErrorRecord record = {0};
	const char *message = NULL;
	const char *detail = NULL;
	const char *routine = "";
	const char *end = body + length;
	bool		shown;
	bool		secret = false;

	series_look_for_error();
	for (const char *field = body; field < end && *field != '\0';)
	{
		const char *value = field + 1;
		const char *stop = memchr(value, '\0', end - value);

		if (stop == NULL)
			break;
		if (*field == 'C')
			record.sqlstate = sqlstate_of(value);
		else if (*field == 'V')
			record.severity = severity_of(value);
		else if (*field == 'M')
			message = value;
		else if (*field == 'D')
			detail = value;
		else if (*field == 'R')
			routine = value;
		if (strchr("MDHWq", *field) != NULL)
			secret |= secret_words_in(value, stop - value);
		field = stop + 1;
	}
	(void) request_message_arrived();
	/* it may have failed before it was known which statement of the message that is */
	if ((trace.text == 0 || trace.answered) && debug_query_string != NULL)
	{
		int64		query_id = 0;
		bool		of_statement;
		uint64		text = text_of_message(debug_query_string, &query_id, &of_statement);

		request_statement(text, of_statement);
	}
	if (unlikely(trigger_armed))
		trigger_error(record.sqlstate, strcmp(routine, "DeadLockReport") == 0 ? detail : NULL);
	/* of several statements in a pipeline, it may be another one */
	secret |= text_is_secret(debug_query_string);
	/* a deferred trigger may quote what an earlier request put into its table */
	secret |= trace.secret_transaction && transaction_is_known();
	record.text = trace.text;
	record.length = message ? (uint32) strlen(message) : 0;
	/* no look into catalogs now: the answer for this role must be known */
	shown = LEVEL_BINDS(trace.now_level) && !secret && !trace.secret && !trace.secret_met &&
		!secrets_of_role_known();
	if (shown && message != NULL)	/* it is in the client's encoding */
		record.stored = (uint32) pg_encoding_mbcliplen(pg_get_client_encoding(), message,
													   (int) record.length, MOST_OF_MESSAGE);
	(void) record_write_with(RECORD_ERROR, trace.depth, trace.current, timeline_now(), &record,
							 sizeof(record), message, record.stored);
}

/* A statement has been answered. */
static pg_noinline void
answered(void)
{
	int64		now = timeline_now();

	if (plain.stage == PLAIN_RAN)
		plain_replied(now);
	else if (plain.stage != PLAIN_ENDED && plain.stage != PLAIN_COMMITTED)
	{
		plain_else();
		execute_interrupted_by(now);
	}
	request_answered(now);
}

static pg_noinline int
notice(char type, const char *body, size_t length)
{
	if (type == 'Z')			/* ReadyForQuery */
		request_ends(length > 0 ? body[0] : 'I');
	else if (type == 'S')		/* ParameterStatus */
		level_setting_reported();
	else if (type == '2' || type == 'E')	/* BindComplete, ErrorResponse */
	{
		if (!trace.request)
			request_begins(false);
		if (trace.on && type == '2')
			bound();
		else if (trace.on)
			failed(body, length);
	}
	else if (type == '1')		/* ParseComplete: the next message's source may be in its place */
		text_forget();
	else if (trace.on && type != '3')	/* CommandComplete, PortalSuspended, EmptyQueryResponse */
		answered();
	return hooks.chained->putmessage(type, body, length);
}

/* Most messages tell nothing: rows, and what describes them. */
static int
trace_putmessage(char type, const char *body, size_t length)
{
	if (likely(!message_is_of(TELLING, type)) ||
		(!trace.on && trace.request && !message_is_of(TELLING_ALWAYS, type)))
		return hooks.chained->putmessage(type, body, length);
	return notice(type, body, length);
}

static int
trace_flush(void)
{
	int			result = hooks.chained->flush();

	if (unlikely(trigger_ready))
		trigger_flushed();
	return result;
}

void
messages_init(void)
{
	protocol_hooks_install(&hooks, trace_putmessage, trace_flush);
}
