/*-------------------------------------------------------------------------
 * worker.h
 *		The background worker that writes traces to files: its recording.
 *
 * The worker looks at all rings of the server, those of calls and those of
 * waits, and writes what is new in them as blocks of columns.  Sessions neither
 * wait for it nor know of it.
 *
 * worker.c (its settings, and when it records), worker_directory.c (where it
 * writes), worker_rings.c (which rings it reads, and when), worker_tables.c (from
 * records to columns), trace_file.c (from columns to bytes; it knows nothing of
 * rings).
 *
 * keeper.c is another worker, which writes the traces that are kept (kept.h), each to
 * a file of its own (kept_file.c, keeper_files.c); blockers.c has it find who holds up a session,
 * doing.c what that does, kept_functions.c has kept traces for SQL, for_finding.c takes
 * requests for more.
 *-------------------------------------------------------------------------
 */
#ifndef WORKER_H
#define WORKER_H

#include "../core/kept.h"

#include "fmgr.h"
#include "postmaster/bgworker.h"

#include "../../common/wait_rings.h"
#include "trace_file.h"

#pragma GCC visibility push(hidden)

#define MOST_EVENTS 1024

/* So much is read of a ring of calls at once */
#define WORKER_CHUNK ((Size) 4 * 1024 * 1024)

/* A ring, from when it is first seen until nobody speaks of it any more */
typedef struct Drained
{
	RingHandle	handle;
	TimestampTz started;
	bool		waits;			/* else of calls */
	int			pid;
	int			leader_pid;		/* of a parallel worker, or 0 */
	MappedRing	mapped;			/* no ring: not mapped any more */
	int64		number;			/* in the recording */
	uint64		position;		/* read so far */
	uint32		open_generation;	/* of the open request that was written last ... */
	uint32		open_size;		/* ... and how much there was of it */
	TimestampTz read_at;
	bool		described;		/* it is in the file under way */
	bool		seen;			/* when we last looked */
	bool		ended;			/* its process has gone */
	const char *names;			/* of a copy: records of what it names; else NULL */
	uint32		names_size;
	char		user[NAMEDATALEN];
	char		database[NAMEDATALEN];
	char		application[NAMEDATALEN];
} Drained;

/* Does nobody write to it any more? */
static inline bool
ring_ended(const Drained *ring)
{
	return ring->ended || !ring->seen;
}

/* What was in rings when nothing more could be written */
typedef struct Unwritten
{
	int			rings;
	uint64		bytes;			/* of calls */
	uint64		waits;			/* and marks between them */
} Unwritten;

/* In the place of the number of a ring: all that were never met */
#define NO_RING 0

typedef struct Recording
{
	TraceFile	file;
	int			directory;		/* descriptor of sql_trace.worker_directory */
	TimestampTz began;
	uint64		file_limit;		/* bytes after which the next one begins */
	int64		rings_ever;
	Drained    *rings;
	int			nrings;
	int			room;
	int			nevents;
	uint32		events[MOST_EVENTS];	/* by their numbers in the recording */
	int			events_written;	/* in the file under way */
	Unread		unread_before;	/* of all sessions, when the recording began */
	Unread		unread;			/* as the files tell */
	bool		has_rows;		/* not only what it tells of itself and of sessions */
	bool		behind;			/* much was in a ring when we last looked */
	char	   *buffer;			/* for what is read of a ring of calls */
	const char *kept;			/* of a kept trace: what the file tells of it, as JSON; or NULL */
} Recording;

/* worker.c */
extern void worker_announce(bgworker_main_type main, const char *function, const char *name,
							const char *lacking);

/* kept_file.c */
extern bool kept_file(const KeptTrace *kept, TraceFile *file);

/* doing.c */
typedef struct Doing
{
	const char *state;			/* as pg_stat_activity names it */
	bool		running;		/* a statement */
	TimestampTz since;			/* when that began, or when the session was left idle */
	const char *event;			/* class and name of what it waits for; NULL: nothing */
} Doing;

extern bool doing_now(int pid, Doing *found);

/* blockers.c */
typedef struct Blocker
{
	TraceEntry	trace;
	int			victim;			/* process that waits for it */
	bool		is_deadlock;	/* each waited for another */
	int64		incident;
} Blocker;

extern bool blockers_trace_of(Shared *shared, int pid, TraceEntry *found);
extern int	blockers_find(Blocker *found, int most);
extern int	blockers_in_deadlocks(Blocker *found, int most);

/* keeper_files.c */
extern bool keeper_reported;
extern TimestampTz keeper_refused_at;
extern const char *keeper_directory(void);
extern void keeper_refuse(const char *why);
extern void keeper_remove_unfinished(int directory);
extern uint64 keeper_most_size(bool for_findings);
extern bool keeper_has_room(int directory, uint64 size, bool for_finding);
extern bool keeper_write_file(int directory, const char *name, const char *data, Size size);
extern void keeper_name_file(const KeptTrace *kept, char *name, Size size);
extern void keeper_files_init(void);

/* worker_directory.c */
extern int	directory_open(const char *path, const char *setting);
extern int	directory_begin(const char *path, uint64 most, uint64 reserve, TimestampTz began,
							TraceFile *file);
extern uint64 directory_size(int directory);

/* worker_rings.c */
extern void rings_begin(Recording *recording);
extern bool rings_look(Recording *recording, bool all);
extern Unwritten rings_unwritten(const Recording *recording);
extern void rings_let_go(Recording *recording);
extern void rings_end(Recording *recording);

/* worker_tables.c */
extern const WaitRingsOffer *tables_waits_offer(void);
extern void tables_json_text(StringInfo to, const char *text);
extern void tables_json_name(StringInfo to, const char *key, const char *name);
extern bool tables_write_head(Recording *recording);
extern void tables_write_unread(Recording *recording);
extern void tables_write_calls(Recording *recording, Drained *ring);
extern void tables_write_waits(Recording *recording, Drained *ring);
extern Unwritten tables_count_unwritten(const Recording *recording, const Drained *ring);
extern void tables_write_processor(Recording *recording, const Drained *ring);

#pragma GCC visibility pop

#endif							/* WORKER_H */
