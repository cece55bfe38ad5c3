/*-------------------------------------------------------------------------
 * module.h
 *		What each part does when the library is loaded: defines its settings, and
 *		installs its hooks.  module.c calls all of these, and nothing else.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_MODULE_H
#define SQL_TRACE_MODULE_H

#include "postgres.h"

#pragma GCC visibility push(hidden)

/* of settings alone */
extern void binds_init(void);
extern void for_finding_init(void);
extern void keeper_init(void);
extern void kept_init(void);
extern void level_init(void);
extern void recorder_init(void);
extern void ring_init(void);
extern void secrets_init(void);
extern void timeline_init(void);
extern void trigger_init(void);

/* of hooks, in this order: the later ones run outside */
extern void analyse_init(void);
extern void execute_init(void);
extern void utility_init(void);
extern void commit_init(void);
extern void messages_init(void);
extern void row_sources_init(void);

#pragma GCC visibility pop

#endif							/* SQL_TRACE_MODULE_H */
