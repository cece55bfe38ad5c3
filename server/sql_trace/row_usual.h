/*-------------------------------------------------------------------------
 * row_usual.h
 *		What the samples of a node's calls tell of usual ones.
 *-------------------------------------------------------------------------
 */
#ifndef ROW_USUAL_H
#define ROW_USUAL_H

#include "row_estimate.h"

/* A sample is long from so many times the usual cycle */
#define LONG 8.0

/* Fewer samples than this are put together with the first calls */
#define FEW_SAMPLES 16

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
	double		cycle_variance; /* of the mean cycle */
	double		share;			/* of what is unusual, spent inside */
	double		share_variance; /* of that share over all of it */
	double		slope_variance; /* where samples are few */
	bool		few;
	int			samples;		/* that tell what is usual; if few, the first calls are among them */
	int			longs;			/* of them, that are not usual */
} Usual;

static inline bool
is_long(const RowGap *gap, double cycle)
{
	return (double) gap->inside + gap->outside > LONG * cycle * gap->timed;
}

/* row_estimate.c */
extern void row_tell_share(Usual *u, const RowTimes *times);

/* row_few.c */
extern Usual row_usual_of_few(const RowTimes *times);

#endif							/* ROW_USUAL_H */
