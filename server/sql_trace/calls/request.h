/*-------------------------------------------------------------------------
 * request.h
 *		A request of the client: from its first message to ReadyForQuery.
 *
 * There is no hook where a message arrives.  A request is noticed by the first
 * thing that it does, and when it arrived is in the statement timestamp,
 * which the server takes anew for each message of Query, Parse, Bind, Execute.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_REQUEST_H
#define SQL_TRACE_REQUEST_H

#include "../core/trace.h"

#pragma GCC visibility push(hidden)

extern void request_begins(bool can_open);
extern void request_ends(char status);
extern int64 request_message_arrived(void);
extern int64 request_message_arrived_by(int64 now);
extern void request_answered(int64 now);

/* The client's statement under way */
static inline void
request_statement(uint64 text, bool secret)
{
	trace.text = text;
	trace.secret = secret;
	trace.answered = false;
}

/* Is this process being traced, now that something begins?  If a trace can begin, it does. */
static inline bool
trace_begins(void)
{
	if (unlikely(!trace.request))
		request_begins(true);
	return unlikely(trace.on);
}

#pragma GCC visibility pop

#endif							/* SQL_TRACE_REQUEST_H */
