/*-------------------------------------------------------------------------
 * guarded.h
 *		Doing what can fail where the server expects nothing to.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_GUARDED_H
#define PGTARE_GUARDED_H

#include "postgres.h"

#pragma GCC visibility push(hidden)

/*
 * Do work that needs memory, in the midst of whatever a process does but while
 * it holds nothing and reports nothing: to flush an error would take away the
 * memory of the report.  An error is caught, and "failed" gets its message; if that
 * is NULL, the log has it behind "name".
 * Between requests it would make the server send another ReadyForQuery, and so
 * on without end.
 *
 * Returns false if it failed, and true if it was done or this is no time for it.
 */
extern bool guarded_run(const char *name, void (*work) (void *argument),
						void (*failed) (void *argument, const char *cause), void *argument);

#pragma GCC visibility pop

#endif							/* PGTARE_GUARDED_H */
