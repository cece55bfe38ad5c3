/*
 * Preloaded into a server: for the process whose ID is in the file that
 * PGTARE_CLOCK_BACK names, the monotonic clock is a tenth of a millisecond
 * further behind with each reading.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mapped_file.h"

enum {BILLION = 1000 * 1000 * 1000, STEP = 100 * 1000};

static const volatile int64_t *process;

__attribute__((constructor))
static void
attach(void)
{
	process = mapped_file("PGTARE_CLOCK_BACK", sizeof(*process));
}

int
clock_gettime(clockid_t id, struct timespec *now)
{
	static int64_t behind = 0;
	int			result = (int) syscall(SYS_clock_gettime, id, now);
	int64_t		ns;

	if (process && *process == getpid() && id == CLOCK_MONOTONIC && result == 0)
	{
		behind += STEP;
		ns = now->tv_sec * (int64_t) BILLION + now->tv_nsec - behind;
		now->tv_sec = ns / BILLION;
		now->tv_nsec = ns % BILLION;
	}
	return result;
}
