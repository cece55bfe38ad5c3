/*-------------------------------------------------------------------------
 * wrap.h
 *		A wrapper around a call, which times it while a wait is announced.
 *-------------------------------------------------------------------------
 */
#ifndef WRAP_H
#define WRAP_H

#include <errno.h>

#include "waits.h"

/* Classes of waits of which some hold nothing up */
#define RESTING_CLASSES ((1u << CLASS_CLIENT) | (1u << CLASS_EXTENSION) | (1u << CLASS_TIMEOUT))

/* Classes of waits that can last: nothing may stay unseen behind them */
#define LASTING_CLASSES \
	((1u << CLASS_LOCK) | (1u << CLASS_BUFFERPIN) | (1u << CLASS_ACTIVITY) | \
	 (1u << CLASS_EXTENSION) | (1u << CLASS_TIMEOUT))

#pragma GCC visibility push(hidden)
extern void wrap_before_lasting(uint32 event);
extern bool wrap_rests(uint32 event);
#pragma GCC visibility pop

static inline bool
wrap_wanted(uint32 event)
{
	return event != 0 &&
		pg_atomic_read_u32(capture.level) != CAPTURE_OFF &&
		(likely(capture.slot != NULL) || slot_attach());
}

/* The event as the tables know it */
static inline uint32
wrap_marked(uint32 event)
{
	return unlikely(RESTING_CLASSES & (1u << (WAIT_CLASS(event) & 31))) && wrap_rests(event) ?
		event | RESTING : event;
}

static inline int64
wrap_begin(uint32 event, CallKind kind)
{
	Slot	   *slot = capture.slot;
	int64		start;

	if (LASTING_CLASSES & (1u << (WAIT_CLASS(event) & 31)))
	{
		/* the read of the signal descriptor belongs to the wait before it */
		if (kind != CALL_READ)
			wrap_before_lasting(event);
		if (WAIT_CLASS(event) == CLASS_LOCK)
			return capture_begin_lock(event);
	}
	start = clock_source_read(capture.clock);
	if (unlikely(pg_atomic_read_u64(&slot->timed_since) == 0))
		pg_atomic_write_u64(&slot->timed_since, (uint64) start);
	slot->current_start = start;
	/* a reader that sees the event must see its start */
	pg_write_barrier();
	slot->current_event = event;
	return start;
}

/* The slot may be gone: a handler can end the process from within. */
static inline void
wrap_end(uint32 event, int64 start, CallKind kind, bool interrupted)
{
	int64		now = clock_source_read(capture.clock);
	Slot	   *slot = capture.slot;

	if (likely(slot != NULL))
	{
		/* a reader between these stores would see the wait nowhere, or twice */
		slot->turns++;
		pg_write_barrier();
		slot->current_event = 0;
		capture_record(event, start, now, kind, interrupted);
		if (unlikely(pg_atomic_read_u64(&slot->timed_since) == 0))
			timing_add_wait(start, now);
		else if (unlikely(pg_atomic_read_u32(&slot->level) == CAPTURE_OFF))
			timing_stop(slot, shmem_get(), now);
		pg_write_barrier();
		slot->turns++;
	}
}

#define WRAP(kind, type, name, parameters, arguments, interrupted) \
	WRAP_THEN(kind, type, name, parameters, arguments, interrupted, (void) 0)

/* "then": what else is done after the wait */
#define WRAP_THEN(kind, type, name, parameters, arguments, interrupted, then) \
static type (*real_##name) parameters = NULL; \
static type \
wait_##name parameters \
{ \
	uint32		event = *(volatile uint32 *) my_wait_event_info; \
	type		result; \
	int64		start; \
\
	if (!wrap_wanted(event)) \
		return real_##name arguments; \
	event = wrap_marked(event); \
	start = wrap_begin(event, kind); \
	result = real_##name arguments; \
	wrap_end(event, start, kind, interrupted); \
	then; \
	return result; \
}

#define BY_ERRNO (result < 0 && errno == EINTR)
#define BY_RESULT (result == EINTR)

#endif							/* WRAP_H */
