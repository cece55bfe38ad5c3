/*-------------------------------------------------------------------------
 * worker.c
 *		A thread: starts transactions when it is their turn, and waits.
 *
 * Closed loop: one transaction at a time; the next begins when the last has
 * been answered.  Open loop: every connection keeps to its own times, and a
 * transaction that finds its connection taken waits for that one only; its
 * latency counts from the time at which it was due.
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>

#include "duet.h"

#define NEVER INT64_MAX

static bool
in_use(const Link *link)
{
	return link->state == LINK_BUSY || link->state == LINK_ROLLING_BACK;
}

/* Write down the link's transaction, and turn to the next cycle. */
static void
conclude(Worker *w, Link *link)
{
	int64_t		now_ns = run_now(w->run);
	Record		record;

	link_describe(link, now_ns, &record);
	tray_put(w->tray, &record);
	cycle_next(w->run->plan, w->thread, &link->cycle);
	atomic_store_explicit(&w->transactions, w->transactions + 1, memory_order_relaxed);
}

/* ---------------- starting ---------------- */

/* Closed loop: start the cycle's next transaction if none is under way. */
static void
take_turn(Worker *w)
{
	const Plan *plan = w->run->plan;

	for (;;)
	{
		Link	   *link;

		for (int i = 0; i < plan->nclusters; i++)
			if (in_use(&w->links[i]))
				return;
		if (w->turn == plan->nclusters)
		{
			cycle_next(plan, w->thread, &w->cycle);
			w->turn = 0;
		}
		/* a cycle that was begun is finished; the end may have come in the last one */
		if (w->turn == 0 && run_now(w->run) >= atomic_load(&w->run->end_ns))
			return;
		link = &w->links[w->cycle.order[w->turn++]];
		if (link->state == LINK_IDLE && link_start(link, 0) == PROGRESS_FINISHED)
			conclude(w, link);
	}
}

/*
 * Open loop: start what is due; returns when the next transaction of a free
 * link will be.
 *
 * The one that was due first is started first.  A backend that shares the
 * thread's processor may run as soon as its request is sent, so that of
 * several started at once the first waits longest to be read: in an order of
 * their own, some clusters would look slower than others.  The times due are
 * drawn by lot for each cycle.
 */
static int64_t
start_due(Worker *w, int64_t end_ns)
{
	for (;;)
	{
		Link	   *first = NULL;
		int64_t		first_ns = NEVER;

		for (int i = 0; i < w->run->plan->nclusters; i++)
		{
			Link	   *link = &w->links[i];
			int64_t		due_ns = link->cycle.due_ns[cycle_turn(&link->cycle, i)];

			/* a cycle that begins before the end belongs to the run as a whole */
			if (link->state == LINK_IDLE && link->cycle.begin_ns < end_ns && due_ns < first_ns)
			{
				first = link;
				first_ns = due_ns;
			}
		}
		if (first == NULL || first_ns > run_now(w->run))
			return first_ns;
		if (link_start(first, first_ns) == PROGRESS_FINISHED)
			conclude(w, first);
	}
}

/* ---------------- waiting ---------------- */

/* The links that wait for an answer, that which was sent first first. */
static int
sort_waiting(Worker *w, Link **waiting)
{
	int			n = 0;

	for (int i = 0; i < w->run->plan->nclusters; i++)
	{
		Link	   *link = &w->links[i];
		int			at;

		if (!in_use(link))
			continue;
		for (at = n++; at > 0 && waiting[at - 1]->sent_ns > link->sent_ns; at--)
			waiting[at] = waiting[at - 1];
		waiting[at] = link;
	}
	return n;
}

/* Wait for answers, but not beyond a time, and take them. */
static void
await(Worker *w, int64_t until_ns)
{
	struct pollfd fds[MAX_CLUSTERS];
	Link	   *waiting[MAX_CLUSTERS];
	int			n = sort_waiting(w, waiting);
	int64_t		wait_ns = until_ns - run_now(w->run);
	struct timespec timeout;

	for (int i = 0; i < n; i++)
		fds[i] = (struct pollfd) {.fd = PQsocket(waiting[i]->conn), .events = POLLIN};
	if (wait_ns > TICK_NS)
		wait_ns = TICK_NS;
	if (wait_ns < 0)
		wait_ns = 0;
	timeout = (struct timespec) {.tv_nsec = wait_ns};
	if (ppoll(fds, n, &timeout, NULL) <= 0)
		return;
	for (int i = 0; i < n; i++)
		if (fds[i].revents && link_receive(waiting[i]) == PROGRESS_FINISHED)
			conclude(w, waiting[i]);
}

/* ---------------- the end ---------------- */

/* Nothing that was due goes unrecorded. */
static void
record_rest(Worker *w)
{
	int64_t		end_ns = atomic_load(&w->run->end_ns);

	for (int i = 0; i < w->run->plan->nclusters; i++)
	{
		Link	   *link = &w->links[i];

		if (link->state == LINK_BUSY)
		{
			link->outcome = OUTCOME_UNFINISHED;
			conclude(w, link);
		}
		if (w->run->plan->rate == 0)
			continue;
		while (link->cycle.begin_ns < end_ns)
		{
			int64_t		due_ns = link->cycle.due_ns[cycle_turn(&link->cycle, i)];
			int64_t		now_ns = run_now(w->run);

			if (due_ns > now_ns)
				break;
			link->scheduled_ns = due_ns;
			link->sent_ns = now_ns;
			link->outcome = OUTCOME_UNSENT;
			link->sqlstate[0] = '\0';
			conclude(w, link);
		}
	}
}

static void
wait_for_zero(const Run *run)
{
	struct timespec zero = {
		.tv_sec = run->zero_ns / 1000000000,
		.tv_nsec = run->zero_ns % 1000000000
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &zero, NULL) == EINTR)
		;
}

void *
worker_main(void *argument)
{
	Worker	   *w = argument;
	Run		   *run = w->run;
	bool		open_loop = run->plan->rate > 0;

	/* by default the kernel may wake a sleeper 50 us late, to save power */
	(void) prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
	if (!pin_thread(w->thread))
		run_end(run, ENDED_BY_FAILURE, "cannot pin thread %d to a processor", w->thread);
	cycle_first(run->plan, w->thread, &w->cycle);
	wait_for_zero(run);
	for (;;)
	{
		int64_t		end_ns = atomic_load(&run->end_ns);
		int64_t		cut_ns = end_ns + run->plan->drain_ns;
		int64_t		next_ns = NEVER;
		bool		waits = false;

		if (open_loop)
			next_ns = start_due(w, end_ns);
		else
			take_turn(w);
		for (int i = 0; i < run->plan->nclusters; i++)
			waits |= in_use(&w->links[i]);
		if ((!waits && next_ns == NEVER) || run_now(run) >= cut_ns)
			break;
		await(w, next_ns < cut_ns ? next_ns : cut_ns);
	}
	record_rest(w);
	tray_finish(w->tray);
	return NULL;
}
