/*-------------------------------------------------------------------------
 * wait_rings.h
 *		What wait_event_timing offers a module that writes traces to files: the
 *		rings of waits that there are, and what is in them.
 *
 * The offer is found by find_rendezvous_variable(WAIT_RINGS_OFFER); the name
 * carries the version of the structures.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_WAIT_RINGS_H
#define PGTARE_WAIT_RINGS_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "ring_place.h"

#define WAIT_RINGS_OFFER "wait_event_timing/rings/4"

typedef struct WaitRing
{
	int			pid;
	int			leader_pid;		/* of a parallel worker, or 0 */
	RingHandle	handle;			/* 0: there is no ring here */
	TimestampTz started;
} WaitRing;

typedef struct WaitRecord
{
	bool		wait;			/* else a mark between waits */
	int			kind;
	int			depth;
	uint32		event;
	uint32		calls;
	int64		start_ns;		/* since the ring began */
	int64		value;			/* of a wait: its length in ns */
} WaitRecord;

typedef struct WaitRingsOffer
{
	/* The ring at a place, counted from 0; false: there are no more places. */
	bool		(*look) (uint32 place, WaitRing *found);

	/*
	 * Records from number "from" on, "room" at most, of the ring that is mapped
	 * here; returns how many.  "next" is where to go on; "lost" were
	 * overwritten.
	 */
	uint32		(*read) (const void *ring, uint64 from, WaitRecord *records, uint32 room,
						 uint64 *next, uint64 *lost);
} WaitRingsOffer;

#endif							/* PGTARE_WAIT_RINGS_H */
