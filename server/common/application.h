/*-------------------------------------------------------------------------
 * application.h
 *		A setting that gives sessions a level by the name of their application.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_APPLICATION_H
#define PGTARE_APPLICATION_H

#include "postgres.h"

#include "utils/guc.h"

#pragma GCC visibility push(hidden)

/* What a module that has such a setting says of its levels */
typedef struct ApplicationLevels
{
	const struct config_enum_entry *levels;
	const char *kind;			/* "level of capture" */
	const char *names;			/* "off, stats and trace" */
	const char *example;		/* "trace" */
	void		(*follow) (void);	/* for application_follow(), or NULL */
} ApplicationLevels;

/* Define it, when the library is loaded; "changed" is called when it has another value, or NULL. */
extern void application_define(const char *name, const char *about,
							   const ApplicationLevels *levels, void (*changed) (void));
extern bool application_changed_since(void);
extern void application_follow_change(void);
extern int	application_level(int setting, GucSource source);
extern bool application_matches(int *level);

extern bool application_watched;

/* Have patterns to be applied anew, as the name or they have changed? */
static inline bool
application_changed(void)
{
	return unlikely(application_watched) && application_changed_since();
}

/* Have them applied anew if so. */
static inline void
application_follow(void)
{
	if (unlikely(application_watched))
		application_follow_change();
}

#pragma GCC visibility pop

#endif							/* PGTARE_APPLICATION_H */
