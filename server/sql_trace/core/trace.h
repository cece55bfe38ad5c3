/*-------------------------------------------------------------------------
 * trace.h
 *		How the module works, and what a process knows of its own trace.
 *
 * A traced session records what it does for its client: each parse, plan,
 * execution, fetch and commit with its times, rows and blocks; the texts, plans
 * and values of statements; errors; and on request what each node of a plan
 * took.  docs/sql-trace.md is the user's view, docs/trace-format.md describes
 * the bytes of the records (records.h).
 *
 * The way of a record:
 *
 * 1. PostgreSQL calls one of our hooks: when a statement is parsed, planned or
 *	  executed, when a transaction ends, when a message goes to the client.
 * 2. If it is the first since the last ReadyForQuery, a request begins:
 *	  request_begins() looks at the settings and at what other sessions asked
 *	  for (level.h), and switches "trace.on" on or off for this request.  A
 *	  session that is not traced pays for a look at two flags in each hook.
 * 3. The hook fills a Call (record.h).  When the call has ended, its record is
 *	  written, after those of the text and the plan if the ring does not hold
 *	  them (statement.h); what the recorder needs again is in a dictionary
 *	  (dictionary.h).  Mostly all calls of a request, its values and its
 *	  transaction are kept back and make one record when it has been answered
 *	  (fused.h).  Of most requests even the calls are made only then (plain.h).
 *	  Fetches in a row share a record, too (fetches.h).
 * 4. record.c decides what goes before the record.  ring_store.h stores its bytes
 *	  in the ring of the session (ring.h).  A full ring overwrites its oldest
 *	  records; what no reader had fetched is counted as lost.
 * 5. A reader copies records out of the ring while the session writes on, by
 *	  sql_trace_drain() (read.c).
 * 6. When the session ends, its ring is kept for a while (ended.c).  What a ring held
 *	  when a trigger fired is kept for longer (kept.h); a background worker writes
 *	  that to files (keeper.h).
 *
 * Each part has a header, which explains it, and its settings and hooks in the
 * files that obey and install them.  Of the folders, core/ has loading (module.c),
 * what sessions share (shmem.h), rings, levels and the functions in SQL (read.c,
 * sessions.c); calls/ what a session does, as records; rows/ row sources (rows.h);
 * writer/ the background worker (keeper.h).
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_TRACE_H
#define SQL_TRACE_TRACE_H

#include "postgres.h"

struct Ring;
struct Slot;

/* Nobody else sees it. */
typedef struct Trace
{
	bool		on;				/* records are being written */
	bool		request;		/* a request is under way; or none ever will be */
	bool		client;			/* of a client, and with a slot */
	struct Slot *slot;
	struct Ring *ring;			/* NULL: none */
	int			level;			/* in force for this session */
	int			reason;
	int			now_level;		/* in force for this request */
	uint64		number;			/* of the last record */
	uint64		calls;			/* of the last call */
	uint64		current;		/* call under way, or 0 */
	int			depth;
	int64		last_end;		/* end of what was recorded last outside any call */
	int64		covered;		/* ns in calls without a parent since the message arrived */
	int64		arrived;		/* of the message under way */
	int64		request_start;	/* arrival of the first message; -1: not known yet */
	uint64		text;			/* of the client's statement, as far as known */
	bool		secret;			/* it is not to be shown */
	bool		answered;		/* and what follows may be another */
	int			secret_depth;	/* what runs deeper runs within a secret statement */
	bool		secret_met;		/* by this request: messages of its errors may quote it */
	bool		secret_transaction; /* and by this transaction: so may its deferred triggers */
	bool		unseen;			/* a request of the transaction was not traced: it may have been */
} Trace;

#pragma GCC visibility push(hidden)

extern Trace trace;				/* in ring.c */

#pragma GCC visibility pop

#endif							/* SQL_TRACE_TRACE_H */
