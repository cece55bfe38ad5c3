/*-------------------------------------------------------------------------
 * secrets.h
 *		What a trace must not show: passwords, connection strings, values of
 *		sensitive roles.
 *
 * A statement is known by its parse tree, if there is one, and by the words of
 * the source that it is part of (secret_words.c).  What runs within such a statement is
 * not shown either, nor is the message of any error after it in the request.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_SECRETS_H
#define SQL_TRACE_SECRETS_H

#include "../core/trace.h"

#include <limits.h>

#include "nodes/nodes.h"

/* Upper and lower case are the same, and some characters that matter to nobody. */
#define SIGN_FOLD 0x20

/* A word, where three letters of it are looked for, and in which group; that of backslashes is 7 */
typedef struct SecretSign
{
	const char *word;
	int			at;
	int			group;
} SecretSign;

/* By place and half of a byte: the groups of signs that have such a letter there */
typedef struct SecretSigns
{
	unsigned char low[3][16];
	unsigned char high[3][16];
} SecretSigns;

#pragma GCC visibility push(hidden)

/* secret_letters.c */
extern const SecretSign secret_signs[];
extern const int secret_nparts; /* of them, that are parts of words */
extern void secret_signs_fill(SecretSigns *to);
extern char secret_unescape(const char *at, const char *end, const char **after);

/* secret_words.c */
extern bool secret_words_in(const char *text, Size length);

/* secrets.c */
extern bool secrets_in_statement(const Node *utility);
extern bool secrets_in_message(const char *message);
extern bool secrets_of_role(void);
extern bool secrets_of_role_known(void);
extern void secrets_watch_roles(void);
extern void secrets_watch_errors(void);
extern const char *secrets_application(void);

/* Does what begins now run within a secret statement? */
static inline bool
secrets_around(void)
{
	return unlikely(trace.depth > trace.secret_depth);
}

/*
 * A statement begins, or goes on, at the depth under way: a secret one hides what
 * runs deeper, and any other one shows that a secret one at its depth is over.
 */
static inline void
secrets_enter(bool secret)
{
	if (unlikely(secret))
		trace.secret_met = trace.secret_transaction = true;
	if (likely(trace.depth <= trace.secret_depth))
		trace.secret_depth = secret ? trace.depth : INT_MAX;
}

/* What runs deeper than this is hidden, until something at that depth begins. */
static inline void
secrets_hide(int depth)
{
	trace.secret_met = trace.secret_transaction = true;
	trace.secret_depth = Min(trace.secret_depth, depth);
}

#pragma GCC visibility pop

#endif							/* SQL_TRACE_SECRETS_H */
