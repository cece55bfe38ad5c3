/*-------------------------------------------------------------------------
 * trace_file.c
 *		A trace file as docs/trace-format.md has it, in memory (trace_file.h).
 *
 * It compresses nothing: integers take as many bytes as the largest of a column
 * needs, and the format's decoder asks for no more.
 *-------------------------------------------------------------------------
 */
#include "trace_file.h"

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

/* What begins is the only file of its recording, which a number at random tells apart. */
void
file_begin(TraceFile *file)
{
	FileHead	head = {.magic = {'P', 'G', 'T', 'A', 'R', 'E', 0, 'T'},.version = VERSION};

	memset(file, 0, sizeof(*file));
	initStringInfo(&file->bytes);
	initStringInfo(&file->payload);
	if (!pg_strong_random(head.recording, sizeof(head.recording)))
		memset(head.recording, 0, sizeof(head.recording));
	head.checksum = checksum(&head, offsetof(FileHead, checksum));
	appendBinaryStringInfo(&file->bytes, (const char *) &head, sizeof(head));
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

/* Bytes as they are, of a block of one row */
void
block_bytes(TraceFile *file, const char *name, const void *data, uint32 size)
{
	int			begin = begin_column(file, name, COLUMN_BYTES);
	int64		length = size;

	Assert(file->rows == 1);
	put_planes(file, &length, 1);
	appendStringInfoChar(&file->payload, 0);
	appendBinaryStringInfo(&file->payload, (const char *) &size, sizeof(size));
	appendBinaryStringInfo(&file->payload, data, (int) size);
	end_column(file, begin);
}

void
block_end(TraceFile *file)
{
	BlockHead	head = {.magic = {0xB6, 'T', 'B', 0x01}};

	head.table = (uint16) file->table;
	head.rows = file->rows;
	head.bytes = (uint32) file->payload.len;
	head.number = file->blocks++;
	head.payload_checksum = checksum(file->payload.data, file->payload.len);
	head.checksum = checksum(&head, offsetof(BlockHead, checksum));
	appendBinaryStringInfo(&file->bytes, (const char *) &head, sizeof(head));
	appendBinaryStringInfo(&file->bytes, file->payload.data, file->payload.len);
}
