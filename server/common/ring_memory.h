/*-------------------------------------------------------------------------
 * ring_memory.h
 *		How much dynamic shared memory the rings of all modules take together.
 *
 * Parallel queries of everybody need that memory as well, and fail if there is
 * none.  So rings share a budget, which is a small part of its volume, and leave
 * room on the volume: a ring is counted before it is made, and made smaller, or
 * not at all, if it does not fit.
 *
 * The counters are in the main shared memory segment, for all modules under one
 * name, so that the sum holds whichever of them a process has loaded.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_RING_MEMORY_H
#define PGTARE_RING_MEMORY_H

#include "postgres.h"

#include "storage/dsm.h"

/*
 * How long a ring can be read whose process has ended or is no longer traced: long
 * enough for whoever sees an incident to fetch it.  Rings go earlier if memory runs
 * short, so more time would cost nothing, and less would save nothing.
 */
#define KEEP_ENDED_S 300

#pragma GCC visibility push(hidden)

/* Called when the library is loaded; without the counters there is a warning, and no ring. */
extern void ring_memory_init(const char *module);

/* The module's setting of what all rings may take */
extern void ring_memory_define(const char *name, const char *about);

/* What a ring of this many bytes takes */
extern uint64 ring_memory_of(Size bytes);

/*
 * Count a ring that is about to be made.  Its records take the largest of "wanted",
 * a half, a quarter and so on, but at least "least", for which with a header there
 * is room.  If there is none, "make_way" gives up one that is kept, or returns
 * false: then an error says why there is no room.
 */
extern uint64 ring_memory_take(Size header, uint64 wanted, uint64 least, bool (*make_way) (void));

/* The same of a copy, which is only kept to be read */
extern void ring_memory_take_copy(uint64 bytes, bool (*make_way) (void));

/* What was taken last, for whoever made that, or failed to; then 0 */
extern uint64 ring_memory_taken(void);

/* A ring that was counted is gone, or was never made. */
extern void ring_memory_give_back(uint64 bytes);

/*
 * Nobody writes to a segment any more, and nobody ever wrote behind its first
 * "used" bytes: give back the memory behind them.  Returns what it takes now.
 */
extern uint64 ring_memory_shrink(dsm_segment *segment, Size used);

/* What all rings together may take that are only kept to be read; 0 while others need the memory */
extern uint64 ring_memory_for_kept(void);

/* A ring that is counted is to be kept.  False: those that are kept leave no room for it. */
extern bool ring_memory_keep(uint64 for_kept, uint64 bytes);

/* One that was kept is gone. */
extern void ring_memory_forget(uint64 bytes);

/* How much a module may take that sessions load, besides the rings, until the server restarts */
extern uint64 ring_memory_segment(void);

#pragma GCC visibility pop

#endif							/* PGTARE_RING_MEMORY_H */
