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

#include <ctype.h>

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
	char		word[LONGEST_WORD]; /* in lower case, cut */
	char		before[LONGEST_WORD];
	char		before_that[LONGEST_WORD];
	bool		within_comments;	/* words of comments count */
	bool		comments;		/* have been passed over */
	bool		told;			/* by a part of a word */
} Words;

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

static inline bool
in_word(char c)
{
	return isalnum((unsigned char) c) || c == '_' || IS_HIGHBIT_SET(c);
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
tells_secret_here(const Words *words)
{
	char		c = *words->at | 0x20;

	return (c == 'p' && (begins_with(words, "passw") || begins_with(words, "passphr"))) ||
		(c == 'c' && begins_with(words, "conninfo"));
}

static bool
next_word(Words *words)
{
	int			n = 0;

	while (words->at < words->end && !in_word(*words->at))
	{
		if (!words->within_comments && words->at + 1 < words->end &&
			((words->at[0] == '-' && words->at[1] == '-') ||
			 (words->at[0] == '/' && words->at[1] == '*')))
			skip_comment(words);
		else
			words->at++;
	}
	if (words->at >= words->end)
		return false;
	memcpy(words->before_that, words->before, LONGEST_WORD);
	memcpy(words->before, words->word, LONGEST_WORD);
	for (; words->at < words->end && in_word(*words->at); words->at++)
	{
		words->told |= tells_secret_here(words);
		if (n < LONGEST_WORD - 1)
			words->word[n++] = (char) tolower((unsigned char) *words->at);
	}
	words->word[n] = '\0';
	return true;
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
tells_secret(const Words *words)
{
	static const char *const verbs[] = {"create", "alter", NULL};
	static const char *const objects[] = {"role", "user", "group", "subscription", "server", NULL};
	const char *word = words->word;

	if (words->told || strncmp(word, "dblink", 6) == 0)
		return true;
	if (strcmp(word, "mapping") == 0 && strcmp(words->before, "user") == 0)
		return true;
	if (is_one_of(word, objects) &&
		(is_one_of(words->before, verbs) || is_one_of(words->before_that, verbs)))
		return true;
	return (strcmp(word, "postgres") == 0 || strcmp(word, "postgresql") == 0) &&
		words->end - words->at >= 3 && strncmp(words->at, "://", 3) == 0;
}

static bool
any_tells_secret(Words *words)
{
	while (next_word(words))
		if (tells_secret(words))
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
