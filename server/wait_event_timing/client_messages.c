/*-------------------------------------------------------------------------
 * client_messages.c
 *		Messages to the client: where a request ends, waits are folded in.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "../common/protocol_hooks.h"
#include "waits.h"

static ProtocolHooks hooks;

/* A request has been answered, but for the flush. */
static void
answered(const char *status)
{
	if (slot_present())
	{
		capture_fold();
		level_follow_application();
		ring_answered(status);
		trace_follow_level();
	}
	ended_look();
}

static pg_noinline int
notice(char type, const char *body, size_t length)
{
	trace_message(type);
	if (capture.ring && (trigger_ms >= 0 || capture.trigger_used))
		trigger_message(type);
	if (type == 'Z')			/* ReadyForQuery */
		answered(body);
	return hooks.chained->putmessage(type, body, length);
}

/* Rows, and what describes them, tell nothing. */
static int
waits_putmessage(char type, const char *body, size_t length)
{
	return type == 'D' || type == 'T' ? hooks.chained->putmessage(type, body, length) :
		notice(type, body, length);
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
