/*-------------------------------------------------------------------------
 * stats.c
 *		Counters by event: of a process, and of all processes that ended.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "waits.h"

#define HASH_32(event) ((uint32) (event) * UINT32_C(0x9E3779B1))

static inline int
bucket_of(uint64 ns)
{
	return Min(pg_leftmost_one_pos64((ns >> (FIRST_BUCKET_BITS - 1)) | 1), HISTOGRAM_BUCKETS - 1);
}

/* Count one wait. */
void
stats_count(EventStats *stats, const Pending *wait, uint64 ns)
{
	stats->waits++;
	stats->calls += wait->calls;
	stats->total_ns += ns;
	if (ns > stats->max_ns)
		stats->max_ns = ns;
	stats->histogram[bucket_of(ns)]++;
}

void
stats_merge(EventStats *into, const EventStats *from)
{
	into->waits += from->waits;
	into->calls += from->calls;
	into->total_ns += from->total_ns;
	into->max_ns = Max(into->max_ns, from->max_ns);
	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		into->histogram[i] += from->histogram[i];
}

/* Entries beyond "nevents" are cleared when they are taken into use. */
void
stats_clear_slot(Slot *slot)
{
	slot->nevents = 0;
	memset(slot->index, 0, sizeof(slot->index));
	memset(&slot->events[SLOT_EVENTS - 1], 0, sizeof(EventStats));
	slot->overflows = slot->negative = slot->missed = slot->statements_missed = 0;
}

/* The entry of an event, or that of all events without room. */
EventStats *
stats_entry(Slot *slot, uint32 event)
{
	uint32		place = HASH_32(event) >> 24;
	EventStats *entry;

	for (;; place = (place + 1) % SLOT_INDEX)
	{
		uint8		number = slot->index[place];

		if (number == 0)
			break;
		entry = &slot->events[number - 1];
		if (entry->key == event)
			return entry;
	}
	if (slot->nevents == SLOT_EVENTS - 1)
	{
		return &slot->events[SLOT_EVENTS - 1];
	}
	entry = &slot->events[slot->nevents++];
	memset(entry, 0, sizeof(*entry));
	entry->key = event;
	slot->index[place] = (uint8) slot->nevents;
	return entry;
}

/* The entry of a table like that of the totals, made if need be, or that of all without room. */
EventStats *
stats_total_entry(EventStats *totals, int backend_type, uint32 event)
{
	uint64		key = ((uint64) (backend_type + 1) << 32) | event;
	uint32		place = HASH_32(event + backend_type) % TOTAL_EVENTS;

	for (int i = 0; i < TOTAL_EVENTS; i++, place = (place + 1) % TOTAL_EVENTS)
	{
		if (totals[place].key == 0)
			totals[place].key = key;
		if (totals[place].key == key)
			return &totals[place];
	}
	return &totals[TOTAL_EVENTS];
}

/* The caller holds the lock.  Counters that were to be reset are forgotten. */
void
stats_fold_into_totals(Shared *shared, const Slot *slot)
{
	shared->processes++;
	shared->records += slot->records;
	shared->timed_ns[TIMED_TYPE(slot->backend_type)] +=
		pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &slot->timed_ns));
	if (slot->reset_done != pg_atomic_read_u64((pg_atomic_uint64 *) &slot->reset_wanted))
		return;
	shared->overflows += slot->overflows;
	shared->negative += slot->negative;
	shared->missed += slot->missed;
	shared->statements_missed += slot->statements_missed;
	for (uint32 i = 0; i < SLOT_EVENTS; i++)
	{
		const EventStats *from = &slot->events[i];
		EventStats *into;

		if (i >= slot->nevents && i != SLOT_EVENTS - 1)
			continue;
		if (from->waits == 0)
			continue;
		into = stats_total_entry(shared->totals, slot->backend_type, (uint32) from->key);
		stats_merge(into, from);
		if (into == &shared->totals[TOTAL_EVENTS])
			shared->total_overflows += from->waits;
	}
}

/*
 * A consistent copy of a slot, empty if its counters are to be reset and its
 * owner has not got to it yet.  An owner that lost its processor in the midst of
 * a change is waited for, one that is stopped is not.
 */
SlotCopy
stats_copy_slot(Slot *from, Slot *to)
{
	for (int attempt = 1; attempt < 100 * 1000; attempt++)
	{
		uint32		before = pg_atomic_read_u32(&from->changes);
		uint32		nevents;

		if (attempt % 100 == 0)
			pg_usleep(1000);
		if (before & 1)
		{
			pg_spin_delay();
			continue;
		}
		pg_read_barrier();
		memcpy(to, from, offsetof(Slot, events));
		nevents = Min(to->nevents, SLOT_EVENTS - 1);
		memcpy(to->events, from->events, nevents * sizeof(EventStats));
		to->events[SLOT_EVENTS - 1] = from->events[SLOT_EVENTS - 1];
		pg_read_barrier();
		if (pg_atomic_read_u32(&from->changes) != before)
			continue;
		if (to->reset_done != pg_atomic_read_u64(&to->reset_wanted))
			stats_clear_slot(to);
		return to->pid != 0 ? SLOT_COPIED : SLOT_FREE;
	}
	return from->pid != 0 ? SLOT_BUSY : SLOT_FREE;
}
