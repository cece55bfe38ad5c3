/*-------------------------------------------------------------------------
 * ring_memory.c
 *		How much dynamic shared memory the rings of all modules take together.
 *-------------------------------------------------------------------------
 */
#include "ring_memory.h"

#include <limits.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/dsm_impl.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"

#include "module_shmem.h"

#define NAME "pgtare ring memory 1"

/* Of the setting: a share of the volume */
#define SHARE (-1)

/* The share of rings, and how much of it those take that are only kept to be read */
#define SHARE_OF_VOLUME 8
#define SHARE_OF_HALF_OF_MEMORY 8
#define SHARE_OF_KEPT 2

/* The share of what a module takes that sessions load */
#define SHARE_OF_SEGMENT 4

/* A ring takes at most so much of what is left, so that there is some for the next */
#define SHARE_OF_LEFT 4

/* What rings leave free on the volume: half of it, but no more than this */
#define LARGEST_RESERVE ((uint64) 1024 * 1024 * 1024)

typedef struct RingMemory
{
	pg_atomic_uint64 used;		/* bytes in all rings and copies */
	pg_atomic_uint64 kept;		/* of them, in those to which nobody writes any more */
} RingMemory;

typedef struct Volume
{
	uint64		size;
	uint64		free;
} Volume;

static RingMemory *memory = NULL;
static int	limit_kb = SHARE;
static const char *setting = "";
static uint64 taken = 0;		/* counted for what is being made */
static shmem_request_hook_type previous_request;
static shmem_startup_hook_type previous_startup;

static void
request_memory(void)
{
	if (previous_request)
		previous_request();
	RequestAddinShmemSpace(CACHELINEALIGN(sizeof(RingMemory)));
}

/* The counters, made by the first module that comes.  The server leaves some room for late ones. */
static void
find_or_make(void *unused)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	memory = ShmemInitStruct(NAME, sizeof(RingMemory), &found);
	if (!found)
	{
		pg_atomic_init_u64(&memory->used, 0);
		pg_atomic_init_u64(&memory->kept, 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

static void
create_in_main_segment(void)
{
	if (previous_startup)
		previous_startup();
	find_or_make(NULL);
}

static void
not_found(void *module, const char *cause)
{
	memory = NULL;
	/* the leader has been told */
	if (!IsParallelWorker())
		ereport(WARNING,
				(errmsg("%s cannot trace this session: %s", (const char *) module, cause)));
}

void
ring_memory_init(const char *module)
{
	if (process_shared_preload_libraries_in_progress)
	{
		previous_request = shmem_request_hook;
		shmem_request_hook = request_memory;
		previous_startup = shmem_startup_hook;
		shmem_startup_hook = create_in_main_segment;
	}
	else if (MyProc != NULL && IsTransactionState())
		module_try(module, find_or_make, not_found, unconstify(char *, module));
}

void
ring_memory_define(const char *name, const char *about)
{
	setting = name;
	DefineCustomIntVariable(name, about, "-1: an eighth of the volume for dynamic shared memory.",
							&limit_kb, SHARE, SHARE, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
}

/* Half of the machine's memory: that much a volume in memory has, unless somebody limits it. */
static uint64
half_of_memory(void)
{
	return (uint64) sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 2;
}

/* Where dynamic segments are; what has no limit of its own is limited by memory alone. */
static Volume
volume_now(void)
{
	Volume		volume = {half_of_memory(), PG_UINT64_MAX};
	struct statvfs found;
	const char *path = dynamic_shared_memory_type == DSM_IMPL_POSIX ? "/dev/shm" :
		dynamic_shared_memory_type == DSM_IMPL_MMAP ? PG_DYNSHMEM_DIR : NULL;

	if (path != NULL && statvfs(path, &found) == 0 && found.f_blocks > 0)
	{
		volume.size = (uint64) found.f_blocks * found.f_frsize;
		volume.free = (uint64) found.f_bavail * found.f_frsize;
	}
	return volume;
}

/* What rings leave free on the volume */
static uint64
reserve_on(Volume volume)
{
	return Min(volume.size / 2, LARGEST_RESERVE);
}

static uint64
limit_on(Volume volume)
{
	if (limit_kb != SHARE)
		return (uint64) limit_kb * 1024;
	return Min(volume.size / SHARE_OF_VOLUME, half_of_memory() / SHARE_OF_HALF_OF_MEMORY);
}

/* How much there is for another, by the reserve and by the limit */
static uint64
above_reserve(Volume volume)
{
	return volume.free > reserve_on(volume) ? volume.free - reserve_on(volume) : 0;
}

static uint64
below_limit(uint64 limit, uint64 used)
{
	return limit > used ? limit - used : 0;
}

uint64
ring_memory_of(Size bytes)
{
	return TYPEALIGN64(sysconf(_SC_PAGESIZE), bytes);
}

/* 0: there is no room, and nothing is counted. */
static uint64
count_ring(Size header, uint64 wanted, uint64 least)
{
	Volume		volume = volume_now();
	uint64		limit = limit_on(volume);
	uint64		used;

	if (memory == NULL)
		return 0;
	used = pg_atomic_read_u64(&memory->used);
	for (;;)
	{
		uint64		room = Min(below_limit(limit, used) / SHARE_OF_LEFT, above_reserve(volume));
		uint64		size = wanted;

		while (size >= least && ring_memory_of(header + size) > room)
			size /= 2;
		if (size < least)
			return 0;
		if (pg_atomic_compare_exchange_u64(&memory->used, &used,
										   used + ring_memory_of(header + size)))
			return size;
	}
}

/* An error that says why there is no room */
static void __attribute__((noreturn))
refuse(void)
{
	Volume		volume = volume_now();
	uint64		limit = limit_on(volume);
	uint64		used;

	if (memory == NULL)
		elog(ERROR, "memory of traces is not counted");
	used = pg_atomic_read_u64(&memory->used);
	if (above_reserve(volume) < below_limit(limit, used) / SHARE_OF_LEFT)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("of %llu kB of dynamic shared memory only %llu kB are free",
						(unsigned long long) volume.size / 1024,
						(unsigned long long) volume.free / 1024)));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("traces take %llu kB of the %llu kB that \"%s\" allows",
					(unsigned long long) used / 1024, (unsigned long long) limit / 1024,
					setting)));
}

uint64
ring_memory_take(Size header, uint64 wanted, uint64 least, bool (*make_way) (void))
{
	uint64		size;

	while ((size = count_ring(header, wanted, least)) == 0)
		if (!make_way())
			refuse();
	taken = ring_memory_of(header + size);
	return size;
}

uint64
ring_memory_taken(void)
{
	uint64		bytes = taken;

	taken = 0;
	return bytes;
}

void
ring_memory_give_back(uint64 bytes)
{
	if (memory != NULL)
		pg_atomic_fetch_sub_u64(&memory->used, (int64) bytes);
}

/*
 * A segment out of the region of min_dynamic_shared_memory has an odd handle
 * (dsm.c).  That region stays the server's whatever uses it, and may be in huge
 * pages, of which there may be no others: it is left alone.
 */
static bool
is_reserved(dsm_segment *segment)
{
	return (dsm_segment_handle(segment) & 1) != 0;
}

/*
 * A reader behind "used" would have memory taken for that again and, if there
 * is none, get a signal that ends the server.  So a reader must not, and not one
 * that began while the ring was written either: then this is no ring in which
 * records were overwritten, as such readers may still be where the oldest were.
 */
uint64
ring_memory_shrink(dsm_segment *segment, Size used)
{
	char	   *start = dsm_segment_address(segment);
	uint64		whole = ring_memory_of(dsm_segment_map_length(segment));
	uint64		rest = ring_memory_of(used);

	if (is_reserved(segment) || rest >= whole ||
		madvise(start + rest, whole - rest, MADV_REMOVE) != 0)
		return whole;
	ring_memory_give_back(whole - rest);
	return rest;
}

uint64
ring_memory_for_kept(void)
{
	Volume		volume = volume_now();

	return volume.free < reserve_on(volume) ? 0 : limit_on(volume) / SHARE_OF_KEPT;
}

bool
ring_memory_keep(uint64 for_kept, uint64 bytes)
{
	uint64		kept;

	if (memory == NULL)
		return false;
	kept = pg_atomic_read_u64(&memory->kept);
	do
	{
		if (kept + bytes > for_kept)
			return false;
	} while (!pg_atomic_compare_exchange_u64(&memory->kept, &kept, kept + bytes));
	return true;
}

static bool
count_copy(uint64 bytes)
{
	Volume		volume = volume_now();
	uint64		limit = limit_on(volume);

	if (above_reserve(volume) < bytes ||
		!ring_memory_keep(limit / SHARE_OF_KEPT, bytes))
		return false;
	if (pg_atomic_add_fetch_u64(&memory->used, (int64) bytes) <= limit)
		return true;
	ring_memory_forget(bytes);
	return false;
}

void
ring_memory_take_copy(uint64 bytes, bool (*make_way) (void))
{
	bool		possible = bytes <= limit_on(volume_now()) / SHARE_OF_KEPT;

	while (!possible || !count_copy(bytes))
		if (!possible || !make_way())
			refuse();
	taken = bytes;
}

void
ring_memory_forget(uint64 bytes)
{
	if (memory == NULL)
		return;
	pg_atomic_fetch_sub_u64(&memory->kept, (int64) bytes);
	ring_memory_give_back(bytes);
}

uint64
ring_memory_segment(void)
{
	return volume_now().size / SHARE_OF_SEGMENT;
}
