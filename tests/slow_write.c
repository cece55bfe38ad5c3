/*
 * Preloaded into the duet driver: writing a block of records takes a second longer.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

ssize_t
write(int fd, const void *data, size_t size)
{
	if (size > 4096)
		sleep(1);
	return syscall(SYS_write, fd, data, size);
}
