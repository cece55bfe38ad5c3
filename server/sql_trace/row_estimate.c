/*-------------------------------------------------------------------------
 * row_estimate.c
 *		From the timed calls of a plan node to the time of all its calls.
 *
 * Between two timed calls the node was called a known number of times in a
 * known time, of which some part was spent inside it.  The sample tells the
 * usual time inside and outside; what a gap took in all says how much of it
 * there was.  This is the regression estimator with a known total (Cochran,
 * Sampling Techniques, 1977, chapter 7): a rare long call is in the total
 * whether it was timed or not, and a timed one is not multiplied beyond it.
 *
 * Two things are not left to the regression.  A timed call that took longer
 * than what a whole gap usually takes did not happen in most gaps, so it
 * enters the mean with no more than that.  A gap that took several times what
 * is usual holds something unusual, which was either inside or outside; it is
 * given to both in the usual proportion, and the doubt goes into the interval.
 *-------------------------------------------------------------------------
 */
#include "row_estimate.h"

#include <math.h>
#include <stdlib.h>

/* A gap is unusual from so many times the usual time of its calls */
#define UNUSUAL 4.0

/* A sampled call may count with so many times what its gap usually takes */
#define LARGEST_INFLUENCE 2.0

/* The same for short gaps, in cycles of the node */
#define SHORTEST_GAP 32.0

/* A sample that took so many times the usual cycle tells where unusual time is spent */
#define TELLING 4.0

/* Where a single unusual stretch was spent is never surer than this */
#define LEAST_ODDS 0.05

/* How sure it is that unusual time before the end of a scan was spent to find the end */
#define END_IS_INSIDE 0.95

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
	double		share;			/* of what is unusual, spent inside */
	double		share_variance; /* of that share over all of it */
	int			samples;
} Usual;

static int
by_value(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return x < y ? -1 : x > y;
}

static double
least_of(double a, double b)
{
	return a < b ? a : b;
}

static double
most_of(double a, double b)
{
	return a > b ? a : b;
}

/* The time from call to call that half of the gaps do not exceed. */
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
			cycles[n++] = times->gaps[i].gap / times->gaps[i].untimed;
	qsort(cycles, n, sizeof(double), by_value);
	if (n > 0)
		found = n % 2 ? cycles[n / 2] : (cycles[n / 2 - 1] + cycles[n / 2]) / 2;
	free(cycles);
	return found;
}

/* The most that a timed call may count with, where many stand for the gap. */
static double
limit(const RowGap *gap, double cycle)
{
	double		calls = most_of((double) gap->untimed, SHORTEST_GAP * gap->timed);

	return LARGEST_INFLUENCE * cycle * calls;
}

static double
mean_inside(const RowGap *gap, double cycle)
{
	return least_of(gap->inside, limit(gap, cycle)) / gap->timed;
}

static double
mean_outside(const RowGap *gap, double cycle)
{
	return least_of(gap->outside, limit(gap, cycle)) / gap->timed;
}

/* What a gap took beyond the usual, if that is much. */
static double
unusual(double took, double calls, double cycle)
{
	return calls > 0 && took > UNUSUAL * cycle * calls ? took - cycle * calls : 0;
}

/*
 * Where time beyond the usual is spent: in proportion to all time, corrected
 * by the long samples there are.
 */
static void
tell_share(Usual *u, const RowTimes *times)
{
	double		together = u->inside + u->outside;
	double		sum = together > 0 ? u->inside / together : 0.5;
	double		n = 1;

	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		all = (double) gap->inside + gap->outside;

		if (gap->untimed == 0 || all <= TELLING * u->cycle * gap->timed)
			continue;
		sum += gap->inside / all;
		n++;
	}
	u->share = sum / n;
	u->share_variance = u->share * (1 - u->share) / (n + 1);
}

/* Each sample speaks for the untimed calls before it. */
static Usual
usual(const RowTimes *times)
{
	Usual		u = {0};
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
		u.calls += gap->untimed;
		u.gap += gap->gap;
		u.inside += gap->untimed * mean_inside(gap, u.cycle);
		u.outside += gap->untimed * mean_outside(gap, u.cycle);
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

		if (weight == 0)
			continue;
		in = mean_inside(gap, u.cycle) - u.inside;
		all = in + mean_outside(gap, u.cycle) - u.outside;
		products += weight * weight * in * all;
		squares += weight * weight * all * all;
		weights += weight * weight;
	}
	u.slope = squares > 0 ? products / squares : u.inside / most_of(u.cycle, 1);
	u.slope = most_of(0, least_of(1, u.slope));
	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		in,
					rest,
					weight = gap->untimed;

		if (weight == 0)
			continue;
		in = mean_inside(gap, u.cycle) - u.inside;
		rest = in - u.slope * (in + mean_outside(gap, u.cycle) - u.outside);
		u.variance += weight * weight * rest * rest;
		u.inside_variance += weight * weight * in * in;
		u.residual += weight * weight * gap->timed * rest * rest / weights;
	}
	if (u.samples > 1)
	{
		double		unbiased = (double) u.samples / (u.samples - 1);

		u.variance *= unbiased / (u.calls * u.calls);
		u.inside_variance *= unbiased / (u.calls * u.calls);
		u.residual *= unbiased;
	}
	tell_share(&u, times);
	return u;
}

/* Two-sided 5 % points of Student's t */
static double
quantile(int freedom)
{
	static const double points[] = {
		12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
		2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
		2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042
	};

	if (freedom < 1)
		return points[0];
	if (freedom <= 30)
		return points[freedom - 1];
	return 1.96 + 2.5 / freedom;
}

/* The sampled gaps: regression, and the unusual apart. */
static void
add_gaps(RowEstimate *sum, const RowTimes *times, const Usual *u)
{
	double		together = u->inside + u->outside;
	double		odds = least_of(1 - LEAST_ODDS, most_of(LEAST_ODDS, u->share));
	double		reach = most_of(odds, 1 - odds) / 1.96;
	double		usually = u->gap;
	double		largest = 0;
	double		taken,
				unseen;

	for (int i = 0; i < times->ngaps; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		beyond = unusual(gap->gap, gap->untimed, u->cycle);

		usually -= beyond;
		sum->time += odds * beyond;
		sum->variance += odds * (1 - odds) * beyond * beyond;
		largest = most_of(largest, beyond);
	}
	/* the interval reaches both ends of what the largest alone may be */
	sum->variance += most_of(0, reach * reach - odds * (1 - odds)) * largest * largest;
	/* what the sample has too little of was seen by the gaps alone */
	unseen = usually - u->calls * together;
	if (unseen > 0)
		sum->variance += unseen * unseen * u->share_variance;
	taken = u->calls * u->inside + u->slope * unseen;
	sum->time += most_of(0, least_of(usually, taken));
	sum->variance += u->calls * u->calls * u->variance + u->calls * u->residual;
	sum->most += u->gap;
}

/* Untimed calls up to the end of a scan: what is unusual was spent to find the end. */
static void
add_ends(RowEstimate *sum, const RowTimes *times, const Usual *u)
{
	double		together = u->inside + u->outside;

	for (int i = 0; i < times->nends; i++)
	{
		const RowEnd *end = &times->ends[i];
		double		beyond = unusual(end->gap, end->untimed, together);
		double		usually = end->gap - beyond;
		double		inside = end->untimed * u->inside;

		/* one stretch outside is missing: nothing follows the last call */
		if (beyond == 0)
			inside += u->slope * (usually + u->outside - end->untimed * together);
		inside = most_of(0, least_of(usually, inside));

		if (u->samples == 0)
		{
			/* no call was sampled: from nothing to all of it */
			sum->time += end->gap / 2;
			sum->variance += (double) end->gap * end->gap / 12;
		}
		else
		{
			sum->time += least_of(end->gap, inside + beyond);
			sum->variance += (double) end->untimed * end->untimed * u->variance +
				end->untimed * u->residual + (1 - END_IS_INSIDE) * beyond * beyond;
		}
		sum->most += end->gap;
	}
}

/* Calls after the last time that the clock was read */
static void
add_tail(RowEstimate *sum, const RowTimes *times, const Usual *u)
{
	double		calls = times->tail;
	double		mean = u->inside;

	if (times->tail == 0)
		return;
	if (u->samples == 0)
		mean = times->timed > 0 ? times->known / times->timed : 0;
	sum->time += least_of(calls * mean, times->tail_most);
	sum->variance += calls * calls * u->inside_variance + calls * u->residual;
	sum->most += times->tail_most;
}

RowEstimate
row_estimate(const RowTimes *times)
{
	RowEstimate sum = {0};
	Usual		u = usual(times);

	sum.time = sum.least = sum.most = times->known;
	if (u.samples > 0)
		add_gaps(&sum, times, &u);
	add_ends(&sum, times, &u);
	add_tail(&sum, times, &u);
	sum.quantile = quantile(u.samples > 0 ? u.samples - 1 : 1);
	return sum;
}

double
row_low(const RowEstimate *of)
{
	return most_of(of->least, of->time - of->quantile * sqrt(of->variance));
}

double
row_high(const RowEstimate *of)
{
	return most_of(of->time, least_of(of->most, of->time + of->quantile * sqrt(of->variance)));
}

/* Take what is too much from the parts, and add to the whole, by how unsure each is. */
static void
settle(RowShare *shares, int n, int whole)
{
	RowEstimate *all = &shares[whole].of;
	double		parts = 0,
				doubt = all->variance,
				excess;

	for (int i = whole + 1; i < n; i++)
	{
		if (shares[i].whole == whole && shares[i].summed)
		{
			parts += shares[i].of.time;
			doubt += shares[i].of.variance;
		}
	}
	excess = parts - all->time;
	if (excess > 0 && doubt > 0)
	{
		for (int i = whole + 1; i < n; i++)
			if (shares[i].whole == whole && shares[i].summed)
				shares[i].of.time = most_of(shares[i].of.least, shares[i].of.time -
											excess * shares[i].of.variance / doubt);
		all->time = least_of(all->most, all->time + excess * all->variance / doubt);
	}
	for (int i = whole + 1; i < n; i++)
		if (shares[i].whole == whole)
		{
			shares[i].of.most = least_of(shares[i].of.most, row_high(all));
			shares[i].of.time = least_of(shares[i].of.time, shares[i].of.most);
			all->least = most_of(all->least, shares[i].of.least);
		}
	all->time = most_of(all->time, all->least);
}

/*
 * A node's time holds that of its children: where the estimates contradict
 * this, they give way by how unsure each is (least squares).  `most` is what
 * the root took at most.
 */
void
row_reconcile(RowShare *shares, int n, double most)
{
	if (n == 0)
		return;
	for (int i = 0; i < n; i++)
	{
		shares[i].of.most = least_of(shares[i].of.most, most);
		shares[i].of.time = least_of(shares[i].of.time, shares[i].of.most);
	}
	/* upwards, that a child's exact calls are known to its parents; and down from the root */
	for (int i = n - 1; i >= 0; i--)
		settle(shares, n, i);
	for (int i = 0; i < n; i++)
		settle(shares, n, i);
}
