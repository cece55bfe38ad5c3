/*-------------------------------------------------------------------------
 * wrapped_calls.c
 *		The libc calls in which the server waits, taken over.
 *
 * A wrapper calls through at once unless the server has announced a wait and
 * this process captures.  It may not allocate, lock, log or throw, it may be
 * entered again by a signal handler, and it keeps errno.
 *
 * Aliases come from building with _FILE_OFFSET_BITS or _FORTIFY_SOURCE.  A name
 * that a server does not call has no slot, and costs nothing.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"

#include "waits.h"
#include "wrap.h"

struct sembuf;
struct io_uring;
struct io_uring_cqe;
struct __kernel_timespec;

bool		calls_hooks = true;

/*
 * Whether this wait, of one of RESTING_CLASSES, is one for something to do.
 *
 * Of a client, a session waits between its statements; within one, for the rows of a
 * COPY, to send its answer, or for another server (CREATE SUBSCRIPTION), the client keeps
 * the statement waiting.  Senders and receivers of WAL wait for each other.  Pauses pace a
 * process of the background; a VACUUM that a client sent is longer by them.  Background
 * workers of extensions wait for their next turn outside of transactions.
 */
bool
wrap_rests(uint32 event)
{
	switch (event)
	{
		case WAIT_EVENT_CLIENT_READ:
		case WAIT_EVENT_VACUUM_DELAY:
			return debug_query_string == NULL;
		case WAIT_EVENT_CLIENT_WRITE:
			return false;
		case WAIT_EVENT_CHECKPOINT_WRITE_DELAY:
		case WAIT_EVENT_RECOVERY_APPLY_DELAY:
		case WAIT_EVENT_RECOVERY_RETRIEVE_RETRY_INTERVAL:
		case WAIT_EVENT_BASE_BACKUP_THROTTLE:
			return true;
	}
	if (WAIT_CLASS(event) == CLASS_CLIENT)
		return MyBackendType != B_BACKEND || debug_query_string == NULL;
	return (WAIT_CLASS(event) == CLASS_EXTENSION && MyBackendType == B_BG_WORKER &&
			!IsTransactionState());
}

/*
 * Called before a wait that can last.  A process that grants a lock clears the time since
 * which we wait for it, so that is looked at now.
 */
void
wrap_before_lasting(uint32 event)
{
	/* the one place in a wrapper where memory is had: a process idles in its main loop */
	if (WAIT_CLASS(event) == CLASS_ACTIVITY)
		ring_follow_level();
	if (WAIT_CLASS(event) == CLASS_LOCK && MyProc)
		capture.lock_now = pg_atomic_read_u64(&MyProc->waitStart);
	/* perhaps the same wait goes on after a signal */
	if (capture.last_interrupted && capture.slot->npending > 0 &&
		capture.slot->pending[capture.slot->npending - 1].event == event)
		return;
	capture_fold();
}

/* Latches, sockets, sleeping */
WRAP(CALL_EPOLL_WAIT, int, epoll_wait,
	 (int fd, struct epoll_event *events, int n, int timeout),
	 (fd, events, n, timeout), BY_ERRNO)
WRAP(CALL_OTHER, int, poll, (struct pollfd *fds, nfds_t n, int timeout),
	 (fds, n, timeout), BY_ERRNO)
WRAP(CALL_OTHER, int, __poll_chk, (struct pollfd *fds, nfds_t n, int timeout, size_t size),
	 (fds, n, timeout, size), BY_ERRNO)
WRAP(CALL_OTHER, int, select,
	 (int n, fd_set *r, fd_set *w, fd_set *x, struct timeval *timeout),
	 (n, r, w, x, timeout), BY_ERRNO)
WRAP(CALL_OTHER, int, nanosleep, (const struct timespec *request, struct timespec *remain),
	 (request, remain), BY_ERRNO)
WRAP(CALL_OTHER, int, clock_nanosleep,
	 (clockid_t id, int flags, const struct timespec *request, struct timespec *remain),
	 (id, flags, request, remain), BY_RESULT)

/* Semaphores */
#define LOOK_AROUND \
	if (unlikely(same_wait_watched) && WAIT_CLASS(event) == CLASS_LWLOCK) \
		same_wait_ended(event, start)

WRAP_THEN(CALL_SEM_WAIT, int, sem_wait, (void *semaphore), (semaphore), BY_ERRNO, LOOK_AROUND)
WRAP_THEN(CALL_SEM_WAIT, int, semop, (int id, struct sembuf *operations, size_t n),
		  (id, operations, n), BY_ERRNO, LOOK_AROUND)

/* Reading */
WRAP(CALL_READ, ssize_t, read, (int fd, void *buffer, size_t n), (fd, buffer, n), BY_ERRNO)
WRAP(CALL_READ, ssize_t, __read_chk, (int fd, void *buffer, size_t n, size_t size),
	 (fd, buffer, n, size), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, pread, (int fd, void *buffer, size_t n, off_t at),
	 (fd, buffer, n, at), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, pread64, (int fd, void *buffer, size_t n, off_t at),
	 (fd, buffer, n, at), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, __pread_chk, (int fd, void *buffer, size_t n, off_t at, size_t size),
	 (fd, buffer, n, at, size), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, __pread64_chk, (int fd, void *buffer, size_t n, off_t at, size_t size),
	 (fd, buffer, n, at, size), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t at),
	 (fd, v, n, at), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, preadv64, (int fd, const struct iovec *v, int n, off_t at),
	 (fd, v, n, at), BY_ERRNO)
WRAP(CALL_OTHER, char *, fgets, (char *buffer, int n, FILE *file), (buffer, n, file), false)
WRAP(CALL_OTHER, char *, __fgets_chk, (char *buffer, size_t size, int n, FILE *file),
	 (buffer, size, n, file), false)

/* Writing */
WRAP(CALL_OTHER, ssize_t, write, (int fd, const void *buffer, size_t n),
	 (fd, buffer, n), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, pwrite, (int fd, const void *buffer, size_t n, off_t at),
	 (fd, buffer, n, at), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, pwrite64, (int fd, const void *buffer, size_t n, off_t at),
	 (fd, buffer, n, at), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at),
	 (fd, v, n, at), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off_t at),
	 (fd, v, n, at), BY_ERRNO)
WRAP(CALL_OTHER, ssize_t, copy_file_range,
	 (int from, off_t *from_at, int to, off_t *to_at, size_t n, unsigned flags),
	 (from, from_at, to, to_at, n, flags), BY_ERRNO)

/* Making it durable */
WRAP(CALL_OTHER, int, fsync, (int fd), (fd), BY_ERRNO)
WRAP(CALL_OTHER, int, fdatasync, (int fd), (fd), BY_ERRNO)
WRAP(CALL_OTHER, int, syncfs, (int fd), (fd), BY_ERRNO)
WRAP(CALL_OTHER, int, sync_file_range, (int fd, off_t at, off_t n, unsigned flags),
	 (fd, at, n, flags), BY_ERRNO)
WRAP(CALL_OTHER, int, msync, (void *address, size_t n, int flags), (address, n, flags), BY_ERRNO)

/* Room and names */
WRAP(CALL_OTHER, int, posix_fadvise, (int fd, off_t at, off_t n, int advice),
	 (fd, at, n, advice), BY_RESULT)
WRAP(CALL_OTHER, int, posix_fadvise64, (int fd, off_t at, off_t n, int advice),
	 (fd, at, n, advice), BY_RESULT)
WRAP(CALL_OTHER, int, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n), BY_RESULT)
WRAP(CALL_OTHER, int, posix_fallocate64, (int fd, off_t at, off_t n), (fd, at, n), BY_RESULT)
WRAP(CALL_OTHER, int, ftruncate, (int fd, off_t n), (fd, n), BY_ERRNO)
WRAP(CALL_OTHER, int, ftruncate64, (int fd, off_t n), (fd, n), BY_ERRNO)
WRAP(CALL_OTHER, int, truncate, (const char *path, off_t n), (path, n), BY_ERRNO)
WRAP(CALL_OTHER, int, truncate64, (const char *path, off_t n), (path, n), BY_ERRNO)
WRAP(CALL_OTHER, int, rename, (const char *from, const char *to), (from, to), false)

/* Commands of the archiver and of recovery */
WRAP(CALL_OTHER, int, system, (const char *command), (command), false)

/* Asynchronous I/O, if the server was built with liburing; it returns its error */
WRAP(CALL_OTHER, int, io_uring_submit, (struct io_uring *ring), (ring), result == -EINTR)
WRAP(CALL_OTHER, int, io_uring_wait_cqes,
	 (struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
	  struct __kernel_timespec *timeout, sigset_t *mask),
	 (ring, cqe, n, timeout, mask), result == -EINTR)

/* open() takes its mode only if it makes a file */
#define WRAP_OPEN(name) \
static int	(*real_##name) (const char *path, int flags, ...) = NULL; \
static int \
wait_##name(const char *path, int flags, ...) \
{ \
	uint32		event = *(volatile uint32 *) my_wait_event_info; \
	mode_t		mode = 0; \
	int			result; \
	int64		start; \
\
	if (flags & (O_CREAT | O_TMPFILE)) \
	{ \
		va_list		rest; \
\
		va_start(rest, flags); \
		mode = va_arg(rest, mode_t); \
		va_end(rest); \
	} \
	if (!wrap_wanted(event)) \
		return real_##name(path, flags, mode); \
	event = wrap_marked(event); \
	start = wrap_begin(event, CALL_OTHER); \
	result = real_##name(path, flags, mode); \
	wrap_end(event, start, CALL_OTHER, BY_ERRNO); \
	return result; \
}

WRAP_OPEN(open)
WRAP_OPEN(open64)

#define ENTRY(name) {#name, (void *) wait_##name, (void **) &real_##name, 0}

CallSlot	calls_taken[] = {
	ENTRY(epoll_wait), ENTRY(poll), ENTRY(__poll_chk), ENTRY(select), ENTRY(nanosleep),
	ENTRY(clock_nanosleep), ENTRY(sem_wait), ENTRY(semop), ENTRY(read), ENTRY(__read_chk),
	ENTRY(pread), ENTRY(pread64), ENTRY(__pread_chk), ENTRY(__pread64_chk), ENTRY(preadv),
	ENTRY(preadv64), ENTRY(fgets), ENTRY(__fgets_chk), ENTRY(write), ENTRY(pwrite),
	ENTRY(pwrite64), ENTRY(pwritev), ENTRY(pwritev64), ENTRY(copy_file_range), ENTRY(fsync),
	ENTRY(fdatasync), ENTRY(syncfs), ENTRY(sync_file_range), ENTRY(msync),
	ENTRY(posix_fadvise), ENTRY(posix_fadvise64), ENTRY(posix_fallocate),
	ENTRY(posix_fallocate64), ENTRY(ftruncate), ENTRY(ftruncate64), ENTRY(truncate),
	ENTRY(truncate64), ENTRY(rename), ENTRY(system), ENTRY(io_uring_submit),
	ENTRY(io_uring_wait_cqes), ENTRY(open), ENTRY(open64),
};

const int	calls_ntaken = lengthof(calls_taken);

void
calls_install(void)
{
	call_slots_replace(calls_taken, lengthof(calls_taken));
	if (call_slots_problem())
		ereport(process_shared_preload_libraries_in_progress ? WARNING : LOG,
				(errmsg("wait_event_timing: %s", call_slots_problem()),
				 errhint("Let the server's processes call mprotect with PROT_WRITE and with "
						 "PROT_READ, and restart the server.")));
}

/* Called when the library is loaded; calls_install() follows if "calls_hooks" says so. */
void
calls_init(void)
{
	DefineCustomBoolVariable("wait_event_timing.hooks",
							 "Takes over the server's calls of libc when the library is loaded.",
							 "When off, the library is loaded and does nothing.",
							 &calls_hooks, true,
							 process_shared_preload_libraries_in_progress ? PGC_POSTMASTER : PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
}
