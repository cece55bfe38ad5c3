/*-------------------------------------------------------------------------
 * text_known.c
 *		Where in the ring each text, and each plan, was written (text_known.h).
 *-------------------------------------------------------------------------
 */
#include "text_known.h"

#include "utils/memutils.h"

TextSet    *text_places = NULL;
uint32		text_rings = 0;
bool		text_in_dictionary = false;
uint64		text_request_began = 0;

/* The ring begins, without any text; where an error can be caught. */
void
text_begin(void)
{
	if (text_places == NULL)
		text_places = MemoryContextAlloc(TopMemoryContext, TEXT_SETS * sizeof(TextSet));
	memset(text_places, 0, TEXT_SETS * sizeof(TextSet));
	text_rings++;
}

/* The ring, which has begun, goes on: for the recorder, or for whoever reads only the ring. */
void
text_begin_as(bool recorder)
{
	bool		in_dictionary = recorder && dictionary_begin();

	if (in_dictionary == text_in_dictionary)
		return;
	text_in_dictionary = in_dictionary;
	text_begin();
}

StaticAssertDecl(offsetof(TextRecord, text) == offsetof(NameRecord, id) &&
				 offsetof(PlanRecord, plan) == offsetof(NameRecord, id),
				 "texts and plans begin alike");

/*
 * Put a text or a plan that is in our ring into the dictionary; its record stays in
 * the ring, until it is overwritten there.
 *
 * The record of this identifier begins there, and is whole, as nobody else writes.  The
 * number of an entry for it, and maybe another identifier; 0: it remains where it is.
 */
static uint64
move_to_dictionary(uint64 position, uint64 *id, bool may_wait)
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

/*
 * A text or a plan of the ring is needed again: if that is in another request than
 * before, it goes into the dictionary.  False: the ring has lost it.
 */
pg_noinline bool
text_needed_again(TextPlace *of, bool may_wait)
{
	uint64		position = of->position & ~NEEDED_ONCE;
	uint64		number;

	if (!ring_holds(position))
		return false;
	number = position < text_request_began || recorder_block.handle == 0 ?
		move_to_dictionary(position, &of->shown, may_wait) : 0;
	if (number != 0)
		of->position = number;
	return true;
}

/*
 * Has this been written, and is it still there?  Then "position" is where, and its
 * identifier there is returned; else 0.
 */
uint64
text_known(uint64 id, uint64 *position)
{
	TextPlace  *found = text_find(id);

	if (found == NULL || !text_still_held(found, true))
		return 0;
	*position = text_needed_once(found->position) ? NEEDED_ONCE : found->position;
	return found->shown;
}

/* It is about to be written there, or has been, as "shown". */
void
text_remember(uint64 id, uint64 position, uint64 shown)
{
	TextSet    *set = &text_places[id & (TEXT_SETS - 1)];
	int			at = 0;

	while (at < TEXT_WAYS - 1 && set->way[at].id != id)
		at++;
	memmove(&set->way[1], &set->way[0], at * sizeof(TextPlace));
	set->way[0] = (TextPlace) {id, position, shown};
}

/*
 * The ring of the recorder has lost a text or a plan, which is needed again: it goes into
 * the dictionary.  Its number there; 0: there is no place.
 */
uint64
text_put_again(uint64 id, RecordKind kind, NameRecord *record, Size head, const char *data,
			   Size size, bool may_wait)
{
	NameContent content = {record, head, {data}, {size}};
	uint64		number;

	record->header.kind = kind;
	number = dictionary_put(&content, may_wait);
	if (number != 0)
		text_remember(id, number, record->id);
	return number;
}
