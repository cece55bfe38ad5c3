/*-------------------------------------------------------------------------
 * keeper.h
 *		The background worker that writes kept traces (kept.h) to files.
 *
 * Each trace is a file of its own.  Sessions do not wait for the worker.
 *
 * keeper.c (what it writes, and when), keeper_directory.c (where), keeper_files.c
 * (the files that are there), blockers.c (who holds up a session).  kept_file.c makes a
 * file, in memory: kept_tables.c its tables of what rings hold, trace_file.c its bytes.
 * For SQL: kept_functions.c has kept traces, for_finding.c takes requests for more.
 *-------------------------------------------------------------------------
 */
#ifndef KEEPER_H
#define KEEPER_H

#include "../core/kept.h"

#include "../../common/wait_rings.h"
#include "trace_file.h"

#pragma GCC visibility push(hidden)

#define MOST_EVENTS 1024

/* So much is read of a ring of calls at once */
#define KEPT_CHUNK ((Size) 4 * 1024 * 1024)

/* The file of a kept trace, as it is made */
typedef struct Recording
{
	TraceFile	file;
	bool		live;			/* sessions go on writing to the rings */
	TimestampTz began;
	int64		nrings;			/* in the file */
	int			nevents;
	uint32		events[MOST_EVENTS];	/* by their numbers in the file */
	int			events_written;
	char	   *buffer;			/* for what is read of a ring of calls */
} Recording;

/* A ring that is read for it */
typedef struct Drained
{
	int64		number;			/* in the file */
	bool		waits;			/* else of calls */
	int			pid;
	int			leader_pid;		/* of a parallel worker, or 0 */
	TimestampTz started;
	void	   *ring;
	uint64		position;		/* read so far */
	bool		described;
	const char *names;			/* of a copy: records of what it names; else NULL */
	uint32		names_size;
	const char *user;
	const char *database;
	const char *application;
} Drained;

/* keeper_directory.c */
extern const char *keeper_directory(void);
extern int	keeper_open_directory(void);
extern bool keeper_is_directory(int descriptor);
extern void keeper_directory_init(void);

/* keeper_files.c */
extern bool keeper_reported;
extern TimestampTz keeper_refused_at;
extern void keeper_refuse(const char *why);
extern void keeper_remove_unfinished(int directory);
extern uint64 keeper_most_size(bool for_findings);
extern bool keeper_has_room(int directory, uint64 size, bool for_finding);
extern bool keeper_write_file(int directory, const char *name, const StringInfoData *bytes);
extern void keeper_name_file(const KeptTrace *kept, char *name, Size size);
extern void keeper_files_init(void);

/* blockers.c */
typedef struct Blocker
{
	TraceEntry	trace;
	int			victim;			/* process that waits for it */
	bool		is_deadlock;	/* each waited for another */
	int64		incident;
} Blocker;

extern int	blockers_find(Blocker *found, int most);
extern int	blockers_in_deadlocks(Blocker *found, int most);

/* kept_file.c */
extern bool kept_file(const KeptTrace *kept, StringInfoData *bytes);

/* kept_tables.c */
extern const WaitRingsOffer *tables_waits_offer(void);
extern void tables_json_text(StringInfo to, const char *text);
extern void tables_json_name(StringInfo to, const char *key, const char *name);
extern void tables_json_time(StringInfo to, TimestampTz at);
extern void tables_write_head(Recording *recording, const char *kept);
extern void tables_write_calls(Recording *recording, Drained *ring);
extern void tables_write_waits(Recording *recording, Drained *ring);

#pragma GCC visibility pop

#endif							/* KEEPER_H */
