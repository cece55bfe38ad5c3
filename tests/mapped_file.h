/*
 * The file that an environment variable names, mapped: by it tests talk to a library of
 * theirs that is preloaded into a server.
 */
#ifndef MAPPED_FILE_H
#define MAPPED_FILE_H

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* NULL if there is none */
static inline void *
mapped_file(const char *variable, size_t size)
{
	const char *path = getenv(variable);
	int			fd = path ? open(path, O_RDWR) : -1;
	void	   *found;

	if (fd < 0)
		return NULL;
	found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return found == MAP_FAILED ? NULL : found;
}

#endif
