/*-------------------------------------------------------------------------
 * fused.c
 *		One record per request (fused.h).
 *-------------------------------------------------------------------------
 */
#include "fused.h"
#include "../core/timeline.h"
#include "../rows/rows.h"

static inline OpenRequest *
open_request(void)
{
	return &trace.ring->open;
}

/* Nothing is kept back from now on: readers have to look at the records again. */
static inline void
show_none(OpenRequest *open)
{
	open->size = 0;
	pg_write_barrier();
	open->generation++;
	pg_write_barrier();
}

/* Start to keep back; false: it is not known when the request began. */
static bool
begin_record(void)
{
	FusedRecord *record = &open_request()->record;
	int64		start = trace.request_start;

	if (start == -1 || trace.depth != 0)
		return false;
	/* field by field; those of the header and of the end are set there */
	record->header.call = fused.first;
	record->flags = 0;
	record->padding = 0;
	record->start = start;
	record->cpu = -1;
	record->text = 0;
	record->query_id = 0;
	record->xid = 0;
	record->transaction = 0;
	record->began = record->padding2 = 0;
	fused.size = sizeof(FusedRecord);
	return true;
}

/* Let readers see what has been added. */
static inline void
show(Size added)
{
	fused.size += added;
	pg_write_barrier();
	open_request()->size = fused.size;
}

/* The time since the request's start, if it fits */
static inline bool
after_start(const FusedRecord *record, int64 time, uint32 *after)
{
	uint64		since = (uint64) (time - record->start);

	*after = (uint32) since;
	return since <= PG_UINT32_MAX;
}

/* A transaction began with the first call of the request. */
bool
fused_transaction_began(int64 at, int64 start)
{
	FusedRecord *record = &open_request()->record;

	if (fused.size != 0 || !begin_record())
		return false;
	if (!after_start(record, at, &record->began))
	{
		fused.size = 0;
		return false;
	}
	record->transaction = start;
	record->flags = FUSED_BEGAN;
	show(0);
	return true;
}

/* It was committed with the last call, which has just ended. */
bool
fused_transaction_committed(uint64 xid, int64 start)
{
	FusedRecord *record = &open_request()->record;

	if (fused.size == 0 || !fused.last_is_commit)
		return false;
	record->xid = xid;
	record->transaction = start;
	/* others who see the flag see the rest, and the call */
	pg_write_barrier();
	record->flags |= FUSED_COMMITTED;
	fused.committed = true;
	return true;
}

/* Is there room for so much, in this request's transaction? */
static inline bool
fits(Size size)
{
	if (fused.size == 0 && !begin_record())
		return false;
	return fused.size + size <= FUSED_ROOM && !fused.committed;
}

/* Counters two at a time; records hold them at multiples of 8 bytes */
typedef uint64 Two __attribute__((vector_size(16), aligned(8), may_alias));

static inline bool
any(Two counters)
{
	return (counters[0] | counters[1]) != 0;
}

/* The counters of a call, where they are to be; returns what follows them. */
static inline uint64 *
add_usage(uint64 *to, const Usage *usage, uint16 *flags)
{
	const Two  *from = (const Two *) usage;
	Two		   *put = (Two *) to;

	StaticAssertStmt(USAGE_LOCAL_TEMP == 4 && USAGE_WAL == 10 && NUSAGE == 12,
					 "groups of two, three and one pair");
	if (any(from[0] | from[1]))
	{
		*flags |= CALL_SHARED;
		*put++ = from[0];
		*put++ = from[1];
	}
	if (likely(!any(from[2] | from[3] | from[4] | from[5])))
		return (uint64 *) put;
	if (any(from[2] | from[3] | from[4]))
	{
		*flags |= CALL_LOCAL_TEMP;
		*put++ = from[2];
		*put++ = from[3];
		*put++ = from[4];
	}
	if (any(from[5]))
	{
		*flags |= CALL_WAL;
		*put++ = from[5];
	}
	return (uint64 *) put;
}

/* A call has ended; false: it cannot be kept back. */
static inline bool
keep_call(const Call *call, int64 end)
{
	FusedRecord *record = &open_request()->record;
	FusedCall  *item;
	uint64	   *to;
	uint64		number;
	uint64		start;
	uint64		time;
	uint16		flags = call->flags;

	if ((call->parent | call->execution | call->fetches >> 1 | (uint64) trace.depth |
		 (flags & ~CALL_ESTIMATED)) != 0 ||
		unlikely(!fits(sizeof(FusedCall) + (2 + NUSAGE) * sizeof(uint64))))
		return false;
	if (!fused.named)
	{
		record->text = call->text;
		fused.named = true;
	}
	number = call->number - record->header.call;
	start = (uint64) (call->start - record->start);
	time = (uint64) (end - record->start);
	if (unlikely((number >> 8 | (start | time | (uint64) call->busy) >> 32 |
				  (record->text ^ call->text)) != 0))
		return false;
	if (call->query_id != 0)
	{
		if (record->query_id == 0)
			record->query_id = call->query_id;
		else if (record->query_id != call->query_id)
			return false;
		flags |= FUSED_QUERY_ID;
	}
	item = (FusedCall *) ((char *) record + fused.size);
	to = (uint64 *) (item + 1);
	if (call->rows != 0)
	{
		flags |= FUSED_ROWS;
		*to++ = call->rows;
	}
	if (call->plan != 0)
	{
		flags |= FUSED_PLAN;
		*to++ = call->plan;
	}
	to = add_usage(to, &call->usage, &flags);
	item->kind = (uint8) call->kind;
	item->number = (uint8) number;
	item->flags = flags;
	item->start = (uint32) start;
	item->end = (uint32) time;
	item->busy = (uint32) call->busy;
	fused.last_is_commit = call->kind == CALL_COMMIT;
	show((char *) to - (char *) item);
	return true;
}

/* The call has ended: it is kept back, or makes a record. */
void
call_write(const Call *call, int64 end)
{
	if (!trace.on)
		return;					/* the process ends, and has left its ring */
	if (call->parent == 0)
	{
		trace.covered += call->busy;
		trace.last_end = end;
	}
	if (likely(fused.open))
	{
		if (unlikely(record_held_back != NULL))
			record_held_back();
		if (likely(fused.open && keep_call(call, end)))
			return;
	}
	record_call(call, trace.depth, end, trace.depth == 0 ? timeline_cpu(end) : -1);
}

/* Values of an execution: their entries, of "size" bytes. */
bool
fused_binds(uint64 call, uint32 parameters, uint32 entries, const char *values, Size size,
			int64 time)
{
	FusedRecord *record = &open_request()->record;
	FusedBinds	item = {.kind = FUSED_BINDS};
	uint64		number;

	if (trace.depth != 0 || !fits(sizeof(item) + size))
		return false;
	number = call - record->header.call;
	if (number > PG_UINT8_MAX || entries > PG_UINT16_MAX || parameters != entries ||
		!after_start(record, time, &item.time))
		return false;
	item.number = (uint8) number;
	item.entries = (uint16) entries;
	item.size = (uint32) size;
	memcpy((char *) record + fused.size, &item, sizeof(item));
	memcpy((char *) record + fused.size + sizeof(item), values, size);
	show(sizeof(item) + size);
	return true;
}

static const char *
take_counters(const char *from, bool there, uint64 *counter, int n)
{
	if (!there)
		return from;
	memcpy(counter, from, n * sizeof(uint64));
	return from + n * sizeof(uint64);
}

/* A call as it was; returns what follows it. */
static const char *
unfuse_call(const FusedRecord *record, const char *at, Call *call, int64 *end)
{
	FusedCall	item;

	memcpy(&item, at, sizeof(item));
	at += sizeof(item);
	memset(call, 0, sizeof(*call));
	call->kind = (CallKind) item.kind;
	call->flags = item.flags & CALL_ESTIMATED;
	call->number = record->header.call + item.number;
	call->text = record->text;
	call->query_id = (item.flags & FUSED_QUERY_ID) != 0 ? record->query_id : 0;
	call->start = record->start + item.start;
	call->busy = item.busy;
	*end = record->start + item.end;
	at = take_counters(at, (item.flags & FUSED_ROWS) != 0, &call->rows, 1);
	at = take_counters(at, (item.flags & FUSED_PLAN) != 0, &call->plan, 1);
	at = take_counters(at, (item.flags & CALL_SHARED) != 0, &call->usage.counter[USAGE_SHARED],
					   USAGE_LOCAL_TEMP - USAGE_SHARED);
	at = take_counters(at, (item.flags & CALL_LOCAL_TEMP) != 0,
					   &call->usage.counter[USAGE_LOCAL_TEMP], USAGE_WAL - USAGE_LOCAL_TEMP);
	return take_counters(at, (item.flags & CALL_WAL) != 0, &call->usage.counter[USAGE_WAL],
						 NUSAGE - USAGE_WAL);
}

/* Write the values that a request's record holds; returns what follows them. */
static const char *
write_binds(const FusedRecord *record, const char *at)
{
	FusedBinds	item;
	BindsRecord binds;

	memcpy(&item, at, sizeof(item));
	at += sizeof(item);
	binds.parameters = binds.entries = item.entries;
	if (record_begin(RECORD_BINDS, 0, record->header.call + item.number,
					 record->start + item.time, sizeof(binds) + item.size, &binds.header))
	{
		record_put(&binds, sizeof(binds));
		record_put(at, item.size);
		record_end();
	}
	return at + item.size;
}

static void
write_transaction(TransactionEvent event, uint64 xid, int64 at, int64 start)
{
	TransactionRecord record = {.event = event,.xid = xid,.start = start};

	(void) record_write(RECORD_TRANSACTION, 0, 0, at, &record, sizeof(record));
}

/*
 * Something does not fit: write what is kept back as records of its own.
 * Fetches that are held back are younger than all of it, so they come after it.
 */
static void
fused_spill(void)
{
	static union
	{
		FusedRecord record;
		char		bytes[FUSED_ROOM];
	}			kept;
	uint32		size = fused.size;
	const char *at = kept.bytes + sizeof(FusedRecord);
	void		(*held_back) (void) = record_held_back;
	int64		end = 0;

	fused.open = false;
	if (size == 0 || trace.ring == NULL)
		return;
	record_held_back = NULL;
	fused.size = 0;
	memcpy(kept.bytes, &open_request()->record, size);
	show_none(open_request());
	if ((kept.record.flags & FUSED_BEGAN) != 0)
		write_transaction(TRANSACTION_BEGIN, 0, kept.record.start + kept.record.began,
						  kept.record.transaction);
	while (at < kept.bytes + size)
	{
		Call		call;

		if (*at == FUSED_BINDS)
			at = write_binds(&kept.record, at);
		else
		{
			at = unfuse_call(&kept.record, at, &call, &end);
			record_call(&call, 0, end, -1);
		}
	}
	if ((kept.record.flags & FUSED_COMMITTED) != 0)
		write_transaction(TRANSACTION_COMMIT, kept.record.xid, end, kept.record.transaction);
	record_held_back = held_back;
}

/* A request that is traced begins. */
void
fused_begin(void)
{
	record_kept_back = fused_spill;
	/* not what would be spilled anyway */
	fused.open = timeline_cpu_interval != 0 && row_every == 0;
	fused.size = 0;
	fused.named = fused.last_is_commit = fused.committed = false;
	fused.first = trace.calls + 1;
}

/* The request has been answered; false: nothing was kept back, or not all of it fits. */
bool
fused_end(int status, uint32 messages, int64 cpu, int64 now)
{
	OpenRequest *open = open_request();
	FusedRecord *record = &open->record;
	uint32		size;

	if (record_held_back)
		record_held_back();
	size = fused.size;
	if (!fused.open || size == 0 || messages > PG_UINT16_MAX)
		return false;
	fused.open = false;
	record->status = (uint8) status;
	record->messages = (uint16) messages;
	record->cpu = cpu;
	show_none(open);
	fused.size = 0;
	(void) record_write(RECORD_FUSED, 0, record->header.call, now, record, size);
	return true;
}

/*
 * For readers: the open request as a record.  0: no request is open, or the ring
 * holds newer records, which tell of it.  "head": where the ring ended when the
 * reader copied its records.
 *
 * What has been shown does not change until the generation does, but for the flag
 * that the transaction was committed, and what goes with it: the flag is read
 * before the size, and so never tells of a call that is not in the copy yet.
 */
Size
fused_look(const Ring *ring, uint64 head, char *to)
{
	const volatile OpenRequest *open = &ring->open;
	uint32		generation = open->generation;
	uint32		flags;
	uint32		size;
	FusedRecord *copy = (FusedRecord *) to;

	pg_read_barrier();
	if (open->size == 0)
		return 0;
	/* the flags are those of this request, and not of the one before */
	pg_read_barrier();
	flags = open->record.flags;
	pg_read_barrier();
	size = open->size;
	if (size < sizeof(FusedRecord) || size > FUSED_ROOM)
		return 0;
	pg_read_barrier();
	memcpy(to, &ring->open.record, size);
	pg_read_barrier();
	if (open->generation != generation || open->size == 0 ||
		pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->head)) != head)
		return 0;
	copy->header.size = size;
	copy->header.kind = RECORD_OPEN;
	copy->header.depth = 0;
	copy->header.number = 0;
	copy->header.time = copy->start;
	copy->flags = flags;
	copy->status = 0;
	copy->messages = 0;
	copy->cpu = -1;
	return size;
}
