/*-------------------------------------------------------------------------
 * secrets.c
 *		What a trace must not show: passwords, connection strings, values of
 *		sensitive roles.
 *
 * A statement is known by its parse tree, where there is one, and by its words:
 * it may be in a function's body, or have failed to parse.  The words are taken
 * without regard to quotes, so that too much is hidden rather than too little.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

#include "miscadmin.h"
#include "access/xact.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

/* What is known of the role under whose rights we run */
static struct
{
	bool		known;
	Oid			user;
	Oid			session;
	bool		sensitive;
} role;

/* Does this kind of statement carry secrets? */
bool
secrets_in_statement(const Node *utility)
{
	switch (nodeTag(utility))
	{
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_AlterRoleSetStmt:
		case T_CreateUserMappingStmt:
		case T_AlterUserMappingStmt:
		case T_CreateForeignServerStmt:
		case T_AlterForeignServerStmt:
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
			return true;
		case T_AlterSystemStmt:
		case T_VariableSetStmt:
			{
				const VariableSetStmt *set = IsA(utility, AlterSystemStmt) ?
					((const AlterSystemStmt *) utility)->setstmt :
					(const VariableSetStmt *) utility;

				return set->name != NULL && (strcmp(set->name, "primary_conninfo") == 0 ||
											 strcmp(set->name, "ssl_passphrase_command") == 0);
			}
		default:
			return false;
	}
}

#define LONGEST_WORD 32

typedef struct Words
{
	const char *at;
	const char *end;
	int			n;				/* words so far */
	char		last[3][LONGEST_WORD];	/* in turn; in lower case, cut */
	bool		within_comments;	/* words of comments count */
	bool		comments;		/* have been passed over */
	bool		told;			/* by a part of a word */
} Words;

/* The bytes of words in lower case; 0: of none.  Words that matter are ASCII. */
static unsigned char folded[256];

static void
fill_folded(void)
{
	for (int c = 0; c < 256; c++)
	{
		if (c >= 'A' && c <= 'Z')
			folded[c] = (unsigned char) (c - 'A' + 'a');
		else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c >= 128)
			folded[c] = (unsigned char) c;
	}
}

static inline unsigned char
fold(char c)
{
	return folded[(unsigned char) c];
}

static void
skip_comment(Words *words)
{
	words->comments = true;
	if (words->at[0] == '-')
	{
		while (words->at < words->end && *words->at != '\n')
			words->at++;
		return;
	}
	for (words->at += 2; words->at < words->end; words->at++)
	{
		if (words->at[0] == '*' && words->at + 1 < words->end && words->at[1] == '/')
		{
			words->at += 2;
			return;
		}
	}
}

static inline const char *
word_before(const Words *words, int back)
{
	return words->last[(words->n + 3 - back) % 3];
}

static bool
begins_with(const Words *words, const char *part)
{
	size_t		length = strlen(part);

	return (size_t) (words->end - words->at) >= length &&
		pg_strncasecmp(words->at, part, length) == 0;
}

/* "mypassword" as well, however long the word is */
static inline bool
tells_secret_here(const Words *words, unsigned char c)
{
	unsigned char next;

	if (likely(c != 'p' && c != 'c') || words->at + 1 == words->end)
		return false;
	next = fold(words->at[1]);
	if (c == 'p')
		return next == 'a' && (begins_with(words, "passw") || begins_with(words, "passphr"));
	return next == 'o' && begins_with(words, "conninfo");
}

static const char *
next_word(Words *words)
{
	char	   *word;
	unsigned char c;
	int			n = 0;

	while (words->at < words->end && !fold(*words->at))
	{
		if (!words->within_comments && words->at + 1 < words->end &&
			((words->at[0] == '-' && words->at[1] == '-') ||
			 (words->at[0] == '/' && words->at[1] == '*')))
			skip_comment(words);
		else
			words->at++;
	}
	if (words->at >= words->end)
		return NULL;
	word = words->last[++words->n % 3];
	for (; words->at < words->end && (c = fold(*words->at)) != 0; words->at++)
	{
		words->told |= tells_secret_here(words, c);
		if (n < LONGEST_WORD - 1)
			word[n++] = (char) c;
	}
	word[n] = '\0';
	return word;
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
tells_secret(const Words *words, const char *word)
{
	static const char *const verbs[] = {"create", "alter", NULL};
	static const char *const objects[] = {"role", "user", "group", "subscription", "server", NULL};

	if (words->told)
		return true;
	switch (word[0])
	{
		case 'd':
			return strncmp(word, "dblink", 6) == 0;
		case 'm':
			return strcmp(word, "mapping") == 0 &&
				strcmp(word_before(words, 1), "user") == 0;
		case 'p':
			return (strcmp(word, "postgres") == 0 || strcmp(word, "postgresql") == 0) &&
				words->end - words->at >= 3 && strncmp(words->at, "://", 3) == 0;
		case 'r':
		case 'u':
		case 'g':
		case 's':
			return is_one_of(word, objects) &&
				(is_one_of(word_before(words, 1), verbs) ||
				 is_one_of(word_before(words, 2), verbs));
		default:
			return false;
	}
}

static bool
any_tells_secret(Words *words)
{
	const char *word;

	while ((word = next_word(words)) != NULL)
		if (tells_secret(words, word))
			return true;
	return false;
}

/*
 * Do its words tell that a text may hold secrets?  A comment may stand between
 * two of them; it may hold secrets itself, or be none but stand in quotes.
 */
bool
secrets_in_text(const char *text, Size length)
{
	Words		without = {text, text + length};
	Words		with = {text, text + length,.within_comments = true};

	if (folded['a'] == 0)
		fill_folded();
	return any_tells_secret(&without) || (without.comments && any_tells_secret(&with));
}

void
secrets_roles_changed(void)
{
	role.known = false;
}

static void
role_invalidated(Datum arg, int cache, uint32 hash)
{
	role.known = false;
}

/* Is a role, or one that it is a member of, among those of the setting? */
static bool
is_sensitive(Oid user)
{
	char	   *copy = pstrdup(trace_sensitive_roles);
	List	   *names = NIL;
	ListCell   *cell;
	bool		found = false;

	/* who cannot be told apart is taken for sensitive */
	if (!SplitIdentifierString(copy, ',', &names))
		found = true;
	foreach(cell, names)
	{
		Oid			listed = get_role_oid((char *) lfirst(cell), true);

		if (OidIsValid(listed) && is_member_of_role_nosuper(user, listed))
			found = true;
	}
	list_free(names);
	pfree(copy);
	return found;
}

/* Is it the role whose rights count now that is known? */
static bool
is_current(void)
{
	return role.known && role.user == GetUserId() && role.session == GetSessionUserId();
}

/* Does this session, or what runs in it now, have the rights of a sensitive role? */
bool
secrets_of_role(void)
{
	if (trace_sensitive_roles == NULL || trace_sensitive_roles[0] == '\0')
		return false;
	if (!is_current())
	{
		if (!IsTransactionState())
			return true;
		role.known = true;
		role.user = GetUserId();
		role.session = GetSessionUserId();
		role.sensitive = true;	/* should the look into catalogs fail */
		role.sensitive = is_sensitive(role.user) || is_sensitive(role.session);
	}
	return role.sensitive;
}

/* The same, where no catalog can be read: who is not known is taken for sensitive. */
bool
secrets_of_role_known(void)
{
	if (trace_sensitive_roles == NULL || trace_sensitive_roles[0] == '\0')
		return false;
	return !is_current() || role.sensitive;
}

/* Have changes of roles told; in a process of its own, once. */
void
secrets_watch_roles(void)
{
	static bool watched = false;

	if (watched)
		return;
	watched = true;
	CacheRegisterSyscacheCallback(AUTHOID, role_invalidated, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, role_invalidated, (Datum) 0);
}
