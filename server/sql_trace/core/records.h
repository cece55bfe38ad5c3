/*-------------------------------------------------------------------------
 * records.h
 *		The records of a trace, byte by byte: docs/trace-format.md.
 *
 * Clients know these layouts and numbers.  A new field goes to the end of a
 * record; a change of meaning needs a new TRACE_FORMAT_VERSION.
 *-------------------------------------------------------------------------
 */
#ifndef RECORDS_H
#define RECORDS_H

#include "postgres.h"

#define TRACE_FORMAT_VERSION 2

typedef enum RecordKind
{
	RECORD_SESSION = 1,			/* made by the reader */
	RECORD_TEXT = 2,
	RECORD_CALL = 3,
	RECORD_BINDS = 4,
	RECORD_PLAN = 5,
	RECORD_ROWSOURCES = 6,
	RECORD_TRANSACTION = 7,
	RECORD_ERROR = 8,
	RECORD_REQUEST = 9,
	RECORD_WAITRING = 10,
	RECORD_LEVEL = 11,
	RECORD_END = 12,
	RECORD_LOST = 13,			/* made by the reader */
	RECORD_APPLICATION = 14,
	RECORD_FUSED = 15,
	RECORD_OPEN = 16			/* made by the reader */
} RecordKind;

typedef struct RecordHeader
{
	uint32		size;
	uint16		kind;			/* RecordKind */
	uint16		depth;
	uint64		number;
	int64		time;
	uint64		call;
} RecordHeader;

/* A size that a record can have if this much is left; else the ring is damaged. */
static inline bool
record_size_fits(uint32 size, uint64 left)
{
	return size >= sizeof(RecordHeader) && size % 8 == 0 && size <= left;
}

typedef struct SessionRecord
{
	RecordHeader header;
	uint32		version;
	int32		pid;
	int64		started;
	int64		system_identifier;
	int64		session_started;
	uint32		role;
	uint32		database;
	int32		server_version_num;
	uint32		clock;
	uint64		ring_bytes;
	char		application[NAMEDATALEN];
	char		role_name[NAMEDATALEN];
	char		database_name[NAMEDATALEN];
	char		encoding[24];
} SessionRecord;

#define TEXT_CUT		0x01
#define TEXT_SUPPRESSED 0x02

typedef struct TextRecord
{
	RecordHeader header;
	uint64		text;
	int64		query_id;
	uint32		length;
	uint32		stored;
	uint32		flags;
	uint32		padding;
} TextRecord;

typedef enum CallKind
{
	CALL_PARSE = 1,
	CALL_BIND = 2,
	CALL_PLAN = 3,
	CALL_EXECUTE = 4,
	CALL_FETCH = 5,
	CALL_COMMIT = 6,
	CALL_ROLLBACK = 7,
	CALL_UTILITY = 8
} CallKind;

#define CALL_FAILED		0x01
#define CALL_SHARED		0x02
#define CALL_LOCAL_TEMP 0x04
#define CALL_WAL		0x08
#define CALL_ABORTED	0x10
#define CALL_ESTIMATED	0x20
#define CALL_SEVERAL	0x40

typedef struct CallRecord
{
	RecordHeader header;
	uint16		call_kind;
	uint16		flags;
	uint32		sqlstate;
	uint64		parent;
	uint64		text;
	int64		query_id;
	uint64		plan;
	uint64		execution;
	int64		start;
	int64		busy;
	int64		cpu;
	uint64		rows;
	/* then groups of counters, and the number of fetches, as flagged */
} CallRecord;

typedef struct BindsRecord
{
	RecordHeader header;
	uint32		parameters;
	uint32		entries;
} BindsRecord;

typedef enum BindState
{
	BIND_NULL = 0,
	BIND_WHOLE = 1,
	BIND_CUT = 2,
	BIND_REDACTED = 3,
	BIND_OMITTED = 4
} BindState;

typedef enum BindForm
{
	BIND_NONE = 0,
	BIND_BY_VALUE = 1,
	BIND_FIXED = 2,
	BIND_VARIABLE = 3,
	BIND_CSTRING = 4
} BindForm;

typedef struct BindEntry
{
	uint32		type;
	uint8		state;
	uint8		form;
	uint16		padding;
	uint32		length;
	uint32		stored;
} BindEntry;

typedef struct PlanRecord
{
	RecordHeader header;
	uint64		plan;
	uint64		text;
	uint32		stored;
	uint32		nodes;
} PlanRecord;

#define ROWSOURCE_EXACT		0x01
#define ROWSOURCE_PARALLEL	0x02
#define ROWSOURCE_UNFINISHED 0x04
#define ROWSOURCE_BYPASSED	0x08
#define ROWSOURCE_UNTIMED	0x10

typedef struct RowSourcesRecord
{
	RecordHeader header;
	uint64		plan;
	uint32		sampling;
	uint32		nodes;
} RowSourcesRecord;

typedef struct RowSource
{
	int32		node;
	uint32		flags;
	uint64		calls;
	uint64		rows;
	uint64		loops;
	int64		time;
	int64		low;
	int64		high;
} RowSource;

typedef enum TransactionEvent
{
	TRANSACTION_BEGIN = 1,
	TRANSACTION_COMMIT = 2,
	TRANSACTION_ABORT = 3,
	TRANSACTION_PREPARE = 4,
	TRANSACTION_SUBABORT = 5
} TransactionEvent;

typedef struct TransactionRecord
{
	RecordHeader header;
	uint32		event;
	uint32		padding;
	uint64		xid;
	int64		start;
} TransactionRecord;

typedef struct ErrorRecord
{
	RecordHeader header;
	uint32		sqlstate;
	uint32		severity;
	uint64		text;
	uint32		length;
	uint32		stored;
} ErrorRecord;

typedef struct RequestRecord
{
	RecordHeader header;
	int64		start;
	int64		cpu;
	uint32		status;
	uint32		messages;
} RequestRecord;

typedef struct WaitRingRecord
{
	RecordHeader header;
	int64		wait_started;
	int64		zero;
	uint32		exact;
	uint32		padding;
} WaitRingRecord;

typedef enum LevelReason
{
	REASON_NONE = 0,
	REASON_SETTING = 1,
	REASON_ASKED = 2,
	REASON_APPLICATION = 3,
	REASON_QUERY = 4,
	REASON_RECORDER = 5
} LevelReason;

typedef struct LevelRecord
{
	RecordHeader header;
	uint32		level;
	uint32		reason;
	double		statement_rate;
} LevelRecord;

typedef struct LostRecord
{
	RecordHeader header;
	uint64		bytes;
} LostRecord;

typedef struct ApplicationRecord
{
	RecordHeader header;
	char		application[NAMEDATALEN];
} ApplicationRecord;

#define FUSED_BEGAN		0x01
#define FUSED_COMMITTED	0x02

/* A request in one record; times are ns after its start.  Items follow. */
typedef struct FusedRecord
{
	RecordHeader header;		/* call: number of the first one */
	uint32		flags;
	uint8		status;
	uint8		padding;
	uint16		messages;
	int64		start;
	int64		cpu;
	uint64		text;
	int64		query_id;
	uint64		xid;
	int64		transaction;	/* when it began */
	uint32		began;			/* time at which that was noticed */
	uint32		padding2;
} FusedRecord;

/* With the flags of a CALL */
#define FUSED_QUERY_ID	0x100
#define FUSED_ROWS		0x200
#define FUSED_PLAN		0x400

/* An item: a call */
typedef struct FusedCall
{
	uint8		kind;			/* CallKind */
	uint8		number;			/* after the first one */
	uint16		flags;
	uint32		start;
	uint32		end;
	uint32		busy;
	/* then rows, plan, groups of counters, as flagged */
} FusedCall;

#define FUSED_BINDS		64		/* another kind of item */

typedef struct FusedBinds
{
	uint8		kind;
	uint8		number;
	uint16		entries;
	uint32		size;			/* of the entries, which follow */
	uint32		time;
	uint32		padding;
} FusedBinds;

StaticAssertDecl(sizeof(RecordHeader) == 32 && sizeof(SessionRecord) == 304 &&
				 sizeof(TextRecord) == 64 && sizeof(CallRecord) == 112 &&
				 sizeof(BindsRecord) == 40 && sizeof(BindEntry) == 16 &&
				 sizeof(PlanRecord) == 56 && sizeof(RowSourcesRecord) == 48 &&
				 sizeof(RowSource) == 56 && sizeof(TransactionRecord) == 56 &&
				 sizeof(ErrorRecord) == 56 && sizeof(RequestRecord) == 56 &&
				 sizeof(WaitRingRecord) == 56 && sizeof(LevelRecord) == 48 &&
				 sizeof(LostRecord) == 40 && sizeof(ApplicationRecord) == 96 &&
				 sizeof(FusedRecord) == 96 && sizeof(FusedCall) == 16 &&
				 sizeof(FusedBinds) == 16,
				 "clients know the sizes of records");

#endif							/* RECORDS_H */
