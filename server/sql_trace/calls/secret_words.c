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
 * Nothing is allocated here: an error may be under way.
 *-------------------------------------------------------------------------
 */
#include "../core/sqltrace.h"

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
	int			n;				/* words so far */
	char		last[3][LONGEST_WORD];	/* in turn; in lower case, cut */
	bool		commented;		/* has comments */
	bool		found;			/* a part that shows a secret */
} Words;

/*
 * Words with one of these in them, however long, show that a secret is near.
 * In lower case; by the first letter.
 */
static const char *const parts[] = {
	"access_key", "api_key", "apikey",
	"conninfo", "credential", "crypt",
	"gen_salt",
	"hmac",
	"passcode", "passphr", "passw", "private_key",
	"scram", "secret",
	"token",
	"uescape",					/* letters may be spelled in any way */
	NULL
};

/* The bytes of words in lower case; 0: of none.  Words that matter are ASCII. */
static unsigned char folded[256];

/* By first letter, the first of the parts; and how many */
static unsigned char first_part[256];
static unsigned char nparts[256];

static void
fill_tables(void)
{
	for (int c = 0; c < 128; c++)
	{
		if (c >= 'A' && c <= 'Z')
			folded[c] = (unsigned char) (c - 'A' + 'a');
		else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')
			folded[c] = (unsigned char) c;
	}
	for (int i = 0; parts[i] != NULL; i++)
	{
		unsigned char c = (unsigned char) parts[i][0];

		if (nparts[c]++ == 0)
			first_part[c] = (unsigned char) i;
	}
}

static inline unsigned char
fold(char c)
{
	return folded[(unsigned char) c];
}

static bool
begins_with(const Words *words, const char *part)
{
	const char *at = words->at;

	for (; *part != '\0'; part++, at++)
		if (at == words->end || fold(*at) != (unsigned char) *part)
			return false;
	return true;
}

static inline bool
part_begins(const Words *words, unsigned char c)
{
	for (int i = first_part[c], n = nparts[c]; n > 0; i++, n--)
		if (begins_with(words, parts[i]))
			return true;
	return false;
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

static const char *
next_word(Words *words)
{
	char	   *word;
	unsigned char c;
	int			n = 0;

	while (words->at < words->end && !fold(*words->at))
	{
		if (two_are(words, '-', '-') || two_are(words, '/', '*'))
		{
			if (words->comments != SEARCHED)
			{
				skip_comment(words);
				continue;
			}
		}
		words->at++;
	}
	if (words->at >= words->end)
		return NULL;
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

/* After "postgresql": an address.  After any other scheme: one that names a user. */
static bool
is_address(const Words *words, const char *scheme)
{
	const char *at = words->at;

	if (words->end - at < 3 || strncmp(at, "://", 3) != 0)
		return false;
	if (strcmp(scheme, "postgres") == 0 || strcmp(scheme, "postgresql") == 0)
		return true;
	for (at += 3; at < words->end && strchr("/?#'\" \t\r\n", *at) == NULL; at++)
		if (*at == '@')
			return true;
	return false;
}

static bool
shows_secret(const Words *words, const char *word)
{
	static const char *const verbs[] = {"create", "alter", "import", NULL};
	static const char *const ways[] = {"from", "to", NULL};
	static const char *const objects[] = {
		"role", "user", "group", "subscription", "server", "foreign", NULL
	};

	if (words->found || (words->at < words->end && *words->at == ':' && is_address(words, word)))
		return true;
	switch (word[0])
	{
		case 'd':
			return strncmp(word, "dblink", 6) == 0;
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

/* The number that these digits spell, or -1 */
static int
number(const char *at, const char *end, int digits, int base)
{
	int			value = 0;

	if (end - at < digits)
		return -1;
	for (; digits > 0; digits--, at++)
	{
		int			digit = *at >= '0' && *at <= '9' ? *at - '0' :
			*at >= 'a' && *at <= 'f' ? *at - 'a' + 10 :
			*at >= 'A' && *at <= 'F' ? *at - 'A' + 10 : base;

		if (digit >= base)
			return -1;
		value = value * base + digit;
		if (value > 0xFFFF)
			return -1;
	}
	return value;
}

/*
 * The character that a backslash and what follows it spell in E'', U&'' or JSON;
 * "after" is set behind it.  What is not ASCII becomes a blank, like \n.
 */
static char
unescape(const char *at, const char *end, const char **after)
{
	static const struct
	{
		char		letter;
		int			digits;
		int			base;
	}			forms[] = {
		{'u', 4, 16}, {'U', 8, 16}, {'+', 6, 16}, {'x', 2, 16}, {'x', 1, 16},
		{0, 4, 16}, {0, 3, 8}, {0, 2, 8}
	};

	at++;
	for (int i = 0; i < (int) lengthof(forms); i++)
	{
		const char *digits = at + (forms[i].letter != 0);
		int			value;

		if (forms[i].letter != 0 && (at == end || *at != forms[i].letter))
			continue;
		value = number(digits, end, forms[i].digits, forms[i].base);
		if (value > 0 && value < 128)
		{
			*after = digits + forms[i].digits;
			return (char) value;
		}
	}
	*after = Min(at + 1, end);
	return at < end && strchr("bfnrt", *at) == NULL ? *at : ' ';
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
			window[n++] = unescape(text, end, &text);
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
words_show_secret(const char *text, Size length)
{
	const char *end = text + length;
	const char *backslash;

	if (folded['a'] == 0)
		fill_tables();
	if (search_all_ways(text, end))
		return true;
	backslash = memchr(text, '\\', length);
	if (backslash == NULL)
		return false;
	return search_unescaped(backslash - text > OVERLAP ? backslash - OVERLAP : text, end);
}
