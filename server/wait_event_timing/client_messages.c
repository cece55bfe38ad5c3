/*-------------------------------------------------------------------------
 * client_messages.c
 *		Messages to the client: where a request ends, waits are folded in.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "../common/protocol_hooks.h"
#include "waits.h"

static ProtocolHooks hooks;

static pg_noinline void
notice(char type, const char *body)
{
	trace_message(type);
	if (capture.ring && (trigger_ms >= 0 || capture.trigger_used))
		trigger_message(type);
	if (type == 'Z' && slot_present())	/* ReadyForQuery */
	{
		capture_fold();
		level_follow_application();
		ring_open();
		ring_rest(body);
		trace_follow_level();
	}
	if (type == 'Z')
		ended_look();
}

static int
waits_putmessage(char type, const char *body, size_t length)
{
	/* rows, and what describes them, tell nothing */
	if (type != 'D' && type != 'T')
		notice(type, body);
	return hooks.chained->putmessage(type, body, length);
}

static int
waits_flush(void)
{
	int			result;

	trace_flush();
	result = hooks.chained->flush();
	trigger_flushed();
	return result;
}

void
messages_install(void)
{
	protocol_hooks_install(&hooks, waits_putmessage, waits_flush);
}
