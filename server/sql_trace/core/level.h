/*-------------------------------------------------------------------------
 * level.h
 *		Whether, and at which level, this session is traced.
 *
 * What another session asked for counts until our own setting is changed; then
 * a level set for the session, its role or its database; then the pattern that
 * its application's name matches; then the configuration file.  If none of these
 * traces the session, the recorder may.
 *
 * All of it is looked at as a request begins and when it has been answered; a look
 * that leaves nothing to be done is not repeated until one of a few things differs.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_LEVEL_H
#define SQL_TRACE_LEVEL_H

#include "postgres.h"

struct Slot;

#define LEVEL_BINDS(level) (((level) & 4) != 0)
#define LEVEL_WAITS(level) (((level) & 8) != 0)

#pragma GCC visibility push(hidden)

extern double level_statement_rate; /* setting: share of requests that are traced */
extern bool level_has_query_ids;	/* setting: some statements are traced wherever they run */
extern void level_begin(struct Slot *slot);
extern void level_update(bool can_open);
extern void level_answered(void);
extern void level_match(int64 query_id);
extern bool level_is_valid(int level);
extern void level_ring_given_up(void);
extern void level_ring_lost(void);
extern void level_waits_lost(void);
extern void level_setting_reported(void);

#pragma GCC visibility pop

#endif							/* SQL_TRACE_LEVEL_H */
