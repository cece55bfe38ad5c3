/*-------------------------------------------------------------------------
 * lately.h
 *		Was something only so short a time ago?
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_LATELY_H
#define PGTARE_LATELY_H

#include "postgres.h"

#include "utils/timestamp.h"

/*
 * Was this, if it was at all, less than so many microseconds ago?  A time that lies
 * farther ahead is of a clock that was set back since, so it was not.  One that lies
 * a little ahead is of a process that read the clock after us.
 */
static inline bool
lately(TimestampTz at, TimestampTz now, int64 us)
{
	return at != 0 && now - at < us && at - now < us;
}

#endif							/* PGTARE_LATELY_H */
