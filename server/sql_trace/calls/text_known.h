/*-------------------------------------------------------------------------
 * text_known.h
 *		Where in the ring each text, and each plan, was written.
 *
 * A small table, in which old entries make way.  The recorder puts what it needs in
 * another request, and what is not secret, into the dictionary of all sessions
 * (../core/dictionary.h).  The same text can have several query identifiers there, as
 * each database has its own, and be cut at several lengths, so that its identifier
 * there depends on these, too.
 *
 * For text.c and plan.c; inline, as each call of a statement looks here.
 *-------------------------------------------------------------------------
 */
#ifndef TEXT_KNOWN_H
#define TEXT_KNOWN_H

#include "statement.h"

#pragma GCC visibility push(hidden)

#define TEXT_SETS 512			/* power of two */
#define TEXT_WAYS 4

typedef struct TextPlace
{
	uint64		id;				/* 0: free */
	uint64		position;		/* in the ring, that with NEEDED_ONCE, or number in the dictionary */
	uint64		shown;			/* identifier there; another than "id" if secret, or in the dictionary */
} TextPlace;

typedef struct TextSet
{
	TextPlace	way[TEXT_WAYS]; /* the latest first */
} TextSet;

extern TextSet *text_places;
extern bool text_needed_again(TextPlace *of, bool may_wait);

static pg_attribute_always_inline TextPlace *
text_find(uint64 id)
{
	TextSet    *set = &text_places[id & (TEXT_SETS - 1)];

	for (int i = 0; i < TEXT_WAYS; i++)
		if (set->way[i].id == id)
			return &set->way[i];
	return NULL;
}

static inline bool
text_needed_once(uint64 position)
{
	return (position & NEEDED_ONCE) == NEEDED_ONCE;
}

static inline bool
text_still_held(TextPlace *of, bool may_wait)
{
	if ((of->position & IN_DICTIONARY) == 0)
		return ring_holds(of->position);
	return text_needed_once(of->position) ? text_needed_again(of, may_wait) :
		dictionary_holds(of->position);
}

#pragma GCC visibility pop

#endif							/* TEXT_KNOWN_H */
