/*-------------------------------------------------------------------------
 * open_request.c
 *		The request under way as a record: for its session, and for readers.
 *-------------------------------------------------------------------------
 */
#include "items.h"
#include "plain.h"

/*
 * Add what is known of a plain request at this stage to a record of this size, which has
 * room for it.  The new size; 0: it does not fit.
 */
uint32
plain_add(FusedRecord *record, uint32 size, const PlainRequest *plain, PlainStage stage)
{
	if (plain->bound)
	{
		const Call	bind = plain_bind(plain);

		size = item_add(record, size, &bind, NULL, plain->start);
	}
	if (stage >= PLAIN_ENDED && size != 0)
	{
		const Call	execution = plain_execution(plain);

		size = item_add(record, size, &execution, &plain->usage, plain->end);
	}
	if (stage >= PLAIN_COMMITTED && size != 0)
	{
		const Call	commit = plain_commit(plain);

		size = item_add(record, size, &commit, NULL, plain->commit_end);
		if (size == 0)
			return 0;
		record->xid = plain->xid;
		record->transaction = plain->transaction;
		record->flags |= FUSED_COMMITTED;
	}
	return size;
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
