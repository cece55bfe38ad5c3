/*-------------------------------------------------------------------------
 * trace_file.h
 *		A trace file as docs/trace-format.md has it, in memory: a header, then blocks
 *		of columns.
 *-------------------------------------------------------------------------
 */
#ifndef TRACE_FILE_H
#define TRACE_FILE_H

#include "postgres.h"

#include "lib/stringinfo.h"

#pragma GCC visibility push(hidden)

/* Of those that there are, what we write */
typedef enum FileTable
{
	TABLE_RECORDING = 1,
	TABLE_RINGS = 2,
	TABLE_EVENTS = 3,
	TABLE_WAITS = 4,
	TABLE_MARKS = 5,
	TABLE_STREAM = 6,
	TABLE_LOSSES = 7,
	TABLE_END = 127
} FileTable;

typedef struct TraceFile
{
	StringInfoData bytes;
	uint64		blocks;
	StringInfoData payload;		/* of the block under way */
	FileTable	table;
	uint32		rows;
} TraceFile;

extern void file_begin(TraceFile *file);

/* A block: its columns one after the other, in the order of the table, then its end. */
extern void block_begin(TraceFile *file, FileTable table, uint32 rows);
extern void block_constant(TraceFile *file, const char *name, int64 value);
extern void block_integers(TraceFile *file, const char *name, const int64 *values);
extern void block_bytes(TraceFile *file, const char *name, const void *data, uint32 size);
extern void block_end(TraceFile *file);

#pragma GCC visibility pop

#endif							/* TRACE_FILE_H */
