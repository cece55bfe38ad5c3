/*-------------------------------------------------------------------------
 * kept.c
 *		Traces that are kept: copies of rings, and what their sessions waited for.
 *
 * The copy is made by the session itself, after the answer has left.  Its memory
 * counts among that of all rings that are kept only to be read.  If there is none,
 * traces of sessions that ended make way, but no other kept one does (kept_places.c).
 *-------------------------------------------------------------------------
 */
#include "kept.h"

#include "dictionary.h"
#include "../calls/secrets.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "../../common/guarded.h"
#include "../../common/pg_compat.h"
#include "../../common/ring_memory.h"
#include "../../common/zeroed.h"

/* Bytes of our ring that are looked into at once */
#define MOST_READ ((Size) 4 * 1024 * 1024)

/* The copy that this process is making */
static struct
{
	const Firing *trigger;
	KeptTrace  *place;			/* NULL: none */
	KeptTrace	made;
} making;

/* The incident in which the request under way waited; what the slot's last owner left is not ours. */
static int64
own_incident(const KeptShared *shared)
{
	const LockWatch *mine = &shared->watch[MY_PROC_NUMBER];

	return mine->pid == MyProcPid ? mine->incident : 0;
}

/* What our ring names and the dictionary has; it may not have it any more when the copy is read. */
static void
find_names(StringInfo names)
{
	Ring	   *ring = trace.ring;
	Size		room = Min(ring->size, MOST_READ);
	char	   *buffer = palloc(room);
	uint64		at = pg_atomic_read_u64(&ring->tail);

	while (at < pg_atomic_read_u64(&ring->head))
	{
		RingCopy	copy = ring_copy(ring, at, buffer, room);

		if (!copy.sound)
			break;
		names_find(copy.data, copy.size, names);
		at = copy.next;
	}
	pfree(buffer);
}

/*
 * Nobody else writes to our ring.  A position leads to the same place in what is
 * cut behind the last record, as long as none was overwritten.
 */
static void
copy_ring(void)
{
	const Ring *ring = trace.ring;
	Size		used = kept_copy_size(ring);
	StringInfoData names;
	dsm_segment *segment;
	Ring	   *copy;

	initStringInfo(&names);
	find_names(&names);
	ring_memory_take_copy(ring_memory_of(used + names.len), ended_make_way);
	segment = zeroed_segment(used + names.len);
	copy = dsm_segment_address(segment);
	memcpy(copy, ring, used);
	memcpy((char *) copy + used, names.data, names.len);
	making.made.names = (uint32) names.len;
	pfree(names.data);
	dsm_pin_segment(segment);
	making.made.trace.handle = dsm_segment_handle(segment);
	making.made.trace.memory = making.made.trace.ring_bytes = ring_memory_taken();
	dsm_detach(segment);
}

static void
make_copy(void *argument)
{
	KeptShared *shared = argument;

	making.place = kept_take_place(shared, making.trigger, &trace.slot->trace,
							  own_incident(shared), false);
	if (making.place == NULL)
		return;
	making.made = *making.place;
	making.made.is_copy = true;
	/* behind a pool one session serves applications in turn: the one whose request it was */
	strlcpy(making.made.trace.application, secrets_application(),
			sizeof(making.made.trace.application));
	copy_ring();
}

static void
copy_waits(void *argument)
{
	const WaitCopyOffer *offer = *find_rendezvous_variable(WAIT_COPY_OFFER);

	if (offer && !offer->copy(&making.made.waits, &making.made.waits_memory,
							  &making.made.waits_started))
		making.made.waits = 0;
}

/* Keep what the ring of this session holds.  It holds nothing, and its client has its answer. */
void
kept_copy(const Firing *trigger)
{
	KeptShared *shared = kept_get();

	if (shared == NULL)
		return;
	making.trigger = trigger;
	making.place = NULL;
	if (guarded_run("sql_trace cannot keep the trace of this session", make_copy, NULL, shared))
	{
		if (making.place == NULL)
			return;
		(void) guarded_run("sql_trace keeps the trace of this session without its waits",
						   copy_waits, NULL, NULL);
		kept_publish(shared, making.place, &making.made);
		return;
	}
	ring_memory_forget(ring_memory_taken());
	kept_give_up_place(shared, making.place);
}

/* Keep the ring of a session that ended for that, if there was room for it among those that did. */
bool
kept_session_ended(const Firing *trigger, RingHandle handle)
{
	KeptShared *shared = kept_get();
	KeptTrace	made = {.trigger = *trigger};
	KeptTrace  *place;

	if (shared == NULL)
		return false;
	if (!ended_hold(shmem_get(), handle, true, &made.trace))
	{
		kept_give_up_place(shared, NULL);
		return false;
	}
	made.incident = own_incident(shared);
	place = kept_take_place(shared, trigger, &made.trace, made.incident, false);
	if (place)
		kept_publish(shared, place, &made);
	else
		(void) ended_hold(shmem_get(), handle, false, NULL);
	return place != NULL;
}

/* A session begins a request in which waits for locks longer than this are of interest; -1: none. */
void
kept_watch_locks(int limit_ms)
{
	KeptShared *shared = kept_get();
	LockWatch  *mine;

	if (shared == NULL)
		return;
	mine = &shared->watch[MY_PROC_NUMBER];
	if (mine->pid != MyProcPid)
	{
		mine->incident = 0;
		mine->pid = MyProcPid;
	}
	/* each request of all sessions comes by: lines of the cache that they share are only read */
	if (mine->limit_ms != limit_ms)
		mine->limit_ms = limit_ms;
	if (limit_ms >= 0 && pg_atomic_read_u32(&shared->watches) == 0 &&
		pg_atomic_exchange_u32(&shared->watches, 1) == 0)
		kept_wake_keeper(shared);
}

/* A request has been answered: what it waited for belongs to it alone. */
void
kept_forget_incident(void)
{
	KeptShared *shared = kept_get();

	if (shared != NULL && shared->watch[MY_PROC_NUMBER].incident != 0)
		shared->watch[MY_PROC_NUMBER].incident = 0;
}

/*
 * This session is the victim of a deadlock with these.  It is reporting that error:
 * it may hold anything, and takes no lock.
 */
void
kept_deadlock(const int *others, int n)
{
	KeptShared *shared = kept_get();
	LockWatch  *mine;

	if (shared == NULL || n == 0)
		return;
	mine = &shared->watch[MY_PROC_NUMBER];
	/* of an earlier one the keeper does not know yet */
	if (pg_atomic_read_u32(&mine->nothers) != 0)
		return;
	if (mine->pid != MyProcPid)
	{
		mine->limit_ms = -1;
		mine->incident = 0;
		mine->pid = MyProcPid;
	}
	if (mine->incident == 0)
		mine->incident = (int64) pg_atomic_add_fetch_u64(&shared->last_incident, 1);
	mine->deadlock = mine->incident;
	memcpy(mine->others, others, n * sizeof(int));
	pg_write_barrier();
	pg_atomic_write_u32(&mine->nothers, (uint32) n);
	pg_write_barrier();
	pg_atomic_write_u32(&shared->deadlocks, 1);
	kept_wake_keeper(shared);
}

/*
 * What the ring of a session holds must be written to a file at once.  False: the
 * limits do not allow it; else kept_end_file() follows.
 */
bool
kept_begin_file(const Firing *trigger, const TraceEntry *of, int64 incident, KeptTrace *made)
{
	KeptShared *shared = kept_get();

	making.place = kept_take_place(shared, trigger, of, incident, true);
	if (making.place == NULL)
		return false;
	*made = *making.place;
	made->trace.handle = of->handle;
	made->is_live = true;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	made->id = ++shared->last_id;
	LWLockRelease(&shared->lock);
	return true;
}

/* "file": NULL, if it was not written */
void
kept_end_file(const KeptTrace *made, const char *file)
{
	KeptTrace	done = *made;

	if (file == NULL)
	{
		kept_give_up_place(kept_get(), making.place);
		return;
	}
	done.trace.handle = 0;
	done.is_live = false;
	strlcpy(done.file, file, sizeof(done.file));
	kept_publish(kept_get(), making.place, &done);
}
