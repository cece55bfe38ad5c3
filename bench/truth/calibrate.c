/*
 * calibrate.c
 *		A process that announces waits as a server does, and times them itself.
 *
 * Next to what the witness tells of the same waits, this shows how much longer
 * they seem by the stores (the traps lie within) and how much shorter by the
 * system calls (the way into the kernel and out again lies outside).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int64_t
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int
main(int argc, char **argv)
{
	static char buffer[8192];
	volatile uint32_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
								   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int			n = argc > 1 ? atoi(argv[1]) : 0;
	int64_t    *ns = malloc((n + 1) * sizeof(int64_t));
	int			file = open(argv[0], O_RDONLY);

	*word = 0;
	printf("%p\n", (void *) word);
	fflush(stdout);
	if (file < 0 || ns == NULL || getchar() == EOF)
		return 1;
	for (int i = 0; i < n; i++)
	{
		int64_t		start;

		*word = i + 1;
		start = now();
		if (pread(file, buffer, sizeof(buffer), 0) <= 0)
			return 1;
		ns[i] = now() - start;
		*word = 0;
	}
	for (int i = 0; i < n; i++)
		printf("%lld\n", (long long) ns[i]);
	return 0;
}
