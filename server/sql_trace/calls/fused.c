/*-------------------------------------------------------------------------
 * fused.c
 *		One record per request (fused.h).
 *-------------------------------------------------------------------------
 */
#include "items.h"
#include "../core/ring_store.h"
#include "../core/timeline.h"
#include "../rows/rows.h"

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
static pg_attribute_always_inline bool
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
	fused_show(fused.size + added);
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

/* A call has ended; false: it cannot be kept back. */
static inline bool
keep_call(const Call *call, int64 end)
{
	FusedRecord *record = &open_request()->record;
	uint64		number;
	uint64		start;
	uint64		time;
	uint16		flags = call->flags;
	char	   *at;
	char	   *after;

	if ((call->parent | call->execution | call->fetches >> 1 | (uint64) trace.depth |
		 (call->flags & ~CALL_ESTIMATED)) != 0 ||
		unlikely(!fits(ITEM_ROOM)))
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
				  (record->text ^ call->text)) != 0) ||
		!item_query(record, call->query_id, &flags))
		return false;
	at = (char *) record + fused.size;
	after = item_put(at, (FusedCall) {call->kind, number, flags, start, time, call->busy},
					 call->rows, call->plan, &call->usage);
	fused.last_is_commit = call->kind == CALL_COMMIT;
	show(after - at);
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
	(void) record_write_with(RECORD_BINDS, 0, record->header.call + item.number,
							 record->start + item.time, &binds, sizeof(binds), at, item.size);
	return at + item.size;
}

static void
write_transaction(TransactionEvent event, uint64 xid, int64 at, int64 start)
{
	TransactionRecord record = {.event = event,.xid = xid,.start = start};

	record_write(RECORD_TRANSACTION, 0, 0, at, &record, sizeof(record));
}

/*
 * Something does not fit: write what is kept back as records of its own.
 * Fetches that are held back are younger than all of it, so they come after it.
 */
void
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
	fused = (Fused) {
		/* not what would be spilled anyway */
		.open = timeline_cpu_interval != 0 && row_every == 0,.first = trace.calls + 1
	};
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
	record_time = now;
	if (ring_begin(RECORD_FUSED, 0, record->header.call, now, size, &record->header))
	{
		ring_put(record, size);
		ring_end();
	}
	return true;
}

/*
 * A plain request begins, of which items are made later; false: they would have no place.
 * Only the first of what is kept back, as readers tell one from the next by the generation.
 */
bool
fused_plain_begins(uint64 text)
{
	FusedRecord *record = &open_request()->record;

	if (!fits(PLAIN_ROOM) || fused.plain || (fused.named && record->text != text))
		return false;
	fused.plain = fused.named = true;
	record->text = text;
	show(0);
	return true;
}
