/*-------------------------------------------------------------------------
 * row_usual.c
 *		What a plan node's samples tell of its usual calls, and of long ones.
 *-------------------------------------------------------------------------
 */
#include "row_usual.h"

#include <math.h>
#include <stdlib.h>

/* A sample is long from this many times the usual cycle */
#define LONG 8.0

static bool
is_long(const RowGap *gap, double cycle)
{
	return (double) gap->inside + gap->outside > LONG * cycle * gap->timed;
}

int
usual_by_value(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return x < y ? -1 : x > y;
}

/* The time from call to call that half of the samples do not exceed */
static double
usual_cycle(const RowTimes *times)
{
	double	   *cycles = malloc(sizeof(double) * (times->ngaps > 0 ? times->ngaps : 1));
	double		found = 0;
	int			n = 0;

	if (cycles == NULL)
		return 0;
	for (int i = 0; i < times->ngaps; i++)
		if (times->gaps[i].untimed > 0)
			cycles[n++] = ((double) times->gaps[i].inside + times->gaps[i].outside) /
				times->gaps[i].timed;
	qsort(cycles, n, sizeof(double), usual_by_value);
	if (n > 0)
		found = n % 2 ? cycles[n / 2] : (cycles[n / 2 - 1] + cycles[n / 2]) / 2;
	free(cycles);
	return found;
}

/*
 * Where time in long stretches is spent: in proportion to all time, as
 * interruptions would be, corrected by the long samples there are.
 */
static void
estimate_share(Usual *u, const RowTimes *times)
{
	double		together = u->inside + u->outside;
	double		usually = together > 0 ? u->inside / together : 0.5;
	double		weight,
				many,
				half;
	double		sum = 0,
				squares = 0,
				inside = 0;

	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		all = (double) gap->inside + gap->outside;

		if (gap->untimed == 0 || !is_long(gap, u->cycle))
			continue;
		inside += gap->inside;
		sum += all;
		squares += all * all;
		u->longs++;
	}
	/* what is usual speaks like one of them; alone, it may be all wrong */
	weight = u->longs > 0 ? sum / u->longs : 1;
	sum += weight;
	squares += weight * weight;
	inside += weight * usually;
	u->share = inside / sum;
	/* few that agree with each other prove less than their own spread says */
	many = sum * sum / squares;
	half = (many * u->share + 0.5) / (many + 1);
	u->share_variance = half * (1 - half) / many;
	if (u->longs == 0)
		u->share_variance = square(most_of(u->share, 1 - u->share) / 1.96);
}

/* The cycles of all samples, long ones included: what a gap may take if it is like them. */
static void
estimate_any_call(Usual *u, const RowTimes *times)
{
	double		calls = 0,
				squares = 0,
				weights = 0;

	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];

		calls += gap->untimed;
		u->any += (double) gap->untimed * ((double) gap->inside + gap->outside) / gap->timed;
	}
	u->any /= calls;
	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		weight = gap->untimed;
		double		off;

		if (weight == 0)
			continue;
		off = ((double) gap->inside + gap->outside) / gap->timed - u->any;
		squares += weight * weight * off * off;
		weights += weight * weight;
		u->any_spread += weight * weight * gap->timed * off * off;
	}
	u->any_variance = squares / (calls * calls);
	u->any_spread /= weights;
}

/* Each sample speaks for the untimed calls before it; long ones are no part of what is usual. */
Usual
row_usual(const RowTimes *times)
{
	Usual		u = {0};
	double		all_calls = 0;
	double		squares = 0,
				products = 0,
				weights = 0;

	u.cycle = usual_cycle(times);
	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];

		if (gap->untimed == 0)
			continue;
		u.samples++;
		all_calls += gap->untimed;
		u.gap += gap->gap;
		if (is_long(gap, u.cycle))
			continue;
		u.calls += gap->untimed;
		u.inside += (double) gap->untimed * gap->inside / gap->timed;
		u.outside += (double) gap->untimed * gap->outside / gap->timed;
	}
	if (u.samples == 0)
		return u;
	u.inside /= u.calls;
	u.outside /= u.calls;
	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		in,
					all,
					weight = gap->untimed;

		if (weight == 0 || is_long(gap, u.cycle))
			continue;
		in = gap->inside / gap->timed - u.inside;
		all = in + gap->outside / gap->timed - u.outside;
		products += weight * weight * in * all;
		squares += weight * weight * all * all;
		weights += weight * weight;
	}
	if (u.samples < FEW || squares <= 0)
		u.slope = u.inside / most_of(u.inside + u.outside, 1);
	else
		u.slope = most_of(0, least_of(1, products / squares));
	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		in,
					all,
					rest,
					weight = gap->untimed;

		if (weight == 0 || is_long(gap, u.cycle))
			continue;
		in = gap->inside / gap->timed - u.inside;
		all = in + gap->outside / gap->timed - u.outside;
		rest = in - u.slope * all;
		u.variance += weight * weight * rest * rest;
		u.inside_variance += weight * weight * in * in;
		u.cycle_variance += weight * weight * all * all;
		u.residual += weight * weight * gap->timed * rest * rest / weights;
		u.cycle_spread += weight * weight * gap->timed * all * all / weights;
	}
	if (u.samples > 1)
	{
		double		unbiased = (double) u.samples / (u.samples - 1);
		double		fitted = (double) u.samples / usual_freedom(&u);

		u.variance *= fitted / (u.calls * u.calls);
		u.inside_variance *= unbiased / (u.calls * u.calls);
		u.cycle_variance *= unbiased / (u.calls * u.calls);
		u.residual *= fitted;
		u.cycle_spread *= unbiased;
		if (u.samples >= FEW && u.cycle_spread > 0)
			u.slope_variance = u.residual / (u.cycle_spread * u.samples);
	}
	else
		u.variance = u.inside_variance = u.residual = u.inside * u.outside / 2;
	estimate_share(&u, times);
	estimate_any_call(&u, times);
	return u;
}
