/*-------------------------------------------------------------------------
 * trace_file.c
 *		Trace files as docs/trace-format.md has them: a header, then blocks of columns.
 *
 * What the background worker writes.  It compresses nothing: integers take as
 * many bytes as the largest of a column needs, and the format's decoder asks
 * for no more.  A block goes out in one write, and what of it did not fit is
 * cut off again, so a file ends with a whole block unless the machine died.
 *-------------------------------------------------------------------------
 */
#include "trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "storage/fd.h"
#include "utils/pg_crc.h"

#define VERSION 1

typedef struct FileHead
{
	char		magic[8];
	uint16		version;
	uint16		zero;
	uint32		number;
	char		recording[16];
	uint32		checksum;
} FileHead;

typedef struct BlockHead
{
	uint8		magic[4];
	uint16		table;
	uint16		zero;
	uint32		rows;
	uint32		bytes;
	uint64		number;
	uint32		payload_checksum;
	uint32		checksum;
} BlockHead;

StaticAssertDecl(sizeof(FileHead) == 36 && sizeof(BlockHead) == 32, "readers know these sizes");

typedef enum ColumnKind
{
	COLUMN_CONSTANT = 1,
	COLUMN_PLANES = 2,
	COLUMN_BYTES = 4
} ColumnKind;

/* The one that zlib has, too */
static uint32
checksum(const void *data, Size size)
{
	pg_crc32	crc;

	INIT_TRADITIONAL_CRC32(crc);
	COMP_TRADITIONAL_CRC32(crc, data, size);
	FIN_TRADITIONAL_CRC32(crc);
	return crc;
}

static bool
stopped(TraceFile *file, FileStop stop, const char *format,...) pg_attribute_printf(3, 4);

static bool
stopped(TraceFile *file, FileStop stop, const char *format,...)
{
	va_list		arguments;

	if (file->stop != STOP_NONE)
		return false;
	file->stop = stop;
	va_start(arguments, format);
	vsnprintf(file->why, sizeof(file->why), format, arguments);
	va_end(arguments);
	return false;
}

/*
 * Files will be written into the directory "name" within that of descriptor
 * "at", whose path is "above".  False, with errno: it cannot be opened.
 */
bool
file_init(TraceFile *file, int at, const char *above, const char *name)
{
	memset(file, 0, sizeof(*file));
	file->fd = -1;
	if (snprintf(file->path, sizeof(file->path), "%s/%s", above, name) >=
		(int) sizeof(file->path))
	{
		errno = ENAMETOOLONG;
		return false;
	}
	file->directory = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (file->directory < 0)
		return false;
	if (!pg_strong_random(file->recording, sizeof(file->recording)))
		memset(file->recording, 0, sizeof(file->recording));
	initStringInfo(&file->payload);
	return true;
}

/* A single file will be made, in memory. */
void
file_init_in_memory(TraceFile *file)
{
	memset(file, 0, sizeof(*file));
	file->fd = file->directory = -1;
	if (!pg_strong_random(file->recording, sizeof(file->recording)))
		memset(file->recording, 0, sizeof(file->recording));
	initStringInfo(&file->payload);
	initStringInfo(&file->memory);
}

static void
name_file(char *name, Size size, uint32 number)
{
	snprintf(name, size, "trace-%05u.pgtrace", number);
}

/* Does a name lead to what a descriptor is of? */
bool
file_is_same(int at, const char *name, int descriptor)
{
	struct stat there,
				ours;

	return fstatat(at, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && fstat(descriptor, &ours) == 0 &&
		there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

/*
 * Are directory and file still where they were made?  A descriptor follows them
 * wherever they are moved, and may be all that is left of them.
 */
static bool
in_place(TraceFile *file)
{
	char		name[MAXPGPATH];

	if (file->files > 0)
		name_file(name, sizeof(name), file->files - 1);
	if (file_is_same(AT_FDCWD, file->path, file->directory) &&
		(file->fd < 0 || file_is_same(file->directory, name, file->fd)))
		return true;
	return stopped(file, STOP_MOVED, "the recording has been moved or deleted");
}

/* All or nothing; begin and end of a file may use the space that must stay free. */
static bool
put(TraceFile *file, const void *head, Size head_size, const char *data, Size size)
{
	struct iovec parts[2] = {{unconstify(void *, head), head_size}, {unconstify(char *, data), size}};
	ssize_t		whole = (ssize_t) (head_size + size);
	ssize_t		done;
	struct statvfs volume;

	if (file->memory.data != NULL)
	{
		appendBinaryStringInfo(&file->memory, head, (int) head_size);
		appendBinaryStringInfo(&file->memory, data, (int) size);
		return true;
	}
	if (file->fd < 0 || !in_place(file))
		return false;
	if (file->table != TABLE_END)
	{
		if (file->written + whole > file->size_limit)
			return stopped(file, STOP_SIZE, "the traces have reached sql_trace.worker_max_size");
		if (file->reserve > 0 && fstatvfs(file->fd, &volume) == 0 &&
			(uint64) volume.f_bavail * volume.f_frsize < file->reserve + (uint64) whole)
			return stopped(file, STOP_SPACE, "the volume would have less space left than "
						   "sql_trace.worker_reserve");
	}
	errno = 0;
	done = writev(file->fd, parts, size > 0 ? 2 : 1);
	if (done != whole)
	{
		/* a write that ends early has met the end of the volume */
		int			error = done < 0 ? errno : ENOSPC;

		if (ftruncate(file->fd, (off_t) file->size) != 0)
			close(file->fd), file->fd = -1;
		errno = error;
		return stopped(file, error == ENOSPC || error == EDQUOT || error == EFBIG ?
					   STOP_SPACE : STOP_ERROR, "the files cannot be written: %m");
	}
	file->size += whole;
	file->written += whole;
	return true;
}

static bool
open_next(TraceFile *file, char *name, Size size)
{
	file_close(file);
	if (file->stop != STOP_NONE || !in_place(file))
		return false;
	name_file(name, size, file->files);
	file->fd = openat(file->directory, name,
					  O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	return file->fd >= 0 || stopped(file, errno == ENOSPC ? STOP_SPACE : STOP_ERROR,
									"a file cannot be made in %s: %m", file->path);
}

/* Begin the next file; the caller repeats in it what was written in those before. */
bool
file_next(TraceFile *file)
{
	FileHead	head = {.magic = "PGTARE\0T",.version = VERSION};
	char		name[MAXPGPATH];

	if (file->memory.data == NULL && !open_next(file, name, sizeof(name)))
		return false;
	file->blocks = file->size = 0;
	head.number = file->files++;
	memcpy(head.recording, file->recording, sizeof(head.recording));
	head.checksum = checksum(&head, offsetof(FileHead, checksum));
	file->table = TABLE_END;	/* no limit leaves a file without its beginning */
	if (put(file, &head, sizeof(head), NULL, 0))
		return true;
	file_close(file);
	(void) unlinkat(file->directory, name, 0);
	return false;
}

void
file_sync(TraceFile *file)
{
	if (in_place(file) && file->fd >= 0 && pg_fdatasync(file->fd) != 0)
		(void) stopped(file, STOP_ERROR, "the files cannot be written: %m");
}

void
file_close(TraceFile *file)
{
	file_sync(file);
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
}

void
file_free(TraceFile *file)
{
	file_close(file);
	close(file->directory);
	pfree(file->payload.data);
}

/* Remove all files and their directory, which lies in that of descriptor "at". */
void
file_discard(TraceFile *file, int at)
{
	char		name[MAXPGPATH];

	file_close(file);
	if (file->stop == STOP_MOVED)
		return;
	for (uint32 number = 0; number < file->files; number++)
	{
		name_file(name, sizeof(name), number);
		(void) unlinkat(file->directory, name, 0);
	}
	(void) unlinkat(at, strrchr(file->path, '/') + 1, AT_REMOVEDIR);
}

void
block_begin(TraceFile *file, FileTable table, uint32 rows)
{
	resetStringInfo(&file->payload);
	file->table = table;
	file->rows = rows;
}

/* Where a column's length goes, once it is known */
static int
begin_column(TraceFile *file, const char *name, ColumnKind kind)
{
	uint32		length = 0;

	appendStringInfoChar(&file->payload, (char) strlen(name));
	appendStringInfoChar(&file->payload, (char) kind);
	appendStringInfoString(&file->payload, name);
	appendBinaryStringInfo(&file->payload, (const char *) &length, sizeof(length));
	return file->payload.len;
}

static void
end_column(TraceFile *file, int begin)
{
	uint32		length = (uint32) (file->payload.len - begin);

	memcpy(file->payload.data + begin - sizeof(length), &length, sizeof(length));
}

/* Bytes as they are */
static void
put_stored(TraceFile *file, const void *data, uint32 size)
{
	appendStringInfoChar(&file->payload, 0);
	appendBinaryStringInfo(&file->payload, (const char *) &size, sizeof(size));
	appendBinaryStringInfo(&file->payload, data, (int) size);
}

static int
width_of(const int64 *values, uint32 n)
{
	uint64		bits = 0;

	for (uint32 i = 0; i < n; i++)
		bits |= (uint64) values[i];
	for (int width = 1; width < 8; width++)
		if (bits >> (8 * width) == 0)
			return width;
	return 8;
}

/* Byte by byte of all values, lowest first */
static void
put_planes(TraceFile *file, const int64 *values, uint32 n)
{
	StringInfo	to = &file->payload;
	int			width = width_of(values, n);
	uint32		outliers = 0;

	appendStringInfoChar(to, (char) width);
	appendBinaryStringInfo(to, (const char *) &outliers, sizeof(outliers));
	for (int octet = 0; octet < width; octet++)
	{
		appendStringInfoChar(to, 0);
		appendBinaryStringInfo(to, (const char *) &n, sizeof(n));
		enlargeStringInfo(to, (int) n);
		for (uint32 i = 0; i < n; i++)
			to->data[to->len++] = (char) ((uint64) values[i] >> (8 * octet));
		to->data[to->len] = '\0';
	}
}

void
block_constant(TraceFile *file, const char *name, int64 value)
{
	int			begin = begin_column(file, name, COLUMN_CONSTANT);

	appendBinaryStringInfo(&file->payload, (const char *) &value, sizeof(value));
	end_column(file, begin);
}

void
block_integers(TraceFile *file, const char *name, const int64 *values)
{
	int			begin = begin_column(file, name, COLUMN_PLANES);

	put_planes(file, values, file->rows);
	end_column(file, begin);
}

/* Of a block of one row */
void
block_bytes(TraceFile *file, const char *name, const void *data, uint32 size)
{
	int			begin = begin_column(file, name, COLUMN_BYTES);
	int64		length = size;

	Assert(file->rows == 1);
	put_planes(file, &length, 1);
	put_stored(file, data, size);
	end_column(file, begin);
}

/* False: nothing more can be written, for the reason that the file tells. */
bool
block_end(TraceFile *file)
{
	BlockHead	head = {.magic = {0xB6, 'T', 'B', 0x01}};

	if (file->stop != STOP_NONE && file->table != TABLE_END)
		return false;
	head.table = (uint16) file->table;
	head.rows = file->rows;
	head.bytes = (uint32) file->payload.len;
	head.number = file->blocks;
	head.payload_checksum = checksum(file->payload.data, file->payload.len);
	head.checksum = checksum(&head, offsetof(BlockHead, checksum));
	if (!put(file, &head, sizeof(head), file->payload.data, file->payload.len))
		return false;
	file->blocks++;
	return true;
}
