/*-------------------------------------------------------------------------
 * row_estimate.h
 *		From the timed calls of a plan node to the time of all its calls.
 *
 * Free of PostgreSQL: arrays in, numbers out.  All times are in ticks.
 *-------------------------------------------------------------------------
 */
#ifndef ROW_ESTIMATE_H
#define ROW_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * What lies between two timed calls, and the timed call that ends it; or, once
 * there are many, several of these in a row.
 *
 * The node was called `untimed` times in `gap` ticks, which hold as many times
 * outside of it.  Then it was timed for `inside`, and what followed until its
 * next call took `outside`.
 */
typedef struct RowGap
{
	float		inside;
	float		outside;
	float		gap;
	uint32_t	untimed;
	uint32_t	timed;
} RowGap;

/* Untimed calls up to one that returned nothing, when the clock was read. */
typedef struct RowEnd
{
	float		gap;
	uint32_t	untimed;
} RowEnd;

typedef struct RowTimes
{
	uint64_t	timed;			/* calls timed, sampled or not */
	double		known;			/* what they took */
	const RowGap *gaps;
	int			ngaps;
	const RowEnd *ends;
	int			nends;
	uint64_t	tail;			/* untimed calls whose end nobody saw */
	double		tail_most;		/* and what they can have taken at most */
} RowTimes;

typedef struct RowEstimate
{
	double		time;
	double		variance;
	double		least;			/* what is known for certain */
	double		most;
	double		quantile;		/* half an interval's width in standard errors */
} RowEstimate;

extern RowEstimate row_estimate(const RowTimes *times);

static inline double
least_of(double a, double b)
{
	return a < b ? a : b;
}

static inline double
most_of(double a, double b)
{
	return a > b ? a : b;
}

/* A part of a whole that is the sum of its parts and of something not negative */
typedef struct RowShare
{
	int			whole;			/* its index, lower than our own; -1: none */
	bool		summed;			/* counts towards the sum; else it is only no larger */
	bool		apart;			/* not even that: it may go on when the whole has ended */
	RowEstimate of;
} RowShare;

extern void row_reconcile(RowShare *shares, int n, double most);
extern double row_low(const RowEstimate *of);
extern double row_high(const RowEstimate *of);

#endif							/* ROW_ESTIMATE_H */
