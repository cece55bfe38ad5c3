/*-------------------------------------------------------------------------
 * row_usual.h
 *		What a plan node's samples tell of its usual calls, and of long ones.
 *-------------------------------------------------------------------------
 */
#ifndef ROW_USUAL_H
#define ROW_USUAL_H

#include "row_estimate.h"

/* Fewer samples tell no slope: the time inside is in proportion to the cycle's */
#define FEW 8

typedef struct Usual
{
	double		calls;			/* untimed, in sampled gaps */
	double		gap;			/* what these gaps took */
	double		cycle;			/* the usual time from call to call */
	double		inside;			/* mean of a call */
	double		outside;		/* mean until the next */
	double		slope;			/* of the time inside on that of the whole cycle */
	double		variance;		/* of the mean residual */
	double		residual;		/* variance of one call's */
	double		inside_variance;	/* of the mean time inside */
	double		slope_variance;
	double		cycle_variance; /* of the mean cycle */
	double		cycle_spread;	/* variance of one cycle */
	double		any;			/* mean cycle, long samples included */
	double		any_variance;	/* of that mean */
	double		any_spread;		/* variance of one such cycle */
	double		share;			/* of what is unusual, spent inside */
	double		share_variance; /* of that share over all of it */
	int			samples;
	int			longs;			/* of them, that are not usual */
} Usual;

extern Usual row_usual(const RowTimes *times);
extern int	usual_by_value(const void *a, const void *b);

static inline double
square(double x)
{
	return x * x;
}

/* What is left of the samples once their mean, and a slope, have been taken from them */
static inline int
usual_freedom(const Usual *u)
{
	return u->samples < FEW ? u->samples - 1 : u->samples - 2;
}

#endif							/* ROW_USUAL_H */
