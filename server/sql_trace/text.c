/*-------------------------------------------------------------------------
 * text.c
 *		Texts of statements: each is written once, and again when it is gone.
 *
 * A text is known by a hash of its length and of what is kept of it, or of what
 * is searched for secrets, where that is more: so equal ones are equally secret.
 * A small table, in which old entries make way, says where in the ring it was
 * written; plan trees share it.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#define SETS 512				/* power of two */
#define WAYS 4
#define SHORT 1024				/* bytes of a text that are compared rather than hashed */
#define COMPARED 16				/* texts of which so much is kept, by their address; power of two */
#define SCANNED 16384			/* bytes searched for secrets, even where fewer are kept */

typedef struct Known
{
	uint64		id;				/* 0: free */
	uint64		position;		/* in the ring */
	bool		secret;
} Known;

typedef struct Set
{
	Known		way[WAYS];		/* the latest first */
} Set;

static Set *known = NULL;

typedef struct Compared
{
	int			length;			/* 0: none */
	int			searched;
	uint64		id;
	char		text[SHORT];
} Compared;

static Compared compared[COMPARED];

/* The ring begins, without any text; where an error can be caught. */
void
text_begin(void)
{
	if (known == NULL)
		known = MemoryContextAlloc(TopMemoryContext, SETS * sizeof(Set));
	memset(known, 0, SETS * sizeof(Set));
}

static const Known *
find(uint64 id)
{
	const Set  *set = &known[id & (SETS - 1)];

	for (int i = 0; i < WAYS; i++)
		if (set->way[i].id == id && ring_holds(set->way[i].position))
			return &set->way[i];
	return NULL;
}

/* Has this been written, and is it still there? */
bool
text_known(uint64 id)
{
	return find(id) != NULL;
}

/* It is about to be written. */
void
text_remember(uint64 id, bool secret)
{
	Set		   *set = &known[id & (SETS - 1)];
	int			at = 0;

	while (at < WAYS - 1 && set->way[at].id != id)
		at++;
	memmove(&set->way[1], &set->way[0], at * sizeof(Known));
	set->way[0] = (Known) {id, ring_head(), secret};
}

static inline bool
is_blank(char c)
{
	return c == ' ' || c == ';' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

/* The statement itself, without blanks around it */
static const char *
part(const char *text, int location, int *length)
{
	int			n;

	if (location > 0)
		text += location;
	/* read from a catalog, a statement has lost its place; before 17 not the length, of another text */
	n = location >= 0 && *length > 0 ? *length : (int) strlen(text);
	while (n > 0 && is_blank(text[0]))
	{
		text++;
		n--;
	}
	while (n > 0 && is_blank(text[n - 1]))
		n--;
	*length = n;
	return text;
}

/* The hash of a text, which mostly is that of one that stood there before */
static uint64
hash_of(const char *text, int length, int searched)
{
	Compared   *last = &compared[((uintptr_t) text / 16 + length) & (COMPARED - 1)];
	uint64		id;

	if (length == last->length && searched == last->searched && length > 0 &&
		memcmp(text, last->text, searched) == 0)
		return last->id;
	id = hash_bytes_extended((const unsigned char *) text, searched, (uint64) length);
	if (id == 0)
		id = 1;
	if (searched <= SHORT)
	{
		last->length = length;
		last->searched = searched;
		last->id = id;
		memcpy(last->text, text, searched);
	}
	return id;
}

static bool
write_text(uint64 id, const char *text, int length, int stored, int64 query_id, bool secret)
{
	TextRecord	record = {0};

	record.text = id;
	record.query_id = query_id;
	record.length = (uint32) length;
	record.stored = secret ? 0 : (uint32) stored;
	record.flags = (secret ? TEXT_SUPPRESSED : 0) | (!secret && stored < length ? TEXT_CUT : 0);
	text_remember(id, secret);
	if (!ring_begin(RECORD_TEXT, trace.depth, trace.current, timeline_now(),
					sizeof(record) + record.stored, &record.header))
		return false;
	ring_put(&record, sizeof(record));
	ring_put(text, record.stored);
	ring_end();
	return true;
}

/*
 * The identifier of a statement's text, which is written if it is not known.
 * The text has "length" bytes from "location" on, or with 0 goes to its end.
 * "secret" tells that nothing of the statement is to be shown.
 */
uint64
text_of(const char *text, int location, int length, int64 query_id, const Node *utility,
		bool *secret)
{
	const Known *old;
	uint64		id;
	int			stored;
	int			searched;

	*secret = false;
	if (text == NULL)
		return 0;
	/* who sees this role's trace may not see what is done with the rights of another */
	if (unlikely(GetUserId() != trace.slot->trace.role))
		trace.slot->trace.others = true;
	text = part(text, location, &length);
	stored = Min(length, trace_text_length);
	if ((uint64) stored > trace.ring->size / 8)
		stored = (int) (trace.ring->size / 8);
	if (stored < length)
		stored = pg_mbcliplen(text, length, stored);
	searched = Min(length, Max(stored, SCANNED));
	id = hash_of(text, length, searched);
	old = find(id);
	if (old != NULL)
		*secret = old->secret;
	else
	{
		*secret = (utility != NULL && secrets_in_statement(utility)) ||
			secrets_in_text(text, searched);
		if (!write_text(id, text, length, stored, query_id, *secret))
			return 0;
	}
	return id;
}
