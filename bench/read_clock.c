/*
 * What a reading of CLOCK_MONOTONIC costs, back to back in a loop: the median
 * of the given number of stretches of 1,000 readings, in ns.
 *
 * Built with -DSLOW as a library, it makes the same clock slow for the program
 * that preloads it: every reading becomes a system call.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef SLOW
int
clock_gettime(clockid_t id, struct timespec *now)
{
	return (int) syscall(SYS_clock_gettime, id, now);
}
#else
enum {READINGS = 1000, MOST = 10000};

static int64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a,
				y = *(const double *) b;

	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
	static double found[MOST];
	int			stretches = argc > 1 ? atoi(argv[1]) : 500;

	if (stretches < 1 || stretches > MOST)
		return 2;
	for (int i = 0; i < stretches; i++)
	{
		int64_t		start = now_ns();

		for (int k = 0; k < READINGS; k++)
			(void) now_ns();
		found[i] = (double) (now_ns() - start) / (READINGS + 1);
	}
	qsort(found, (size_t) stretches, sizeof(double), compare);
	printf("%.3f\n", found[stretches / 2]);
	return 0;
}
#endif
