/*-------------------------------------------------------------------------
 * dictionary.h
 *		The dictionary of the recorder: texts and plans, written once for all sessions.
 *
 * A ring of the recorder is small: the text of a statement would be overwritten long
 * before all records that name it are.  So a session that needs a text or a plan of its
 * ring in another request puts it here, and does not write it into its ring again.  What
 * it needs once stays in the ring, next to what names it: statements with values in their
 * text, each of them another one, would take the lock each time, and push out all others.
 * Readers of a ring get what its records name from here, in front of them (names.c).
 *
 * An entry is a record as it goes into a trace, without number and time, in as many
 * cells of fixed size as it needs.  Each entry has a number that no other ever has.  A
 * session remembers it, and sees by one word whether the entry is still there; if not,
 * it puts it here anew.  All else is under a lock.  That is taken when a session needs
 * a text or a plan for the second time, and by readers; nothing fails or allocates under
 * it.
 *
 * If there is no room, that entry makes way which has not been needed for longest: a
 * hand goes round, and passes by those that were needed since it came by last.
 *
 * What must not be shown is not here: texts of secret statements have no entries.  Nobody
 * can ask for an entry: who may read a ring gets what the records in it name.  Two
 * sessions share an entry only if each byte of it is the same, so nobody gets a text that
 * another session had.
 *-------------------------------------------------------------------------
 */
#ifndef DICTIONARY_H
#define DICTIONARY_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "port/atomics.h"

#include "records.h"

#define CELL_BYTES 256
#define CELL_BITS 22
#define MOST_CELLS (UINT64CONST(1) << CELL_BITS)

/* The number of an entry: this bit, how many there had been before, and its first cell */
#define IN_DICTIONARY (UINT64CONST(1) << 63)

/* Added to a place in the ring, in that of a number: to be put here when it is needed again */
#define NEEDED_ONCE (IN_DICTIONARY | UINT64CONST(1) << 62)

typedef struct Cell
{
	pg_atomic_uint64 number;	/* of the entry that begins here; 0: none does */
	pg_atomic_uint32 needed;	/* since the hand came by */
	uint32		size;			/* of the record */
	uint64		id;
	int			next;			/* of the same entry, or of those that are free */
	int			neighbour;		/* entry with a hash like this one's */
	char		data[CELL_BYTES - 32];
} Cell;

StaticAssertDecl(sizeof(Cell) == CELL_BYTES, "cells lie side by side");

/* How a text and a plan begin */
typedef struct NameRecord
{
	RecordHeader header;
	uint64		id;
} NameRecord;

/* What is put into it: the fixed part of a record, and its bytes behind that, in two parts */
typedef struct NameContent
{
	NameRecord *record;
	Size		head;
	const char *data[2];
	Size		size[2];
} NameContent;

typedef struct DictionaryUse
{
	uint64		bytes;
	uint64		free_bytes;
	uint64		entries;
	uint64		replaced;		/* entries that made way for others */
} DictionaryUse;

#pragma GCC visibility push(hidden)

extern Cell *dictionary_cells;	/* for a process that has numbers of entries */

extern uint64 dictionary_init(uint64 bytes);
extern bool dictionary_begin(void);
extern uint32 dictionary_largest(void);
extern uint64 dictionary_put(const NameContent *content, bool may_wait);
extern void dictionary_look(RecordKind kind, uint64 id, StringInfo to);
extern DictionaryUse dictionary_use(void);

/* names.c */
extern void names_find(const char *records, Size size, StringInfo to);

#pragma GCC visibility pop

/* Is the entry of that number still there?  Then it is needed. */
static pg_attribute_always_inline bool
dictionary_holds(uint64 number)
{
	Cell	   *cell = &dictionary_cells[number & (MOST_CELLS - 1)];

	if (unlikely(pg_atomic_read_u64(&cell->number) != number))
		return false;
	/* all sessions share this line of the cache: mostly they only read it */
	if (unlikely(pg_atomic_read_u32(&cell->needed) == 0))
		pg_atomic_write_u32(&cell->needed, 1);
	return true;
}

#endif							/* DICTIONARY_H */
