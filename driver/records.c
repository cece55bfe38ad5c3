/*-------------------------------------------------------------------------
 * records.c
 *		Records on their way from the threads into one file.
 *
 * Every thread fills one of two blocks of its own while the main thread
 * writes the other, so that no system call falls between transactions except
 * at the exchange of blocks.  A thread waits rather than lose a record.
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "duet.h"

#define MEMORY_FOR_BLOCKS	(64 << 20)
#define LARGEST_BLOCK		8192	/* records */
#define SMALLEST_BLOCK		1024

/* Before the records; duet_records.py reads it. */
typedef struct Header
{
	char		magic[8];
	uint32_t	record_bytes;
	uint32_t	nclusters;
	uint32_t	nthreads;
	uint32_t	unused;
	int64_t		warmup_ns;
	int64_t		duration_ns;	/* as planned, without the warm-up */
	int64_t		zero_unix_ns;
} Header;

_Static_assert(sizeof(Header) == 48, "the header is part of the file format");

struct Tray
{
	Sink	   *sink;
	Record	   *blocks[2];
	int			filling;
	size_t		used;			/* of the block being filled */
	/* under the sink's lock */
	size_t		handed[2];		/* records waiting to be written; 0: the block is free */
	bool		finished;
};

struct Sink
{
	int			fd;
	size_t		capacity;		/* of a block */
	int			ntrays;
	Tray	   *trays;
	int			error;			/* errno of the first failed write */
	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_cond_t space;
};

static void
write_all(Sink *sink, const void *data, size_t size)
{
	const char *at = data;

	while (size > 0 && sink->error == 0)
	{
		ssize_t		done = write(sink->fd, at, size);

		if (done >= 0)
		{
			at += done;
			size -= done;
		}
		else if (errno != EINTR)
			sink->error = errno;
	}
}

/* A block in memory that is really there, so that filling it faults no pages in */
static Record *
new_block(size_t capacity)
{
	Record	   *block = malloc(capacity * sizeof(Record));

	if (block != NULL)
		memset(block, 0xFF, capacity * sizeof(Record));
	return block;
}

/* NULL, with errno set, if the file cannot be made. */
Sink *
sink_open(const Plan *plan, int64_t zero_unix_ns)
{
	Sink	   *sink = calloc(1, sizeof(Sink));
	Header		header = {
		.magic = "PGTDUET",
		.record_bytes = sizeof(Record),
		.nclusters = (uint32_t) plan->nclusters,
		.nthreads = (uint32_t) plan->nthreads,
		.warmup_ns = plan->warmup_ns,
		.duration_ns = plan->duration_ns,
		.zero_unix_ns = zero_unix_ns,
	};
	pthread_condattr_t attributes;

	if (sink == NULL || (sink->trays = calloc(plan->nthreads, sizeof(Tray))) == NULL)
		return NULL;
	sink->fd = open(plan->output, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (sink->fd < 0)
		return NULL;
	pthread_mutex_init(&sink->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&sink->work, &attributes);
	pthread_cond_init(&sink->space, &attributes);

	sink->capacity = MEMORY_FOR_BLOCKS / sizeof(Record) / 2 / plan->nthreads;
	if (sink->capacity > LARGEST_BLOCK)
		sink->capacity = LARGEST_BLOCK;
	if (sink->capacity < SMALLEST_BLOCK)
		sink->capacity = SMALLEST_BLOCK;
	sink->ntrays = plan->nthreads;
	for (int i = 0; i < sink->ntrays; i++)
	{
		sink->trays[i].sink = sink;
		for (int b = 0; b < 2; b++)
			if ((sink->trays[i].blocks[b] = new_block(sink->capacity)) == NULL)
				return NULL;
	}
	write_all(sink, &header, sizeof(header));
	errno = sink->error;
	return sink->error == 0 ? sink : NULL;
}

Tray *
sink_tray(Sink *sink, int thread)
{
	return &sink->trays[thread];
}

static void
hand_over(Tray *tray)
{
	Sink	   *sink = tray->sink;

	pthread_mutex_lock(&sink->lock);
	tray->handed[tray->filling] = tray->used;
	tray->filling ^= 1;
	tray->used = 0;
	pthread_cond_signal(&sink->work);
	while (tray->handed[tray->filling] > 0)
		pthread_cond_wait(&sink->space, &sink->lock);
	pthread_mutex_unlock(&sink->lock);
}

void
tray_put(Tray *tray, const Record *record)
{
	tray->blocks[tray->filling][tray->used++] = *record;
	if (tray->used == tray->sink->capacity)
		hand_over(tray);
}

/* The thread has no more records. */
void
tray_finish(Tray *tray)
{
	if (tray->used > 0)
		hand_over(tray);
	pthread_mutex_lock(&tray->sink->lock);
	tray->finished = true;
	pthread_cond_signal(&tray->sink->work);
	pthread_mutex_unlock(&tray->sink->lock);
}

/* Write one block that waits, if there is one.  Called and left with the lock held. */
static bool
write_one(Sink *sink)
{
	for (int i = 0; i < sink->ntrays; i++)
	{
		Tray	   *tray = &sink->trays[i];

		for (int b = 0; b < 2; b++)
		{
			size_t		n = tray->handed[b];

			if (n == 0)
				continue;
			pthread_mutex_unlock(&sink->lock);
			write_all(sink, tray->blocks[b], n * sizeof(Record));
			pthread_mutex_lock(&sink->lock);
			tray->handed[b] = 0;
			pthread_cond_broadcast(&sink->space);
			return true;
		}
	}
	return false;
}

static bool
all_finished(const Sink *sink)
{
	for (int i = 0; i < sink->ntrays; i++)
		if (!sink->trays[i].finished)
			return false;
	return true;
}

/*
 * Write blocks until a time on CLOCK_MONOTONIC, even if there are always more;
 * false once all threads have finished and everything is written.
 */
bool
sink_serve(Sink *sink, int64_t until_ns)
{
	struct timespec until = {
		.tv_sec = until_ns / 1000000000,
		.tv_nsec = until_ns % 1000000000
	};
	bool		more = true;

	pthread_mutex_lock(&sink->lock);
	for (;;)
	{
		if (write_one(sink))
		{
			if (read_clock(CLOCK_MONOTONIC) >= until_ns)
				break;
			continue;
		}
		if (all_finished(sink))
		{
			more = false;
			break;
		}
		if (pthread_cond_timedwait(&sink->work, &sink->lock, &until) == ETIMEDOUT)
			break;
	}
	pthread_mutex_unlock(&sink->lock);
	return more;
}

/* What went wrong in writing, NULL for nothing. */
const char *
sink_error(const Sink *sink)
{
	return sink->error ? strerror(sink->error) : NULL;
}

void
sink_close(Sink *sink)
{
	if (close(sink->fd) != 0 && sink->error == 0)
		sink->error = errno;
}
