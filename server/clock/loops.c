/*-------------------------------------------------------------------------
 * loops.c
 *		Reads a clock over and over, and counts the differences.
 *
 * Each clock has loops of its own, so that the compiler puts its reading
 * into them.  A loop does no more than subtract and count raw ticks: which
 * bucket a difference belongs to, and how long it was in nanoseconds, is
 * worked out when the run is over.
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../common/clock.h"
#include "probe.h"

#define READ_MONOTONIC clock_source_read(CLOCK_SOURCE_MONOTONIC)
#define READ_MONOTONIC_RAW clock_system_ns(CLOCK_MONOTONIC_RAW)
#define READ_MONOTONIC_COARSE clock_source_read(CLOCK_SOURCE_MONOTONIC_COARSE)
#define READ_SYSCALL_MONOTONIC clock_source_read(CLOCK_SOURCE_SYSCALL)
#define READ_SYSCALL_MONOTONIC_RAW clock_syscall_ns(CLOCK_MONOTONIC_RAW)
#define READ_SYSCALL_MONOTONIC_COARSE clock_syscall_ns(CLOCK_MONOTONIC_COARSE)
#define READ_COUNTER clock_source_read(CLOCK_SOURCE_TSC)
#define READ_COUNTER_P clock_source_read(CLOCK_SOURCE_TSCP)
#define READ_COUNTER_ORDERED clock_counter_ordered()
#define READ_THREAD_CPU clock_system_ns(CLOCK_THREAD_CPUTIME_ID)

#define EIGHTFOLD _Pragma("GCC unroll 8")

/* A difference of 0 is not counted in place: a row of them is a clock that does not move. */
static inline int
is_near(uint64_t ticks)
{
	return __builtin_expect(ticks - 1 < PROBE_DIRECT - 1, 1);
}

static void
count(ProbeRun *run, ProbeWatch *watch, uint64_t before, uint64_t now, uint64_t nth)
{
	uint64_t	ticks = now - before;

	if (is_near(ticks))
		run->direct[ticks]++;
	else
		probe_note(run, watch, (int64_t) ticks, (int64_t) now, nth);
}

/*
 * Reading a clock in order means waiting until all before it is done.  So a
 * difference is counted only after the reading that follows it, while the
 * processor still works on that one: `older` and `before` are two readings
 * whose difference is not counted yet.
 *
 * Noting a far difference takes time, which must not become the next one: the
 * loop starts afresh behind it, and a step back in that time is noted all the
 * same.
 *
 * Reading the counter out of order keeps the processor's decoder busy, so that
 * even the loop's own counting shows: hence the unrolling there.
 */
#define DEFINE_LOOPS(NAME, READ, UNROLLED) \
static __attribute__((noinline)) uint64_t \
batch_##NAME(ProbeRun *run, ProbeWatch *watch, uint64_t older, int n) \
{ \
	uint64_t   *direct = run->direct; \
	uint64_t	before = (uint64_t) READ; \
\
	UNROLLED \
	for (int i = 1; i < n; i++) \
	{ \
		uint64_t	now = (uint64_t) READ; \
		uint64_t	ticks = before - older; \
\
		if (is_near(ticks)) \
			direct[ticks]++; \
		else \
		{ \
			probe_note(run, watch, (int64_t) ticks, (int64_t) before, run->differences + i); \
			if (ticks != 0) \
			{ \
				run->differences++; \
				count(run, watch, before, now, run->differences + i); \
				before = (uint64_t) READ; \
				if ((int64_t) (before - now) < 0) \
					probe_note_unread(run, (int64_t) (before - now)); \
				now = (uint64_t) READ; \
			} \
		} \
		older = before; \
		before = now; \
	} \
	run->differences += n; \
	count(run, watch, older, before, run->differences); \
	return before; \
} \
\
static __attribute__((noinline)) void \
record_##NAME(ProbeRun *run, ProbeWatch *watch) \
{ \
	int64_t		opened = (int64_t) READ; \
	int64_t		began = clock_system_ns(CLOCK_MONOTONIC); \
	uint64_t	before = (uint64_t) READ; \
\
	run->opened = opened; \
	run->first = (int64_t) before; \
	do \
	{ \
		uint64_t	now = (uint64_t) READ; \
\
		if ((int64_t) (now - before) < 0) \
			probe_note_unread(run, (int64_t) (now - before)); \
		before = batch_##NAME(run, watch, now, PROBE_BATCH); \
		run->elapsed_ns = clock_system_ns(CLOCK_MONOTONIC) - began; \
	} while (run->elapsed_ns < run->duration_ns && run->differences < run->most && \
			 !__atomic_load_n(&run->stop, __ATOMIC_RELAXED) && !run->out_of_memory); \
	run->closed = (int64_t) READ; \
	run->last = (int64_t) before; \
} \
\
static __attribute__((noinline)) void \
once_##NAME(ProbeRun *run, ProbeWatch *watch, int n) \
{ \
	(void) batch_##NAME(run, watch, (uint64_t) READ, n); \
} \
\
static __attribute__((noinline)) void \
only_##NAME(int n) \
{ \
	for (int i = 0; i < n; i++) \
	{ \
		uint64_t	now = (uint64_t) READ; \
\
		__asm__ volatile("" : : "r"(now)); \
	} \
}

DEFINE_LOOPS(monotonic, READ_MONOTONIC, )
DEFINE_LOOPS(monotonic_raw, READ_MONOTONIC_RAW, )
DEFINE_LOOPS(monotonic_coarse, READ_MONOTONIC_COARSE, )
DEFINE_LOOPS(syscall_monotonic, READ_SYSCALL_MONOTONIC, )
DEFINE_LOOPS(syscall_monotonic_raw, READ_SYSCALL_MONOTONIC_RAW, )
DEFINE_LOOPS(syscall_monotonic_coarse, READ_SYSCALL_MONOTONIC_COARSE, )
DEFINE_LOOPS(counter, READ_COUNTER, EIGHTFOLD)
DEFINE_LOOPS(counter_p, READ_COUNTER_P, EIGHTFOLD)
DEFINE_LOOPS(counter_ordered, READ_COUNTER_ORDERED, EIGHTFOLD)
DEFINE_LOOPS(thread_cpu, READ_THREAD_CPU, )

#define LOOPS(NAME) {record_##NAME, once_##NAME, only_##NAME}

static const struct
{
	void		(*record) (ProbeRun *run, ProbeWatch *watch);
	void		(*once) (ProbeRun *run, ProbeWatch *watch, int n);
	void		(*only) (int n);
}			loops[PROBE_CLOCKS] = {
	[PROBE_MONOTONIC] = LOOPS(monotonic),
	[PROBE_MONOTONIC_RAW] = LOOPS(monotonic_raw),
	[PROBE_MONOTONIC_COARSE] = LOOPS(monotonic_coarse),
	[PROBE_SYSCALL_MONOTONIC] = LOOPS(syscall_monotonic),
	[PROBE_SYSCALL_MONOTONIC_RAW] = LOOPS(syscall_monotonic_raw),
	[PROBE_SYSCALL_MONOTONIC_COARSE] = LOOPS(syscall_monotonic_coarse),
	[PROBE_COUNTER] = LOOPS(counter),
	[PROBE_COUNTER_P] = LOOPS(counter_p),
	[PROBE_COUNTER_ORDERED] = LOOPS(counter_ordered),
	[PROBE_THREAD_CPU] = LOOPS(thread_cpu),
};

/* A run that has recorded nothing, all of it in memory already; NULL if there is none. */
ProbeRun *
probe_new(void)
{
	ProbeRun   *run = mmap(NULL, sizeof(ProbeRun), PROT_READ | PROT_WRITE,
						   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (run == MAP_FAILED)
		return NULL;
	run->far_size = 1 << 16;
	run->far = malloc(run->far_size * sizeof(ProbeCount));
	if (run->far == NULL)
	{
		(void) munmap(run, sizeof(ProbeRun));
		return NULL;
	}
	run->cpu = -1;
	run->deep_ticks = INT64_MAX;
	run->most = UINT64_MAX;
	return run;
}

void
probe_free(ProbeRun *run)
{
	free(run->far);
	(void) munmap(run, sizeof(ProbeRun));
}

/* Pin the calling thread; 0, or the errno. */
int
probe_pin(int cpu)
{
	size_t		size;
	cpu_set_t  *set;
	int			failed;

	if (cpu < 0 || cpu >= PROBE_PROCESSORS)
		return EINVAL;
	size = CPU_ALLOC_SIZE(cpu + 1);
	set = CPU_ALLOC(cpu + 1);	/* a cpu_set_t ends at processor 1023 */
	if (set == NULL)
		return ENOMEM;
	CPU_ZERO_S(size, set);
	CPU_SET_S(cpu, size, set);
	failed = sched_setaffinity(0, size, set) == 0 ? 0 : errno;
	CPU_FREE(set);
	return failed;
}

/*
 * Record for run->duration_ns, on the processor run->cpu where one is named.
 * It ends, too, after run->most differences: the clock that tells when to end
 * may itself be the one that does not move.  Returns 0, or the errno of pinning.
 */
int
probe_record(ProbeRun *run, ProbeClock clock)
{
	ProbeWatch	watch;
	int			failed = run->cpu >= 0 ? probe_pin(run->cpu) : 0;

	if (failed)
		return failed;
	probe_watch_begin(run, &watch);
	loops[clock].record(run, &watch);
	probe_watch_end(&watch);
	probe_compact(run);
	return 0;
}

/* Count the differences of these readings as if a clock had given them: its faults are known. */
void
probe_replay(ProbeRun *run, const uint64_t *readings, uint64_t n)
{
	ProbeWatch	watch;

	if (n == 0)
		return;
	probe_watch_begin(run, &watch);
	run->opened = run->first = (int64_t) readings[0];
	for (uint64_t i = 1; i < n; i++)
	{
		count(run, &watch, readings[i - 1], readings[i], run->differences);
		run->differences++;
	}
	run->closed = run->last = (int64_t) readings[n - 1];
	probe_watch_end(&watch);
	probe_compact(run);
}

/*
 * The time a reading takes in a loop that only reads, and in the loop that
 * also counts: ns a reading, batch by batch in turn, so that what disturbs
 * the one disturbs the other.  Returns 0, or ENOMEM.
 */
int
probe_cost(ProbeClock clock, int batches, int reads, double *only_ns, double *loop_ns)
{
	ProbeRun   *run = probe_new();
	ProbeWatch	watch;

	if (run == NULL)
		return ENOMEM;
	probe_watch_begin(run, &watch);
	loops[clock].only(reads);	/* into the caches */
	loops[clock].once(run, &watch, reads);
	for (int i = 0; i < batches; i++)
	{
		int64_t		t0 = clock_system_ns(CLOCK_MONOTONIC);
		int64_t		t1,
					t2;

		loops[clock].only(reads);
		t1 = clock_system_ns(CLOCK_MONOTONIC);
		loops[clock].once(run, &watch, reads);
		t2 = clock_system_ns(CLOCK_MONOTONIC);
		only_ns[i] = (double) (t1 - t0) / reads;
		loop_ns[i] = (double) (t2 - t1) / reads;
	}
	probe_watch_end(&watch);
	probe_free(run);
	return 0;
}
