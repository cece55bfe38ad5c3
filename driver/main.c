/*-------------------------------------------------------------------------
 * main.c
 *		The duet driver: one plan, one run, one file of records.
 *
 * usage: duet PLAN
 *
 * Standard error has a line of progress every second and, if something
 * fails, one line that says so.  Standard output has how the run ended, one
 * fact a line.  SIGINT and SIGTERM end the run early; what was measured is
 * kept.  Exit status: 0 after a whole or an interrupted run, 1 after a
 * failure (what was measured until then is kept), 2 for a plan that is none.
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "duet.h"

#define LEAD_NS		((int64_t) 20000000)	/* for all threads to be waiting */

static volatile sig_atomic_t signalled = 0;

static void
on_signal(int number)
{
	(void) number;
	signalled = 1;
}

static void
catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	/* a broken pipe is seen where it is written to */
	action.sa_handler = SIG_IGN;
	sigaction(SIGPIPE, &action, NULL);
}

/* A connection takes a file; the usual soft limit is for programs that use select(). */
static void
allow_all_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void) setrlimit(RLIMIT_NOFILE, &limit);
}

/* Open all connections; false where one fails or a signal has come. */
static bool
open_links(Run *run, Worker *workers)
{
	for (int t = 0; t < run->plan->nthreads; t++)
	{
		workers[t].run = run;
		workers[t].thread = t;
		for (int c = 0; c < run->plan->nclusters; c++)
		{
			if (signalled)
			{
				run_end(run, ENDED_BY_SIGNAL, "interrupted while connecting");
				return false;
			}
			if (!link_open(&workers[t].links[c], run, t, c))
				return false;
		}
	}
	return true;
}

static void
start_threads(Run *run, Worker *workers, Sink *sink)
{
	sigset_t	all,
				before;

	/* signals are the main thread's */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (int t = 0; t < run->plan->nthreads; t++)
	{
		int			failed;

		workers[t].tray = sink_tray(sink, t);
		failed = pthread_create(&workers[t].id, NULL, worker_main, &workers[t]);
		if (failed)
		{
			fprintf(stderr, "cannot start thread %d: %s\n", t, strerror(failed));
			exit(1);
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static uint64_t
transactions(const Run *run, Worker *workers)
{
	uint64_t	sum = 0;

	for (int t = 0; t < run->plan->nthreads; t++)
		sum += atomic_load_explicit(&workers[t].transactions, memory_order_relaxed);
	return sum;
}

/* Write records and report while the threads work. */
static void
supervise(Run *run, Worker *workers, Sink *sink)
{
	int64_t		report_ns = 1000000000;

	while (sink_serve(sink, read_clock(CLOCK_MONOTONIC) + TICK_NS))
	{
		if (signalled)
			run_end(run, ENDED_BY_SIGNAL, "interrupted");
		if (sink_error(sink))
			run_end(run, ENDED_BY_FAILURE, "cannot write %s: %s", run->plan->output,
					sink_error(sink));
		if (run_now(run) >= report_ns)
		{
			fprintf(stderr, "progress: %.1f s, %llu transactions\n", report_ns / 1e9,
					(unsigned long long) transactions(run, workers));
			report_ns += 1000000000;
		}
	}
	for (int t = 0; t < run->plan->nthreads; t++)
		pthread_join(workers[t].id, NULL);
	sink_close(sink);
	if (sink_error(sink))
		run_end(run, ENDED_BY_FAILURE, "cannot write %s: %s", run->plan->output, sink_error(sink));
}

static int
conclusion(const Run *run, Worker *workers)
{
	static const char *const endings[] = {
		[ENDED_BY_TIME] = "time",[ENDED_BY_SIGNAL] = "signal",[ENDED_BY_FAILURE] = "failure"
	};

	printf("ended %s\n", endings[run->ending]);
	printf("end_ns %lld\n", (long long) atomic_load(&run->end_ns));
	printf("transactions %llu\n", (unsigned long long) transactions(run, workers));
	printf("libpq %d\n", PQlibVersion());
	if (run->ending == ENDED_BY_FAILURE)
		fprintf(stderr, "error: %s\n", run->failure);
	return run->ending == ENDED_BY_FAILURE ? 1 : 0;
}

int
main(int argc, char **argv)
{
	Run			run = {.lock = PTHREAD_MUTEX_INITIALIZER};
	Plan	   *plan;
	Worker	   *workers;
	Sink	   *sink;

	if (argc != 2)
	{
		fprintf(stderr, "usage: duet PLAN\n");
		return 2;
	}
	plan = plan_read(argv[1]);
	run.plan = plan;
	run.zero_ns = read_clock(CLOCK_MONOTONIC);
	run.end_ns = plan->warmup_ns + plan->duration_ns;
	workers = aligned_alloc(_Alignof(Worker), plan->nthreads * sizeof(Worker));
	if (workers == NULL)
	{
		fprintf(stderr, "error: out of memory for %d threads\n", plan->nthreads);
		return 1;
	}
	memset(workers, 0, plan->nthreads * sizeof(Worker));
	catch_signals();
	allow_all_files();
	if (!open_links(&run, workers))
		return conclusion(&run, workers);

	sink = sink_open(plan, read_clock(CLOCK_REALTIME) + LEAD_NS);
	if (sink == NULL)
	{
		fprintf(stderr, "error: cannot write %s: %s\n", plan->output, strerror(errno));
		return 1;
	}
	run.zero_ns = read_clock(CLOCK_MONOTONIC) + LEAD_NS;
	start_threads(&run, workers, sink);
	supervise(&run, workers, sink);
	for (int t = 0; t < plan->nthreads; t++)
		for (int c = 0; c < plan->nclusters; c++)
			link_close(&workers[t].links[c]);
	return conclusion(&run, workers);
}
