/*-------------------------------------------------------------------------
 * slow_fsync.c
 *		A stand-in for a slow disk: a server's fsync and fdatasync take longer.
 *
 * The server's own calls sleep for slow_fsync.delay before the real function runs,
 * whatever file it is.  It must be preloaded before libraries that time these
 * calls, which then time the sleep as well.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <unistd.h>

#include "fmgr.h"
#include "utils/guc.h"

#include "../common/call_slots.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

static int	delay_ms = 0;
static int	(*real_fsync) (int) = NULL;
static int	(*real_fdatasync) (int) = NULL;

/* In parts: a signal must not make it shorter. */
static void
be_slow(void)
{
	for (int i = 0; i < delay_ms; i++)
		usleep(1000);
}

static int
slow_fsync(int fd)
{
	be_slow();
	return real_fsync(fd);
}

static int
slow_fdatasync(int fd)
{
	be_slow();
	return real_fdatasync(fd);
}

void
_PG_init(void)
{
	CallSlot entries[] = {
		{"fsync", (void *) slow_fsync, (void **) &real_fsync, 0},
		{"fdatasync", (void *) slow_fdatasync, (void **) &real_fdatasync, 0},
	};

	DefineCustomIntVariable("slow_fsync.delay", "How much longer fsync takes.", NULL, &delay_ms,
							0, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	if (call_slots_replace(entries, lengthof(entries)) == 0)
		ereport(ERROR, (errmsg("slow_fsync: the server does not call fsync by a slot")));
}
