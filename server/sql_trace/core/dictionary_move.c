/*-------------------------------------------------------------------------
 * dictionary_move.c
 *		Putting a text or a plan into the dictionary that is in our ring.
 *
 * Its record stays in the ring, until it is overwritten there.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

StaticAssertDecl(offsetof(TextRecord, text) == offsetof(NameRecord, id) &&
				 offsetof(PlanRecord, plan) == offsetof(NameRecord, id),
				 "texts and plans begin alike");

/*
 * The record of this identifier begins there, and is whole, as nobody else writes.  The
 * number of an entry for it, and maybe another identifier; 0: it remains where it is.
 */
uint64
dictionary_move(uint64 position, uint64 *id, bool may_wait)
{
	const Ring *ring = trace.ring;
	union
	{
		NameRecord	name;
		TextRecord	text;
		PlanRecord	plan;
	}			record;
	NameContent content = {&record.name};
	uint64		at;
	Size		stored;
	uint64		number;

	ring_read(ring, position, sizeof(RecordHeader), (char *) &record);
	content.head = record.name.header.kind == RECORD_TEXT ? sizeof(TextRecord) : sizeof(PlanRecord);
	ring_read(ring, position, content.head, (char *) &record);
	stored = record.name.header.kind == RECORD_TEXT ? record.text.stored : record.plan.stored;
	/* unless something wrote over the ring */
	if (record.name.id != *id || content.head + stored > record.name.header.size)
		return 0;
	/* statements of all sessions share a plan there: it has no text */
	if (record.name.header.kind == RECORD_PLAN)
		record.plan.text = 0;
	at = (position + content.head) & (ring->size - 1);
	content.data[0] = &ring->data[at];
	content.size[0] = Min(stored, ring->size - at);
	content.data[1] = ring->data;
	content.size[1] = stored - content.size[0];
	number = dictionary_put(&content, may_wait);
	if (number != 0)
		*id = record.name.id;
	return number;
}
