/*
 * Preloaded into a server: each send() takes as many nanoseconds longer, after it has
 * been done, as the file says that PGTARE_SLOW_SEND names.  So it is for a session whose
 * client is on the same processor and is woken by that call.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mapped_file.h"

static const volatile int64_t *longer;

__attribute__((constructor))
static void
attach(void)
{
	longer = mapped_file("PGTARE_SLOW_SEND", sizeof(*longer));
}

ssize_t
send(int fd, const void *buffer, size_t length, int flags)
{
	/* read before the call: the client it wakes may change it at once */
	struct timespec nap = {.tv_nsec = longer ? *longer : 0};
	ssize_t		result = syscall(SYS_sendto, fd, buffer, length, flags, NULL, 0);

	if (nap.tv_nsec > 0 && result >= 0)
		nanosleep(&nap, NULL);
	return result;
}
