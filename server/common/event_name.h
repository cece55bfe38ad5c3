/*-------------------------------------------------------------------------
 * event_name.h
 *		The name of a wait event, whatever its number.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_EVENT_NAME_H
#define PGTARE_EVENT_NAME_H

#include "postgres.h"

#include "miscadmin.h"
#include "utils/wait_event.h"

/*
 * The server raises an error for a number that nobody has given a name (17 and
 * later); one such wait must not close a view, nor end a process.  It holds
 * nothing at that point.  An error forgets what holds interrupts off: who holds
 * them off around this goes on doing so.
 */
static inline const char *
event_name(uint32 event)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	const char *volatile name = NULL;

	PG_TRY();
	{
		name = pgstat_get_wait_event(event);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		InterruptHoldoffCount = holdoff;
		QueryCancelHoldoffCount = cancel_holdoff;
	}
	PG_END_TRY();
	return name ? name : "???";
}

#endif							/* PGTARE_EVENT_NAME_H */
