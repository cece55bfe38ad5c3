/*-------------------------------------------------------------------------
 * application.c
 *		Levels of sessions by the name of their application.
 *
 * Patterns are those of the shell, matched in the order given.  They take the
 * place of the cluster's own level: a level set for the session, its role or
 * its database goes before them.
 *-------------------------------------------------------------------------
 */
#include "application.h"

#include <ctype.h>
#include <fnmatch.h>

#include "miscadmin.h"

#include "setting_list.h"

typedef struct Pattern
{
	int			level;
	char		glob[NAMEDATALEN];	/* names of applications are cut at this length, too */
} Pattern;

typedef struct Patterns
{
	int			n;
	Pattern		pattern[FLEXIBLE_ARRAY_MEMBER];
} Patterns;

static const ApplicationLevels *its = NULL;
static void (*when_changed) (void) = NULL;
static const Patterns *patterns = NULL;
static bool changed = false;	/* the patterns, since they were last applied */
bool		application_watched = false;	/* there are some, or they have changed */
static char applied_to[NAMEDATALEN];	/* name of the application then */

/* The next character of a pattern; a backslash takes away the meaning of what follows. */
static inline const char *
after(const char *p)
{
	return p[0] == '\\' && p[1] != '\0' ? p + 2 : p + 1;
}

/* Has each "[" its "]"?  fnmatch() takes one without for a character like others. */
static bool
brackets_close(const char *p)
{
	while (*p != '\0')
	{
		if (*p != '[')
		{
			p = after(p);
			continue;
		}
		p++;
		if (*p == '!' || *p == '^')
			p++;
		/* the first is meant literally */
		if (*p == ']')
			p++;
		while (*p != '\0' && *p != ']')
		{
			const char *class_end = p[0] == '[' && p[1] == ':' ? strstr(p, ":]") : NULL;

			p = class_end ? class_end + 2 : after(p);
		}
		if (*p++ == '\0')
			return false;
	}
	return true;
}

/* "etl*=trace"; the level follows the last "=" */
static bool
parse_item(char *item, void *to)
{
	Pattern    *pattern = to;
	char	   *equals = strrchr(item, '=');
	const struct config_enum_entry *level;
	char	   *end;

	if (equals == NULL)
	{
		GUC_check_errdetail("\"%s\" has no level: write pattern=level, for example \"etl*=%s\".",
							item, its->example);
		return false;
	}
	for (end = equals; end > item && isspace((unsigned char) end[-1]); end--)
		;
	*end = '\0';
	for (equals++; isspace((unsigned char) *equals); equals++)
		;
	for (level = its->levels; level->name && pg_strcasecmp(level->name, equals) != 0; level++)
		;
	if (level->name == NULL)
	{
		GUC_check_errdetail("\"%s\" is no %s: levels are %s.",
							equals, its->kind, its->names);
		return false;
	}
	if (item[0] == '\0' || strlen(item) >= sizeof(pattern->glob))
	{
		GUC_check_errdetail("A pattern must have from 1 to %d characters.",
							(int) sizeof(pattern->glob) - 1);
		return false;
	}
	if (!brackets_close(item))
	{
		GUC_check_errdetail("\"%s\" has a \"[\" without its \"]\".", item);
		GUC_check_errhint("Write \"\\[\" for the character itself.");
		return false;
	}
	pattern->level = level->val;
	strlcpy(pattern->glob, item, sizeof(pattern->glob));
	return true;
}

static bool
check(char **newval, void **extra, GucSource source)
{
	return setting_list_check(*newval, extra, offsetof(Patterns, pattern), sizeof(Pattern),
							  parse_item, "pattern=level");
}

static void
assign(const char *newval, void *extra)
{
	patterns = extra;
	changed = application_watched = true;
	if (when_changed)
		when_changed();
}

void
application_define(const char *name, const char *about, const ApplicationLevels *levels,
				   void (*notify) (void))
{
	static char *text;

	its = levels;
	when_changed = notify;
	DefineCustomStringVariable(name, about,
							   "A list of pattern=level; the first pattern that matches counts. "
							   "A level set for session, role or database goes before it.",
							   &text, "",
							   PGC_SIGHUP, 0, check, assign, NULL);
}

/* What application_changed() does, if there is something to do */
bool
application_changed_since(void)
{
	const char *name = application_name ? application_name : "";

	if (!changed && strncmp(name, applied_to, sizeof(applied_to) - 1) == 0)
		return false;
	changed = false;
	application_watched = patterns->n > 0;
	strlcpy(applied_to, name, sizeof(applied_to));
	return true;
}

/* What application_follow() does, if there is something to do */
void
application_follow_change(void)
{
	if (application_changed_since())
		its->follow();
}

/* The level of a client session whose application's name matches a pattern */
bool
application_matches(int *level)
{
	if (patterns == NULL || application_name == NULL ||
		(MyBackendType != B_BACKEND && MyBackendType != B_WAL_SENDER))
		return false;
	for (int i = 0; i < patterns->n; i++)
	{
		if (fnmatch(patterns->pattern[i].glob, application_name, 0) == 0)
		{
			*level = patterns->pattern[i].level;
			return true;
		}
	}
	return false;
}

/* The level of a client session whose setting has a value from some source */
int
application_level(int setting, GucSource source)
{
	int			level;

	return source < PGC_S_GLOBAL && application_matches(&level) ? level : setting;
}
