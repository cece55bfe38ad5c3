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
} ApplicationLevels;

/* defined by the module */
extern const ApplicationLevels application_levels;

extern bool application_check(char **newval, void **extra, GucSource source);
extern void application_assign(const char *newval, void *extra);
extern bool application_changed(void);
extern int	application_level(int setting, GucSource source);
extern bool application_matches(int *level);

#pragma GCC visibility pop

#endif							/* PGTARE_APPLICATION_H */
