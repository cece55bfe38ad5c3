/*-------------------------------------------------------------------------
 * notes.c
 *		What the loops leave to others: differences that are large, zero or
 *		below zero, and what the kernel says about the large ones.
 *
 * All of it is off the path of an ordinary reading, and the loops read the
 * clock anew afterwards, so that its time appears in no difference.
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "probe.h"

#define STAT_LINE	256			/* no line of /proc/stat before the processors' end is longer */

static int64_t
switches_now(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage) != 0)
		return 0;
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* Time this thread was ready but not running, in ns; -1 if the kernel does not tell. */
static int64_t
waited_now(int fd)
{
	char		text[128];
	ssize_t		n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
	long long	ran,
				waited;

	if (n <= 0)
		return -1;
	text[n] = '\0';
	return sscanf(text, "%lld %lld", &ran, &waited) == 2 ? waited : -1;
}

/* Time that other guests took from a processor, in clock ticks; -1 if not known. */
static int64_t
stolen_now(const ProbeWatch *watch, int cpu)
{
	char	   *text = watch->text;
	char		name[24];
	ssize_t		n = -1;
	const char *line;
	long long	stolen;

	if (watch->stat >= 0 && text != NULL)
		n = pread(watch->stat, text, watch->text_size - 1, 0);
	if (n <= 0)
		return -1;
	text[n] = '\0';
	if (cpu >= 0)
		(void) snprintf(name, sizeof(name), "\ncpu%d ", cpu);
	else
		(void) snprintf(name, sizeof(name), "cpu ");
	line = strstr(text, name);
	if (line == NULL ||
		sscanf(line + strlen(name), "%*d %*d %*d %*d %*d %*d %*d %lld", &stolen) != 1)
		return -1;
	return stolen;
}

void
probe_watch_begin(ProbeRun *run, ProbeWatch *watch)
{
	memset(watch, 0, sizeof(*watch));
	watch->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	watch->stat = open("/proc/stat", O_RDONLY | O_CLOEXEC);
	watch->text_size = (size_t) (run->cpu + 2) * STAT_LINE;
	watch->text = malloc(watch->text_size);
	watch->still_at = UINT64_MAX;
	watch->waited_ns = waited_now(watch->schedstat);
	watch->stolen = stolen_now(watch, run->cpu);
	watch->switches = switches_now();
}

void
probe_watch_end(ProbeWatch *watch)
{
	if (watch->schedstat >= 0)
		(void) close(watch->schedstat);
	if (watch->stat >= 0)
		(void) close(watch->stat);
	free(watch->text);
}

static int
by_ticks(const void *a, const void *b)
{
	int64_t		x = ((const ProbeCount *) a)->ticks;
	int64_t		y = ((const ProbeCount *) b)->ticks;

	return (x > y) - (x < y);
}

/* One entry for each value, in their order. */
void
probe_compact(ProbeRun *run)
{
	uint64_t	kept = 0;

	qsort(run->far, run->far_used, sizeof(ProbeCount), by_ticks);
	for (uint64_t i = 0; i < run->far_used; i++)
	{
		if (kept > 0 && run->far[kept - 1].ticks == run->far[i].ticks)
		{
			run->far[kept - 1].count += run->far[i].count;
			run->far[kept - 1].switched += run->far[i].switched;
		}
		else
			run->far[kept++] = run->far[i];
	}
	run->far_used = kept;
}

static void
keep_value(ProbeRun *run, int64_t ticks, bool switched)
{
	if (run->far_used == run->far_size)
	{
		probe_compact(run);
		if (run->far_used > run->far_size / 2)
		{
			ProbeCount *more = realloc(run->far, 2 * run->far_size * sizeof(ProbeCount));

			if (more == NULL && run->far_used == run->far_size)
			{
				run->out_of_memory = 1;	/* the run ends; what it has is whole up to here */
				return;
			}
			if (more != NULL)
			{
				run->far = more;
				run->far_size *= 2;
			}
		}
	}
	run->far[run->far_used++] = (ProbeCount) {ticks, 1, switched};
}

/* The longest gaps stay; the shortest of those kept gives way. */
static void
keep_gap(ProbeRun *run, const ProbeGap *gap)
{
	uint32_t	least = 0;

	if (run->kept_n < PROBE_KEPT)
	{
		run->kept[run->kept_n++] = *gap;
		return;
	}
	for (uint32_t i = 1; i < PROBE_KEPT; i++)
		if (run->kept[i].ticks < run->kept[least].ticks)
			least = i;
	if (gap->ticks > run->kept[least].ticks)
		run->kept[least] = *gap;
}

/* Ask the kernel about a gap; true if the thread was switched out since the one before. */
static bool
note_gap(ProbeRun *run, ProbeWatch *watch, int64_t ticks, int64_t now)
{
	int64_t		switches = switches_now();
	ProbeGap	gap = {
		.at = now - ticks - run->first, .ticks = ticks,
		.switches = switches - watch->switches, .waited_ns = -1, .stolen = -1,
	};

	watch->switches = switches;
	if (ticks >= run->deep_ticks)
	{
		int64_t		waited = waited_now(watch->schedstat);
		int64_t		stolen = stolen_now(watch, run->cpu);

		if (waited >= 0 && watch->waited_ns >= 0)
			gap.waited_ns = waited - watch->waited_ns;
		if (stolen >= 0 && watch->stolen >= 0)
			gap.stolen = stolen - watch->stolen;
		watch->waited_ns = waited;
		watch->stolen = stolen;
	}
	keep_gap(run, &gap);
	return gap.switches > 0;
}

static void
step_back(ProbeRun *run, int64_t ticks)
{
	run->backward++;
	if (ticks < run->backward_largest)
		run->backward_largest = ticks;
}

/* A step back between two readings that had other work between them: no duration, but a fault. */
void
probe_note_unread(ProbeRun *run, int64_t ticks)
{
	keep_value(run, ticks, false);
	run->differences++;
	step_back(run, ticks);
}

/* A difference that is not small: `nth` is its number, `now` the later reading. */
void
probe_note(ProbeRun *run, ProbeWatch *watch, int64_t ticks, int64_t now, uint64_t nth)
{
	if (ticks == 0)
	{
		run->direct[0]++;
		watch->still = nth == watch->still_at + 1 ? watch->still + 1 : 1;
		watch->still_at = nth;
		if (watch->still > run->still_longest)
			run->still_longest = watch->still;
		return;
	}
	keep_value(run, ticks, ticks > 0 && note_gap(run, watch, ticks, now));
	if (ticks < 0)
		step_back(run, ticks);
}
