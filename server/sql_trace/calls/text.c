/*-------------------------------------------------------------------------
 * text.c
 *		Texts of statements: each is written once, and again when it is gone.
 *
 * A statement is part of a source: all that was sent, or run, as one string, with
 * comments and other statements around it.  Nothing of a source is shown if a word
 * in it shows a secret, wherever that word is; so a source is searched whole, and
 * what was found is kept by a hash of all of it.
 *
 * A text is known by a hash of its length, of what is kept of it and of whether it
 * is secret.  The hash of a secret text would allow guesses at the secret, so it
 * gets a random identifier instead.
 *-------------------------------------------------------------------------
 */
#include "text_known.h"

#include "../core/record.h"
#include "secrets.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"

#define SHORT 1024				/* bytes of a source that are compared rather than hashed */
#define COMPARED 16				/* sources that are kept for it, by their address; power of two */
#define LONG 65536				/* a client's source that is looked at only once a message */

/*
 * Bytes of a text that are kept, and that identify it, even if fewer are kept.  A
 * ring of the recorder is not to be taken up by one statement with a long list, and
 * what is longer is cut where nobody reads it any more.
 */
#define MOST_OF_TEXT 16384

#define VERDICTS 1024			/* power of two */

/* A different identifier for the same text in a source that is secret, and in one that is not */
#define SECRET_SEED UINT64CONST(0x9E3779B97F4A7C15)

typedef struct Source
{
	int			length;			/* 0: none */
	bool		secret;
	int			at;				/* the part that was requested last ... */
	int			part;
	int			identified;
	uint64		id;				/* ... its hash; 0: none yet */
	uint64		shown;			/* ... and its identifier in the trace, once it has been written */
	int			asked_location; /* the question that was answered last, if it holds no secret ... */
	int			asked_length;
	uint64		position;		/* ... where the ring has the answer ... */
	uint32		rings;			/* ... of that number; 0: there was none */
	char		text[SHORT];
} Source;

static Source sources[COMPARED];

/*
 * A statement of the client's message that holds no secret: it is looked up when it
 * is parsed, planned and executed.
 */
static struct
{
	const char *source;
	TimestampTz message;		/* its statement timestamp; one that is parsed later has the same if the
								 * clock stands still, so what is known ends with each Parse message */
	int			location;
	int			length;
	uint64		id;
	uint64		position;
	uint32		rings;
} last;

/* Hashes of longer sources; the lowest bit says whether it is secret */
static uint64 verdicts[VERDICTS];

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

/* Is this statement all that its source holds, but for blanks and semicolons behind it? */
bool
text_is_whole(const char *source_text, int location, int length)
{
	const char *rest;

	if (location > 0 || source_text == NULL)
		return false;
	/* read from a catalog, it has lost its place, and all of the source is its text */
	if (location < 0 || length <= 0)
		return true;
	for (rest = source_text + length; is_blank(*rest); rest++)
		;
	return *rest == '\0';
}

/* Of some bytes; four at a time, as a source may be long and hold many statements. */
static uint64
fast_hash(const char *text, Size length)
{
	uint64		lane[4] = {length, 1, 2, 3};
	uint64		word[4];

	for (; length >= sizeof(word); text += sizeof(word), length -= sizeof(word))
	{
		memcpy(word, text, sizeof(word));
		for (int i = 0; i < 4; i++)
		{
			lane[i] = (lane[i] ^ word[i]) * UINT64CONST(0x9E3779B97F4A7C15);
			lane[i] ^= lane[i] >> 32;
		}
	}
	return hash_bytes_extended((const unsigned char *) lane, sizeof(lane),
							   hash_bytes_extended((const unsigned char *) text, (int) length, 0));
}

/* The client's source that was looked at last, if it is long: it may hold many statements. */
static struct
{
	const char *text;
	TimestampTz message;
	bool		secret;
} last_long;

/* Not even its length is counted again for each statement. */
static inline bool
is_last_long(const char *text)
{
	/* of the same message: nothing else can be there */
	return text == last_long.text && text == debug_query_string &&
		last_long.message == GetCurrentStatementStartTimestamp();
}

/* Is a source that is not short secret? */
static bool
long_is_secret(const char *text, Size length)
{
	uint64		hash;
	uint64	   *verdict;

	hash = fast_hash(text, length) & ~UINT64CONST(1);
	verdict = &verdicts[hash >> 32 & (VERDICTS - 1)];
	if (*verdict == 0 || (*verdict & ~UINT64CONST(1)) != hash)
		*verdict = hash | secret_words_in(text, length);
	if (length >= LONG && text == debug_query_string)
	{
		last_long.text = text;
		last_long.message = GetCurrentStatementStartTimestamp();
		last_long.secret = (*verdict & 1) != 0;
	}
	return (*verdict & 1) != 0;
}

/* What is known of a source; of one that is not short, only whether it is secret. */
static Source *
source_of(const char *text)
{
	static Source other;
	bool		again = is_last_long(text);
	Size		length = again ? LONG : strlen(text);
	Source	   *source = &sources[((uintptr_t) text / 16 + length) & (COMPARED - 1)];

	if (length > SHORT)
	{
		other.secret = again ? last_long.secret : long_is_secret(text, length);
		other.id = 0;
		other.rings = 0;
		return &other;
	}
	if (length != (Size) source->length || length == 0 ||
		memcmp(text, source->text, length) != 0)
	{
		source->length = (int) length;
		source->secret = secret_words_in(text, length);
		source->id = 0;
		source->rings = 0;
		memcpy(source->text, text, length);
	}
	return source;
}

/* May nothing of this source be shown? */
bool
text_is_secret(const char *text)
{
	return text != NULL && source_of(text)->secret;
}

/*
 * May a deferred trigger run this, which the client has not sent, after a hidden
 * statement of its transaction?  At the client's COMMIT it runs within no call; at
 * that of a procedure within one, where it cannot be told from what else runs there.
 */
static bool
may_be_deferred(const char *text)
{
	return (trace.secret_transaction || (trace.unseen && trace.depth == 0)) &&
		(debug_query_string == NULL ||	/* at Sync, or in a call of a function */
		 (text != debug_query_string && strcmp(text, debug_query_string) != 0));
}

/* Both halves of a product: each bit of the word changes half of the bits. */
static inline uint64
fold(uint64 word)
{
	unsigned __int128 product = (unsigned __int128) word * UINT64CONST(0x9E3779B97F4A7C15);

	return (uint64) product ^ (uint64) (product >> 64);
}

/* A hash of some bytes; what PostgreSQL has takes three times as long. */
uint64
text_hash(const char *text, Size length)
{
	uint64		hash = length + 1;
	uint64		word;

	for (; length >= sizeof(word); text += sizeof(word), length -= sizeof(word))
	{
		memcpy(&word, text, sizeof(word));
		hash = fold(hash ^ word);
	}
	word = 0;
	memcpy(&word, text, length);
	return fold(fold(hash ^ word) ^ UINT64CONST(0xC2B2AE3D27D4EB4F));
}

/* The hash of a part of a source, which mostly is the one that was requested before */
static uint64
hash_of(Source *source, int at, const char *text, int length, int identified)
{
	uint64		id;

	if (source->id != 0 && source->at == at && source->part == length &&
		source->identified == identified)
		return source->id;
	id = text_hash(text, identified) + (uint64) (length - identified);
	source->at = at;
	source->part = length;
	source->identified = identified;
	source->id = id = id != 0 ? id : 1;
	return id;
}

/* Returns its identifier in the trace, or 0. */
static uint64
write_text(uint64 id, const char *text, int length, int stored, int64 query_id, bool secret,
		   bool may_wait)
{
	TextRecord	record = {0};
	const TextPlace *before = secret || text_in_dictionary ? text_find(id) : NULL;
	bool		recorded = text_in_dictionary && !secret;

	if (recorded)
		record.text = fold(id ^ fold((uint64) query_id + (uint64) stored) ^
						   trace.slot->trace.role) | 1;
	else
		record.text = before ? before->shown :
			secret ? pg_prng_uint64(&pg_global_prng_state) | 1 : id;
	record.query_id = query_id;
	record.length = (uint32) length;
	record.stored = secret ? 0 : (uint32) stored;
	record.flags = (secret ? TEXT_SUPPRESSED : 0) | (!secret && stored < length ? TEXT_CUT : 0);
	if (recorded && before)
	{
		uint64		number = text_put_again(id, RECORD_TEXT, (NameRecord *) &record, sizeof(record),
											text, record.stored, may_wait);

		if (number != 0)
		{
			text_remember(record.text, number, record.text);
			return record.text;
		}
	}
	if (!recorded)
		text_remember(id, ring_head(), record.text);
	if (!record_write_ahead(RECORD_TEXT, trace.current, &record, sizeof(record), text,
							record.stored))
		return 0;
	if (recorded)
	{
		uint64		position = NEEDED_ONCE | (ring_head() - record.header.size);

		text_remember(id, position, record.text);
		text_remember(record.text, position, record.text);	/* for those who ask by that */
	}
	return record.text;
}

/* A request begins, or a Parse message has ended: the next sources are others, wherever they are. */
void
text_forget(void)
{
	last.source = NULL;
	last_long.text = NULL;
}

/* Is it the one that was looked up last, and does the ring still hold it? */
static bool
is_last(const char *source_text, int location, int length)
{
	return source_text == last.source && source_text == debug_query_string &&
		location == last.location && length == last.length &&
		last.message == GetCurrentStatementStartTimestamp() &&
		trace.secret_depth == INT_MAX && !trace.secret_transaction &&
		last.rings == text_rings && text_is_held(last.position);
}

/*
 * The identifier of a part of a source, which is written if it is not known.
 * "hide": it is secret, whatever its words are.  "query_id" becomes 0 if it is
 * secret and that of a utility statement, as it hashes what that says.
 */
static pg_attribute_always_inline uint64
part_of(const char *source_text, int location, int length, int64 *query_id, bool utility, bool hide,
		bool may_wait, bool *secret)
{
	Source	   *source;
	const char *text;
	TextPlace  *old;
	uint64		id;
	uint64		position;
	int			stored;
	int			asked;

	/* a reader of this role's trace may not see what is done with the rights of another */
	if (unlikely(GetUserId() != trace.slot->trace.role))
		trace.slot->trace.others = true;
	*secret = false;
	if (!hide && is_last(source_text, location, length))
		return last.id;
	last.source = NULL;
	source = source_of(source_text);
	*secret = hide || secrets_around() || source->secret ||
		(unlikely(trace.secret_transaction || trace.unseen) && may_be_deferred(source_text));
	secrets_enter(*secret);
	if (unlikely(*secret) && utility)
		*query_id = 0;
	if (likely(source->rings == text_rings && source->asked_location == location &&
			   source->asked_length == length) &&
		likely(!*secret) && text_is_held(source->position))
		return source->shown;
	source->rings = 0;
	asked = length;
	text = part(source_text, location, &length);
	stored = Min(length, MOST_OF_TEXT);
	stored = Min(stored, text_most());
	if (stored < length)
		stored = pg_mbcliplen(text, length, stored);
	id = hash_of(source, (int) (text - source_text), text, length,
				 Min(length, MOST_OF_TEXT));
	if (unlikely(*secret))
		id ^= SECRET_SEED;
	old = text_find(id);
	if (old == NULL || !text_still_held(old, may_wait))
	{
		uint64		hash = id;

		id = write_text(hash, text, length, stored, *query_id, *secret, may_wait);
		old = text_find(hash);
	}
	else
		id = old->shown;
	if (likely(!*secret && id != 0))
	{
		position = old->position;
		last.source = source_text;
		last.message = GetCurrentStatementStartTimestamp();
		last.location = location;
		last.length = asked;
		last.id = id;
		last.position = text_needed_once(position) ? position & ~NEEDED_ONCE : position;
		last.rings = text_rings;
		source->asked_location = location;
		source->asked_length = asked;
		source->shown = id;
		source->position = text_needed_once(position) ? NEEDED_ONCE : position;
		source->rings = text_rings;
	}
	return id;
}

/*
 * The identifier of a statement's text.  The text has "length" bytes from
 * "location" on, or with 0 goes to its end.  "secret" tells that nothing of the
 * statement is to be shown.
 */
uint64
text_of(const char *source_text, int location, int length, int64 *query_id, const Node *utility,
		bool *secret)
{
	*secret = secrets_around();
	if (source_text == NULL)
		return 0;
	return part_of(source_text, location, length, query_id, utility != NULL,
				   utility != NULL && secrets_in_statement(utility), true, secret);
}

/*
 * The same of a whole message, if it is not known what statements are in it.  A message
 * goes to the client meanwhile, maybe of an error: no lock may be waited for.
 */
uint64
text_of_message(const char *message, int64 *query_id, bool *secret)
{
	*secret = secrets_around();
	if (message == NULL)
		return 0;
	return part_of(message, -1, 0, query_id, true, secrets_in_message(message), false, secret);
}
