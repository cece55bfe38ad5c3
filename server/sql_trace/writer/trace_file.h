/*-------------------------------------------------------------------------
 * trace_file.h
 *		Trace files as docs/trace-format.md has them: a header, then blocks of columns.
 *-------------------------------------------------------------------------
 */
#ifndef TRACE_FILE_H
#define TRACE_FILE_H

#include "postgres.h"

#include "lib/stringinfo.h"

#pragma GCC visibility push(hidden)

typedef enum FileTable
{
	TABLE_RECORDING = 1,
	TABLE_RINGS = 2,
	TABLE_EVENTS = 3,
	TABLE_WAITS = 4,
	TABLE_MARKS = 5,
	TABLE_STREAM = 6,
	TABLE_LOSSES = 7,
	TABLE_PROCESSOR = 8,
	TABLE_END = 127
} FileTable;

/* Why nothing more can be written, in the words of the table "end" */
typedef enum FileStop
{
	STOP_NONE,
	STOP_SIZE,
	STOP_SPACE,
	STOP_ERROR,
	STOP_MOVED					/* no table tells it: nothing more is written */
} FileStop;

/* The files of a recording, one after the other */
typedef struct TraceFile
{
	char		path[MAXPGPATH];	/* of their directory, where it was made */
	int			directory;		/* its descriptor */
	char		recording[16];	/* tells recordings apart */
	uint64		size_limit;		/* bytes of all files together */
	uint64		reserve;		/* bytes to leave free on the volume */
	int			fd;				/* -1: none is open */
	uint32		files;
	uint64		blocks;			/* in this file */
	uint64		size;			/* of this file */
	uint64		written;		/* bytes of all files */
	StringInfoData payload;		/* of the block under way */
	StringInfoData memory;		/* takes the bytes in place of a file, if it has data */
	FileTable	table;
	uint32		rows;
	FileStop	stop;			/* set once, for good */
	char		why[256];
} TraceFile;

extern bool file_is_same(int at, const char *name, int descriptor);
extern void file_init_in_memory(TraceFile *file);
extern bool file_init(TraceFile *file, int at, const char *above, const char *name);
extern bool file_next(TraceFile *file);
extern void file_sync(TraceFile *file);
extern void file_close(TraceFile *file);
extern void file_free(TraceFile *file);
extern void file_discard(TraceFile *file, int at);

/* A block: its columns one after the other, in the order of the table, then its end. */
extern void block_begin(TraceFile *file, FileTable table, uint32 rows);
extern void block_constant(TraceFile *file, const char *name, int64 value);
extern void block_integers(TraceFile *file, const char *name, const int64 *values);
extern void block_bytes(TraceFile *file, const char *name, const void *data, uint32 size);
extern bool block_end(TraceFile *file);

#pragma GCC visibility pop

#endif							/* TRACE_FILE_H */
