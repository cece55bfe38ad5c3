/*-------------------------------------------------------------------------
 * open_request.c
 *		The request under way as a record: for its session, and for readers.
 *-------------------------------------------------------------------------
 */
#include "items.h"
#include "plain.h"

/*
 * Add what is known of a plain request at this stage to its record of this size, which has
 * room for it.  The new size; 0: it does not fit.  That it was committed is for the caller to say.
 */
uint32
plain_add(FusedRecord *record, uint32 size, const PlainRequest *plain, PlainStage stage)
{
	char	   *to = (char *) record + size;
	const int64 zero = record->start;
	uint64		number = plain->number - record->header.call;
	uint64		start = (uint64) (plain->start - zero);
	uint64		most = start;

	if (number > PG_UINT8_MAX - 2)
		return 0;
	if (plain->bound)
	{
		uint64		from = (uint64) (plain->bind_start - zero);
		uint16		flags = CALL_ESTIMATED;

		if (!item_query(record, plain->bind_query_id, &flags))
			return 0;
		most |= from | (uint64) plain->bind_busy;
		to = item_put(to, (FusedCall) {CALL_BIND, number + 1, flags, from, start, plain->bind_busy},
					  0, 0, NULL);
	}
	if (stage >= PLAIN_ENDED)
	{
		uint64		end = (uint64) (plain->end - zero);
		uint16		flags = 0;

		if (!item_query(record, plain->query_id, &flags))
			return 0;
		most |= end | (uint64) plain->busy;
		to = item_put(to, (FusedCall) {CALL_EXECUTE, number, flags, start, end, plain->busy},
					  plain->rows, plain->plan, &plain->usage);
	}
	if (stage >= PLAIN_COMMITTED)
	{
		uint64		from = (uint64) (plain->commit_start - zero);
		uint64		end = (uint64) (plain->commit_end - zero);

		/* the clock may have stepped back */
		most |= from | end | (end - from);
		to = item_put(to, (FusedCall) {CALL_COMMIT, number + plain->bound + 1, 0, from, end, end - from},
					  0, 0, NULL);
		record->xid = plain->xid;
		record->transaction = plain->transaction;
	}
	if (unlikely(most >> 32 != 0))
		return 0;
	return (uint32) (to - (char *) record);
}

/*
 * For readers: the open request as a record.  0: no request is open, or the ring
 * holds newer records, which tell of it.  "head": where the ring ended when the
 * reader copied its records.
 *
 * What has been shown does not change until the generation does, but for the flag
 * that the transaction was committed, and what goes with it: the flag is read
 * before the size, and so never tells of a call that is not in the copy yet.  Of a plain
 * request items are made here.
 */
Size
fused_look(const Ring *ring, uint64 head, char *to)
{
	const volatile OpenRequest *open = &ring->open;
	PlainRequest plain;
	PlainStage	stage;
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
	/* what has become items since then is no longer in a stage */
	pg_read_barrier();
	stage = open->plain.stage;
	pg_read_barrier();
	memcpy(to, &ring->open.record, size);
	plain = ring->open.plain;
	pg_read_barrier();
	if (open->generation != generation || open->size == 0 ||
		pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->head)) != head)
		return 0;
	copy->flags = flags;
	if (stage >= PLAIN_BOUND && size + PLAIN_ROOM <= FUSED_ROOM)
	{
		uint32		more = plain_add(copy, size, &plain, stage);

		if (more != 0 && stage >= PLAIN_COMMITTED)
			copy->flags |= FUSED_COMMITTED;
		size = more != 0 ? more : size;
	}
	copy->header.size = size;
	copy->header.kind = RECORD_OPEN;
	copy->header.depth = 0;
	copy->header.number = 0;
	copy->header.time = copy->start;
	copy->status = 0;
	copy->messages = 0;
	copy->cpu = -1;
	return size;
}
