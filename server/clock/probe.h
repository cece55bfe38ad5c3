/*-------------------------------------------------------------------------
 * probe.h
 *		What the clock probe shares with its caller, which mirrors these
 *		structures in src/pgtare/observing/clock/probe.py.
 *
 * A difference between two readings in succession is counted in `direct` as
 * long as it is small, and kept in `far` with its exact value otherwise:
 * nothing is dropped, and nothing is converted before the run is over.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_PROBE_H
#define PGTARE_PROBE_H

#include <stdint.h>

#define PROBE_DIRECT	16384	/* differences below are counted in place */
#define PROBE_BATCH		4096	/* readings between two looks at the time */
#define PROBE_REASON	160		/* bytes of a sentence */
#define PROBE_KEPT		32		/* longest gaps kept with their cause */
#define PROBE_PROCESSORS (1 << 20)	/* far more than any kernel numbers */

/* Order as in src/pgtare/observing/clock/probe.py */
typedef enum ProbeClock
{
	PROBE_MONOTONIC,
	PROBE_MONOTONIC_RAW,
	PROBE_MONOTONIC_COARSE,
	PROBE_SYSCALL_MONOTONIC,
	PROBE_SYSCALL_MONOTONIC_RAW,
	PROBE_SYSCALL_MONOTONIC_COARSE,
	PROBE_COUNTER,				/* RDTSC, or the virtual counter on aarch64 */
	PROBE_COUNTER_P,			/* RDTSCP */
	PROBE_COUNTER_ORDERED,		/* LFENCE; RDTSC, or ISB and the virtual counter */
	PROBE_THREAD_CPU,
	PROBE_CLOCKS
} ProbeClock;

typedef struct ProbeCount
{
	int64_t		ticks;
	uint64_t	count;
	uint64_t	switched;		/* those with a context switch in them */
} ProbeCount;

/* One gap, with what the kernel said happened since the gap before it. */
typedef struct ProbeGap
{
	int64_t		at;				/* ticks since the run began */
	int64_t		ticks;
	int64_t		switches;		/* context switches of this thread */
	int64_t		waited_ns;		/* ready, but waiting for a processor; -1: not known */
	int64_t		stolen;			/* clock ticks (10 ms) taken by other guests; -1: not known */
} ProbeGap;

typedef struct ProbeRun
{
	uint64_t	direct[PROBE_DIRECT];
	ProbeCount *far;
	uint64_t	far_used;
	uint64_t	far_size;
	uint64_t	differences;	/* all that were counted */
	uint64_t	backward;		/* steps back, at batch bounds too */
	int64_t		backward_largest;	/* the largest of them, in ticks below 0 */
	uint64_t	still_longest;	/* most differences of 0 in a row */
	int64_t		opened;			/* read just before the time was first looked at */
	int64_t		first;			/* and just after */
	int64_t		last;			/* just before the time was last looked at */
	int64_t		closed;			/* and just after */
	int64_t		elapsed_ns;		/* by CLOCK_MONOTONIC */
	int64_t		duration_ns;	/* requested */
	int64_t		deep_ticks;		/* gaps from here on are looked into */
	uint64_t	most;			/* differences after which to end in any case */
	int32_t		cpu;			/* processor that the run was pinned to, or -1 */
	int32_t		out_of_memory;
	int32_t		stop;			/* set by another thread */
	uint32_t	kept_n;
	ProbeGap	kept[PROBE_KEPT];
} ProbeRun;

/* What two processors tell about each other's clock. */
typedef struct ProbeCores
{
	int64_t		lower;			/* bounds of second minus first, in ticks */
	int64_t		upper;
	uint64_t	rounds;
	uint64_t	backward;		/* readings below the other processor's earlier one */
	int64_t		backward_largest;
	int32_t		failed;			/* errno of pinning or of starting a thread */
} ProbeCores;

extern const char *probe_sources(void);
extern ProbeRun *probe_new(void);
extern void probe_free(ProbeRun *run);
extern int	probe_record(ProbeRun *run, ProbeClock clock);
extern void probe_replay(ProbeRun *run, const uint64_t *readings, uint64_t n);
extern int	probe_cost(ProbeClock clock, int batches, int reads, double *only_ns, double *loop_ns);
extern void probe_compact(ProbeRun *run);
extern void probe_cores(ProbeCores *out, int first, int second, int counter, int64_t offset,
						uint64_t rounds, int64_t limit_ns);
extern int	probe_pin(int cpu);
extern int	probe_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]);
extern int	probe_counter_usable(void);
extern void probe_pair(int64_t out[3]);
extern void probe_calibrate(int64_t duration_ns, int64_t out[6]);

/* notes.c: what the loops leave to others */
typedef struct ProbeWatch
{
	int64_t		switches;
	int64_t		waited_ns;
	int64_t		stolen;
	int			schedstat;		/* open files, or -1 */
	int			stat;
	char	   *text;			/* of /proc/stat up to the processor's line; NULL without memory */
	size_t		text_size;
	uint64_t	still;			/* differences of 0 in the present row */
	uint64_t	still_at;
} ProbeWatch;

extern void probe_watch_begin(ProbeRun *run, ProbeWatch *watch);
extern void probe_watch_end(ProbeWatch *watch);
extern void probe_note_unread(ProbeRun *run, int64_t ticks);
extern void probe_note(ProbeRun *run, ProbeWatch *watch, int64_t ticks, int64_t now, uint64_t nth);

#endif							/* PGTARE_PROBE_H */
