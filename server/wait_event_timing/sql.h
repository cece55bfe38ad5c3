/*-------------------------------------------------------------------------
 * sql.h
 *		What the functions for SQL share.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_H
#define SQL_H

#include "../common/sql_rows.h"
#include "waits.h"

#define MS(ns) Float8GetDatum((double) (ns) / 1e6)

#pragma GCC visibility push(hidden)

extern Shared *sql_shared(void);
extern bool sql_is_live(uint32 number, int pid);
extern const char *sql_backend_type(int backend_type);
extern const char *sql_event_type(uint32 event);
extern const char *sql_event_name(uint32 event);
extern void sql_put_event(Datum *values, uint32 event);
extern void sql_put_counters(Datum *values, const EventStats *stats);
extern void sql_put_ns(Datum *values, const EventStats *stats);
extern void sql_skipped(Shared *shared, uint64 n);

#pragma GCC visibility pop

#endif							/* SQL_H */
