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

/* Of a module's setting: a share of the volume */
#define RING_MEMORY_SHARE (-1)

/*
 * How long a ring can be read whose process has ended or is no longer traced: long
 * enough for whoever sees an incident to fetch it.  Rings go earlier if memory runs
 * short, so more time would cost nothing, and less would save nothing.
 */
#define KEEP_ENDED_S 300

#pragma GCC visibility push(hidden)

/* Called when the library is loaded; without the counters there is a warning, and no ring. */
extern void ring_memory_init(const char *module);

/* What a ring of this many bytes takes */
extern uint64 ring_memory_of(Size bytes);

/*
 * Count a ring that is about to be made, by the setting of a module in kB.  Its
 * records take the largest of "wanted", a half, a quarter and so on, but at
 * least "least", for which with a header there is room; 0: there is no room, and
 * nothing is counted.
 */
extern uint64 ring_memory_take(int limit_kb, Size header, uint64 wanted, uint64 least);

/* An error that says why there is no room */
extern void ring_memory_refuse(int limit_kb, const char *setting) __attribute__((noreturn));

/* A ring that was counted is gone, or was never made. */
extern void ring_memory_give_back(uint64 bytes);

/*
 * Nobody writes to a segment any more, and nobody ever wrote behind its first
 * "used" bytes: give back the memory behind them.  Returns what it takes now.
 */
extern uint64 ring_memory_shrink(dsm_segment *segment, Size used);

/* What all rings together may take that are only kept to be read; 0 while others need the memory */
extern uint64 ring_memory_for_kept(int limit_kb);

/* A ring that is counted is to be kept.  False: those that are kept leave no room for it. */
extern bool ring_memory_keep(uint64 for_kept, uint64 bytes);

/* The same of a copy, which is not counted yet */
extern bool ring_memory_keep_copy(int limit_kb, uint64 bytes);

/* One that was kept is gone. */
extern void ring_memory_forget(uint64 bytes);

/* How much a module may take that sessions load, besides the rings, until the server restarts */
extern uint64 ring_memory_segment(void);

#pragma GCC visibility pop

#endif							/* PGTARE_RING_MEMORY_H */
