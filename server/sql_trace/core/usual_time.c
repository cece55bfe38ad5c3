/*-------------------------------------------------------------------------
 * usual_time.c
 *		What requests of a statement usually take in this session.
 *
 * Of each statement the session remembers how long its last requests took.  The
 * usual time is what nine of ten of them did not exceed: one outlier moves that by a
 * rank at most, whatever it took, and a statement that has become slower has a new
 * usual time when a tenth of what is remembered is slow.
 *
 * The table is of a fixed size, so that nothing is allocated while a request is
 * answered; a process whose setting is off never touches it.  A statement that finds
 * no place takes that of the least used: each attempt costs those that are there a
 * use, so that many that come once do not drive out one that comes often.
 *-------------------------------------------------------------------------
 */
#include "kept.h"

#define REMEMBERED 32			/* requests of a statement */
#define SLOWEST 4				/* the usual time is that of this one from the slowest */
#define WAYS 4
#define SETS 32
#define MOST_USES 64

typedef struct UsualTime
{
	int64		query_id;		/* 0: the place is free */
	uint16		uses;
	uint16		next;			/* the place of the oldest, once all are taken */
	uint32		n;				/* remembered */
	uint32		us[REMEMBERED];
} UsualTime;

static UsualTime usual_times[SETS][WAYS];

static UsualTime *
begin(UsualTime *place, int64 query_id)
{
	memset(place, 0, sizeof(*place));
	place->query_id = query_id;
	place->uses = 1;
	return place;
}

/* The place of a statement, which may be new; NULL: it has none yet. */
static UsualTime *
place_of(int64 query_id)
{
	UsualTime  *set = usual_times[((uint64) query_id * UINT64CONST(0x9E3779B97F4A7C15)) >> 59];
	UsualTime  *least = &set[0];

	StaticAssertStmt(SETS == 1 << (64 - 59), "the set is the upper bits of the product");
	for (int i = 0; i < WAYS; i++)
	{
		if (set[i].query_id == query_id)
		{
			set[i].uses = Min(set[i].uses + 1, MOST_USES);
			return &set[i];
		}
		/* places are taken one after the other, and none becomes free again */
		if (set[i].query_id == 0)
			return begin(&set[i], query_id);
	}
	for (int i = 0; i < WAYS; i++)
	{
		if (set[i].uses > 0)
			set[i].uses--;
		if (set[i].uses < least->uses)
			least = &set[i];
	}
	/* it may have a use left: then the newcomer has to come again */
	return least->uses > 0 ? NULL : begin(least, query_id);
}

static uint32
usual_us(const UsualTime *of)
{
	uint32		slowest[SLOWEST] = {0};

	for (uint32 i = 0; i < of->n; i++)
	{
		uint32		us = of->us[i];

		for (int k = 0; k < SLOWEST; k++)
		{
			uint32		smaller = Min(us, slowest[k]);

			slowest[k] = Max(us, slowest[k]);
			us = smaller;
		}
	}
	return slowest[SLOWEST - 1];
}

/*
 * Remember how long a request of this statement took.  Returns what was usual until
 * now, in ns, or -1 if too few requests are known.  Also -1 for a request that took
 * less than "at_least", to save the time.
 */
int64
usual_time(int64 query_id, int64 ns, int64 at_least)
{
	UsualTime  *found = query_id != 0 ? place_of(query_id) : NULL;
	int64		usual = -1;

	if (found == NULL)
		return -1;
	if (ns >= at_least && found->n == REMEMBERED)
		usual = (int64) usual_us(found) * 1000;
	found->us[found->next] = (uint32) Min(Max(ns, 0) / 1000, PG_UINT32_MAX);
	found->next = (found->next + 1) % REMEMBERED;
	if (found->n < REMEMBERED)
		found->n++;
	return usual;
}
