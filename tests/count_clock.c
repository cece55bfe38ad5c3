/*
 * Preloaded into a server: counts each process's calls of clock_gettime, in
 * the file that PGTARE_CLOCK_COUNTS names, one number for each process ID.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {SLOTS = 1 << 16};

static uint64_t *counts;

__attribute__((constructor))
static void
attach(void)
{
	const char *path = getenv("PGTARE_CLOCK_COUNTS");
	int			fd = path ? open(path, O_RDWR) : -1;
	void	   *found;

	if (fd < 0)
		return;
	found = mmap(NULL, SLOTS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (found != MAP_FAILED)
		counts = found;
	close(fd);
}

int
clock_gettime(clockid_t id, struct timespec *now)
{
	if (counts)
		counts[getpid() % SLOTS]++;
	return (int) syscall(SYS_clock_gettime, id, now);
}
