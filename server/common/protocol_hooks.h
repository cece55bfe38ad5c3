/*-------------------------------------------------------------------------
 * protocol_hooks.h
 *		Standing before PostgreSQL's functions that send messages to the client.
 *
 * Include it before any other header of libpq.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_PROTOCOL_HOOKS_H
#define PGTARE_PROTOCOL_HOOKS_H

#include "postgres.h"

/* we need no more of libpq than its methods; the headers of GSSAPI may be missing */
#undef ENABLE_GSS

#include "libpq/libpq.h"

typedef struct ProtocolHooks
{
	const PQcommMethods *chained;	/* to be called by ours */
	PQcommMethods ours;
} ProtocolHooks;

/* A set of types of messages: their lower six bits tell all but '3' from 's'. */
#define MESSAGE(type) (UINT64CONST(1) << ((type) & 63))

static inline bool
message_is_of(uint64 types, char type)
{
	return (types >> (type & 63) & 1) != 0;
}

/* Others may come before us later, so this is never undone.  "flush" may be NULL: it stays. */
static inline void
protocol_hooks_install(ProtocolHooks *hooks,
					   int (*putmessage) (char type, const char *body, size_t length),
					   int (*flush) (void))
{
	hooks->chained = PqCommMethods;
	hooks->ours = *hooks->chained;
	hooks->ours.putmessage = putmessage;
	if (flush)
		hooks->ours.flush = flush;
	PqCommMethods = &hooks->ours;
}

#endif							/* PGTARE_PROTOCOL_HOOKS_H */
