/*-------------------------------------------------------------------------
 * worker_rings.c
 *		Which rings the background worker reads, and when.
 *
 * A ring is mapped from when it is first seen until it has been read to its
 * end, so what a session wrote last is not lost with it.  It is read when a
 * quarter of it is new, or a second has gone by: blocks are large if there
 * is much, and little is lost if the machine dies.
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "utils/memutils.h"

#include "../../common/guarded.h"
#include "../../common/lately.h"

#define READ_INTERVAL_US USECS_PER_SEC

void
rings_begin(Recording *recording)
{
	Shared	   *shared = shmem_get();

	LWLockAcquire(&shared->lock, LW_SHARED);
	recording->unread = recording->unread_before = shared->unread;
	LWLockRelease(&shared->lock);
	recording->buffer = MemoryContextAlloc(TopMemoryContext, WORKER_CHUNK);
}

/* We read it no more: what is unread of it now remains so. */
static void
unmap(Drained *ring)
{
	if (ring->mapped.ring && !ring->waits)
	{
		Ring	   *shared = ring->mapped.ring;

		pg_atomic_fetch_sub_u32(&shared->held, 1);
		ended_read(shmem_get(), ring->handle, shared);
	}
	ring_place_unmap(&ring->mapped);
}

/* How much of all of them has not been written */
Unwritten
rings_unwritten(const Recording *recording)
{
	Unwritten	sum = {0};

	for (int i = 0; i < recording->nrings; i++)
		if (recording->rings[i].mapped.ring)
		{
			Unwritten	of = tables_count_unwritten(recording, &recording->rings[i]);

			sum.rings += of.rings;
			sum.bytes += of.bytes;
			sum.waits += of.waits;
		}
	return sum;
}

/* Have all of them read by others, as we end. */
void
rings_let_go(Recording *recording)
{
	for (int i = 0; i < recording->nrings; i++)
		unmap(&recording->rings[i]);
	recording->nrings = 0;
}

void
rings_end(Recording *recording)
{
	rings_let_go(recording);
	if (recording->rings)
		pfree(recording->rings);
	pfree(recording->buffer);
}

/* One in the area has another handle when it has grown. */
static Drained *
find(Recording *recording, bool waits, int pid, RingHandle handle, TimestampTz started)
{
	for (int i = 0; i < recording->nrings; i++)
	{
		Drained    *ring = &recording->rings[i];

		if (ring->started == started &&
			(ring->handle == handle ||
			 ((ring->handle & handle & RING_IN_AREA) != 0 && ring->pid == pid &&
			  ring->waits == waits)))
			return ring;
	}
	return NULL;
}

static void
map(void *argument)
{
	Drained    *ring = argument;

	ring->mapped = ring_place_map(ring->handle, true);
	if (ring->mapped.ring && !ring->waits)
		pg_atomic_fetch_add_u32(&((Ring *) ring->mapped.ring)->held, 1);
}

/* Others can still be read. */
static void
report_not_mapped(void *argument, const char *cause)
{
	ereport(LOG, (errmsg("sql_trace cannot read the trace of a session: %s", cause)));
}

/* A ring that is in shared memory, known or new; NULL: it is of no interest. */
static Drained *
meet(Recording *recording, bool waits, int pid, RingHandle handle, TimestampTz started,
	 TimestampTz ended)
{
	Drained    *ring = find(recording, waits, pid, handle, started);

	if (ring == NULL)
	{
		if (ended != 0 && ended < recording->began)
			return NULL;
		if (recording->nrings == recording->room)
		{
			Size		size = sizeof(Drained) * (recording->room + 64);

			recording->rings = recording->rings ? repalloc(recording->rings, size) :
				MemoryContextAlloc(TopMemoryContext, size);
			recording->room += 64;
		}
		ring = &recording->rings[recording->nrings++];
		memset(ring, 0, sizeof(*ring));
		ring->handle = handle;
		ring->started = started;
		ring->waits = waits;
		ring->number = ++recording->rings_ever;
		(void) guarded_run("sql_trace", map, report_not_mapped, ring);
	}
	else if (ring->handle != handle)
	{
		unmap(ring);
		ring->handle = handle;
		(void) guarded_run("sql_trace", map, report_not_mapped, ring);
	}
	ring->seen = true;
	ring->ended = ended != 0;
	return ring;
}

/* Is a quarter of it new? */
static bool
is_urgent(const Drained *ring)
{
	Ring	   *shared = ring->mapped.ring;

	if (ring->waits)
		return tables_waits_offer()->urgent(shared, ring->position);
	return pg_atomic_read_u64(&shared->head) - ring->position >= shared->size / 4;
}

static void
drain(Recording *recording, Drained *ring, TimestampTz now)
{
	bool		ends = ring_ended(ring);

	if (!lately(ring->read_at, now, READ_INTERVAL_US) && ring->described && !ends)
		tables_write_processor(recording, ring);
	if (ring->waits)
		tables_write_waits(recording, ring);
	else
		tables_write_calls(recording, ring);
	ring->read_at = now;
	/* all of it has been read, as nobody writes any more */
	if (ends && recording->file.stop == STOP_NONE)
		unmap(ring);
}

static void
look_at_calls(Recording *recording)
{
	Shared	   *shared = shmem_get();

	for (uint32 i = 0; i < shared->nslots + MAX_ENDED; i++)
	{
		TraceEntry *at = i < shared->nslots ? &shmem_slot(shared, i)->trace :
			&shared->ended[i - shared->nslots];
		TraceEntry	entry;
		Drained    *ring;

		if (at->handle == 0)
			continue;			/* most are free */
		LWLockAcquire(&shared->lock, LW_SHARED);
		entry = *at;
		LWLockRelease(&shared->lock);
		/* what only the recorder keeps is for those who ask for it */
		ring = entry.handle == 0 || entry.reason == REASON_RECORDER ? NULL :
			meet(recording, false, entry.pid, entry.handle, entry.started, entry.ended);
		if (ring == NULL || ring->pid != 0)
			continue;
		ring->pid = entry.pid;
		strlcpy(ring->application, entry.application, sizeof(ring->application));
		if (ring->mapped.ring)
		{
			const Ring *there = ring->mapped.ring;

			strlcpy(ring->user, there->session.role_name, sizeof(ring->user));
			strlcpy(ring->database, there->session.database_name, sizeof(ring->database));
		}
	}
}

/* The traced session that a process is, or works for */
static const Drained *
session_of(const Recording *recording, const WaitRing *waits)
{
	for (int i = recording->nrings - 1; i >= 0; i--)
	{
		const Drained *ring = &recording->rings[i];

		if (!ring->waits && ring->seen &&
			(ring->pid == waits->pid || ring->pid == waits->leader_pid))
			return ring;
	}
	return NULL;
}

static void
look_at_waits(Recording *recording)
{
	const WaitRingsOffer *offer = tables_waits_offer();
	WaitRing	waits;

	for (uint32 place = 0; offer && offer->look(place, &waits); place++)
	{
		const Drained *session = waits.handle != 0 ? session_of(recording, &waits) : NULL;
		int			of = session ? (int) (session - recording->rings) : -1;
		Drained    *ring = session ?
			meet(recording, true, waits.pid, waits.handle, waits.started, waits.ended) : NULL;

		if (ring == NULL || ring->pid != 0)
			continue;
		session = &recording->rings[of];	/* they may have moved */
		ring->pid = waits.pid;
		ring->leader_pid = waits.leader_pid;
		memcpy(ring->user, session->user, sizeof(ring->user));
		memcpy(ring->database, session->database, sizeof(ring->database));
		memcpy(ring->application, session->application, sizeof(ring->application));
	}
}

/* Those that are gone, and have been read */
static void
forget(Recording *recording)
{
	int			kept = 0;

	for (int i = 0; i < recording->nrings; i++)
		if (recording->rings[i].seen || recording->rings[i].mapped.ring)
			recording->rings[kept++] = recording->rings[i];
	recording->nrings = kept;
}

/*
 * Write what is new; "all": however little.  False: nothing more can be written,
 * for the reason that the file tells.
 */
bool
rings_look(Recording *recording, bool all)
{
	TraceFile  *file = &recording->file;
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < recording->nrings; i++)
		recording->rings[i].seen = false;
	look_at_calls(recording);
	look_at_waits(recording);
	recording->behind = false;
	if (file->fd < 0)
		(void) tables_write_head(recording);
	tables_write_unread(recording);
	for (int i = 0; i < recording->nrings && file->stop == STOP_NONE; i++)
	{
		Drained    *ring = &recording->rings[i];
		bool		urgent = ring->mapped.ring && !ring_ended(ring) && is_urgent(ring);

		recording->behind |= urgent;
		if (file->size >= recording->file_limit && !tables_write_head(recording))
			break;
		if (ring->mapped.ring && (all || urgent || ring_ended(ring) ||
							  !lately(ring->read_at, now, READ_INTERVAL_US)))
			drain(recording, ring, now);
	}
	forget(recording);
	return file->stop == STOP_NONE;
}
