/*-------------------------------------------------------------------------
 * secret_words.c
 *		Does a text hold secrets, as far as its words show?
 *
 * A text may be of a function's body, of a statement that does not parse, or part
 * of an error's message, so it is not parsed.  Its words are taken without regard
 * to quotes: too much is hidden rather than too little.  It is searched several
 * times, since a comment may separate two words, may hold a secret itself, or may
 * be none but lie within quotes; and a backslash may spell a letter.
 *
 * Most texts show no secret, and a look at three letters in a row, sixteen places
 * at a time, tells so.
 *
 * Nothing is allocated here: an error may be under way.
 *-------------------------------------------------------------------------
 */
#include "secrets.h"

#if defined(__x86_64__)
#include <tmmintrin.h>
#endif

#define LONGEST_WORD 32

typedef enum Comments
{
	NESTED_SKIPPED,				/* as PostgreSQL does */
	FLAT_SKIPPED,				/* to the first end */
	SEARCHED					/* as if they were none */
} Comments;

typedef struct Words
{
	const char *at;
	const char *end;
	Comments	comments;
	const char *word;			/* begin of the latest */
	const char *no_user;		/* before this, no address names a user */
	int			n;				/* words so far */
	char		last[3][LONGEST_WORD];	/* in turn; in lower case, cut */
	bool		altered;		/* one was ALTER or CREATE */
	bool		commented;		/* has comments */
	bool		found;			/* a part that shows a secret */
} Words;

/* The bytes of words in lower case; 0: of none.  Words that matter are ASCII. */
static unsigned char folded[256];

/*
 * By first letter, the first of the parts; and how many.  Words with one of them in them,
 * however long, show that a secret is near.  An underscore is also a hyphen, or blanks.
 */
static unsigned char first_part[256];
static unsigned char nparts[256];

static SecretSigns signs;
static bool signs_known = false;	/* they can be looked for */

#if defined(__x86_64__)
/* The groups that have the letters of a place there, of sixteen letters */
#define GROUPS_AT(place, letters) \
	_mm_and_si128(_mm_shuffle_epi8(low##place, _mm_and_si128(letters, half)), \
				  _mm_shuffle_epi8(high##place, _mm_and_si128(_mm_srli_epi16(letters, 4), half)))

#define LETTERS(from) \
	_mm_or_si128(_mm_loadu_si128((const __m128i *) (from)), fold)

#define TABLE(of) _mm_loadu_si128((const __m128i *) (of))

/* Sixteen places at a time; reads two bytes behind them. */
static __attribute__((target("ssse3"))) bool
signs_in(const char *text, const char *end)
{
	const __m128i half = _mm_set1_epi8(15);
	const __m128i fold = _mm_set1_epi8(SIGN_FOLD);
	const __m128i low0 = TABLE(signs.low[0]);
	const __m128i low1 = TABLE(signs.low[1]);
	const __m128i low2 = TABLE(signs.low[2]);
	const __m128i high0 = TABLE(signs.high[0]);
	const __m128i high1 = TABLE(signs.high[1]);
	const __m128i high2 = TABLE(signs.high[2]);
	__m128i		found = _mm_setzero_si128();
	char		rest[32] = {0};

	for (; end - text >= 18; text += 16)
		found = _mm_or_si128(found, _mm_and_si128(GROUPS_AT(0, LETTERS(text)),
												  _mm_and_si128(GROUPS_AT(1, LETTERS(text + 1)),
																GROUPS_AT(2, LETTERS(text + 2)))));
	memcpy(rest, text, end - text);
	found = _mm_or_si128(found, _mm_and_si128(GROUPS_AT(0, LETTERS(rest)),
											  _mm_and_si128(GROUPS_AT(1, LETTERS(rest + 1)),
															GROUPS_AT(2, LETTERS(rest + 2)))));
	return _mm_movemask_epi8(_mm_cmpeq_epi8(found, _mm_setzero_si128())) != 0xFFFF;
}
#else
static bool
signs_in(const char *text, const char *end)
{
	return true;
}
#endif

static void
fill_tables(void)
{
	secret_signs_fill(&signs);
#if defined(__x86_64__)
	signs_known = __builtin_cpu_supports("ssse3") != 0;
#endif
	for (int c = 0; c < 128; c++)
	{
		if (c >= 'A' && c <= 'Z')
			folded[c] = (unsigned char) (c - 'A' + 'a');
		else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')
			folded[c] = (unsigned char) c;
	}
	for (int i = 0; i < secret_nparts; i++)
	{
		unsigned char c = (unsigned char) secret_signs[i].word[0];

		if (nparts[c]++ == 0)
			first_part[c] = (unsigned char) i;
	}
}

static inline unsigned char
fold(char c)
{
	return folded[(unsigned char) c];
}

static inline bool
is_blank(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool
begins_with(const Words *words, const char *part)
{
	const char *at = words->at;

	for (; *part != '\0'; part++, at++)
	{
		if (at == words->end ||
			(fold(*at) != (unsigned char) *part &&
			 (*part != '_' || (*at != '-' && !is_blank(*at)))))
			return false;
		if (is_blank(*at))
			while (at + 1 < words->end && is_blank(at[1]))
				at++;
	}
	return true;
}

/* Is this behind a word's beginning that makes an English word of it? */
static bool
is_english(const Words *words)
{
	static const char *const begins[] = {
		"by", "com", "encom", "over", "sur", "tres", "under", NULL
	};

	for (int i = 0; begins[i] != NULL; i++)
	{
		int			length = (int) strlen(begins[i]);
		const char *at = words->at - length;

		/* the whole of the word, or of its last part: use_bypass */
		if (at >= words->word && pg_strncasecmp(at, begins[i], length) == 0 &&
			(at == words->word || fold(at[-1]) < 'a'))
			return true;
	}
	return false;
}

/* The end of a word, maybe with a number: pass, db_pass, sshpass and PASS2, no bypass. */
static bool
is_pass(const Words *words)
{
	const char *at = words->at;

	if (!begins_with(words, "pass") || is_english(words))
		return false;
	for (at += strlen("pass"); at < words->end && *at >= '0' && *at <= '9'; at++)
		;
	return at == words->end || !fold(*at);
}

static inline bool
part_begins(const Words *words, unsigned char c)
{
	for (int i = first_part[c], n = nparts[c]; n > 0; i++, n--)
		if (begins_with(words, secret_signs[i].word))
			return true;
	return c == 'p' && is_pass(words);
}

static inline bool
two_are(const Words *words, char first, char second)
{
	return words->at[0] == first && words->at + 1 < words->end && words->at[1] == second;
}

static void
skip_comment(Words *words)
{
	int			level = 0;

	words->commented = true;
	if (words->at[0] == '-')
	{
		while (words->at < words->end && *words->at != '\n' && *words->at != '\r')
			words->at++;
		return;
	}
	while (words->at < words->end)
	{
		if (two_are(words, '/', '*'))
		{
			if (words->comments == NESTED_SKIPPED || level == 0)
				level++;
			words->at += 2;
		}
		else if (two_are(words, '*', '/'))
		{
			words->at += 2;
			if (--level == 0)
				return;
		}
		else
			words->at++;
	}
}

/* Go on by a character, or by a comment. */
static inline void
skip_one(Words *words)
{
	if (words->comments != SEARCHED && (two_are(words, '-', '-') || two_are(words, '/', '*')))
		skip_comment(words);
	else
		words->at++;
}

/* What is behind a word, but for blanks, quotes and comments */
static char
mark_behind(Words words)
{
	while (words.at < words.end && (strchr(" \t\r\n\f\v\"'\\", *words.at) != NULL ||
									(words.comments != SEARCHED &&
									 (two_are(&words, '-', '-') || two_are(&words, '/', '*')))))
		skip_one(&words);
	return words.at < words.end ? *words.at : '\0';
}

static const char *
next_word(Words *words)
{
	char	   *word;
	unsigned char c;
	int			n = 0;

	while (words->at < words->end && !fold(*words->at))
		skip_one(words);
	if (words->at >= words->end)
		return NULL;
	words->word = words->at;
	word = words->last[++words->n % 3];
	for (; words->at < words->end && (c = fold(*words->at)) != 0; words->at++)
	{
		if (unlikely(nparts[c] > 0) && part_begins(words, c))
			words->found = true;
		if (n < LONGEST_WORD - 1)
			word[n++] = (char) c;
	}
	word[n] = '\0';
	return word;
}

static inline const char *
word_before(const Words *words, int back)
{
	return words->last[(words->n + 3 - back) % 3];
}

static bool
is_one_of(const char *word, const char *const *list)
{
	for (; *list; list++)
		if (strcmp(word, *list) == 0)
			return true;
	return false;
}

static bool
follows_one_of(const Words *words, const char *const *list)
{
	return is_one_of(word_before(words, 1), list) || is_one_of(word_before(words, 2), list);
}

/*
 * After "postgresql": an address.  After any other scheme: one that names a user.  A
 * password may hold any sign, and digits behind a colon may be its beginning.
 */
static bool
is_address(Words *words, const char *scheme)
{
	const char *at = words->at;
	bool		password = false;

	if (words->end - at < 3 || strncmp(at, "://", 3) != 0)
		return false;
	if (strcmp(scheme, "postgres") == 0 || strcmp(scheme, "postgresql") == 0)
		return true;
	if (at < words->no_user)
		return false;
	for (at += 3; at < words->end && strchr("'\" \t\r\n", *at) == NULL; at++)
	{
		if (*at == '@')
			return true;
		if (!password && strchr("/?#", *at) != NULL)
			return false;
		password |= *at == ':';
	}
	words->no_user = at;
	return false;
}

static bool
shows_secret(Words *words, const char *word)
{
	static const char *const verbs[] = {"create", "alter", "import", NULL};
	static const char *const ways[] = {"from", "to", NULL};
	static const char *const objects[] = {
		"role", "user", "group", "subscription", "server", "foreign", NULL
	};
	static const char *const schemes[] = {"basic", "bearer", NULL};

	if (words->found || (words->at < words->end && *words->at == ':' && is_address(words, word)))
		return true;
	switch (word[0])
	{
		case 'a':
			words->altered |= strcmp(word, "alter") == 0;
			return strcmp(word, "authorization") == 0 && mark_behind(*words) == ':';
		case 'b':
			return is_one_of(word, schemes) && strcmp(word_before(words, 1), "authorization") == 0;
		case 'c':
			words->altered |= strcmp(word, "create") == 0;
			return false;
		case 'd':
			return strncmp(word, "dblink", 6) == 0 ||
				(strcmp(word, "digest") == 0 && mark_behind(*words) == '(');
		case 'o':				/* of foreign tables, which need not be called so */
			return words->altered && strcmp(word, "options") == 0 && mark_behind(*words) == '(';
		case 'm':
			return strcmp(word, "mapping") == 0 &&
				strcmp(word_before(words, 1), "user") == 0;
		case 'p':				/* COPY */
			return strcmp(word, "program") == 0 && is_one_of(word_before(words, 1), ways);
		case 'f':
		case 'g':
		case 'r':
		case 's':
		case 'u':
			return is_one_of(word, objects) && follows_one_of(words, verbs);
		default:
			return false;
	}
}

/* One search; "commented" is set if there were comments. */
static bool
search(const char *text, const char *end, Comments comments, bool *commented)
{
	Words		words = {text, end, comments};
	const char *word;

	while ((word = next_word(&words)) != NULL)
		if (shows_secret(&words, word))
			return true;
	*commented |= words.commented;
	return false;
}

static bool
search_all_ways(const char *text, const char *end)
{
	bool		commented = false;

	if (search(text, end, NESTED_SKIPPED, &commented))
		return true;
	return commented && (search(text, end, FLAT_SKIPPED, &commented) ||
						 search(text, end, SEARCHED, &commented));
}

#define WINDOW 4096
#define OVERLAP 512				/* no two words that matter are further apart */

/* The same with the letters that backslashes spell, a window at a time. */
static bool
search_unescaped(const char *text, const char *end)
{
	static char window[WINDOW];
	int			n = 0;

	while (text < end)
	{
		if (*text == '\\')
			window[n++] = secret_unescape(text, end, &text);
		else
			window[n++] = *text++;
		if (n == WINDOW)
		{
			if (search_all_ways(window, window + n))
				return true;
			memmove(window, window + n - OVERLAP, OVERLAP);
			n = OVERLAP;
		}
	}
	return search_all_ways(window, window + n);
}

/* Do the words of a text show that it may hold secrets? */
bool
secret_words_in(const char *text, Size length)
{
	const char *end = text + length;
	const char *backslash;

	if (unlikely(folded['a'] == 0))
		fill_tables();
	if (likely(signs_known) && likely(!signs_in(text, end)))
		return false;
	if (search_all_ways(text, end))
		return true;
	backslash = memchr(text, '\\', length);
	if (backslash == NULL)
		return false;
	return search_unescaped(backslash - text > OVERLAP ? backslash - OVERLAP : text, end);
}
