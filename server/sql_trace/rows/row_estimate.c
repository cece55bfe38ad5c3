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
 * Long samples, and time that usual calls do not account for, are not left to
 * the regression: something interrupted the node or what is above it, or some
 * of its calls are long.  Whether that time was spent inside, the long samples
 * tell, each as one of its kind, and next to them the usual proportion, which
 * interruptions keep to; the doubt goes into the interval.
 *
 * Estimates of the nodes of a plan are then made consistent with each other.
 */
#include "row_usual.h"

#include <math.h>
#include <stdlib.h>

/* A stretch before the end of a scan is unusual from this many times the usual time of its calls */
#define UNUSUAL 4.0

/* What the gaps took beyond the sample is its error, up to this many standard errors */
#define SAMPLING_ERROR 2.0

/* A gap is unlike all samples from this many standard deviations of their cycles */
#define UNLIKE 2.5

/* The time found in such gaps is a part of what there is: some stretches hide in the spread */
#define HIDDEN 1.4

/* The time from call to call before the end of a scan is that of this many gaps before it */
#define NEIGHBOURS 3

/* How sure it is that unusual time before the end of a scan was spent to find the end */
#define END_IS_INSIDE 0.95

/* What a gap took beyond the usual, if that is much. */
static double
unusual(double took, double calls, double cycle)
{
	return calls > 0 && took > UNUSUAL * cycle * calls ? took - cycle * calls : 0;
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

/*
 * Of the time that usual calls do not account for, what is the sample's error:
 * all that is no more than may be, unless long samples are there to explain it.
 */
static double
sampling_error(const Usual *u, double unseen)
{
	double		most = SAMPLING_ERROR * u->calls * sqrt(u->cycle_variance);

	if (unseen <= 0)
		return unseen;
	if (u->longs > 0 || unseen >= 2 * most)
		return 0;
	return unseen * least_of(1, 2 - unseen / most);
}

/*
 * Of the time that some calls took beyond the usual, what neither their own
 * spread nor the doubt about the usual explains.
 */
static double
doubtful(const Usual *u, double more, double calls)
{
	double		spread = calls * u->cycle_spread + calls * calls * u->cycle_variance;

	if (more <= 0 || more * more <= SAMPLING_ERROR * SAMPLING_ERROR * spread)
		return 0;
	return more - SAMPLING_ERROR * sqrt(spread);
}

/* The time from call to call around a gap: the middle of what its neighbours took for one */
static double
around(const RowTimes *times, int gap, double otherwise)
{
	double		cycles[2 * NEIGHBOURS];
	int			n = 0;

	for (int step = -1; step <= 1; step += 2)
	{
		int			found = 0;

		for (int i = gap + step; i >= 0 && i < times->ngaps && found < NEIGHBOURS; i += step)
		{
			if (times->gaps[i].untimed == 0)
				continue;
			cycles[n++] = (double) times->gaps[i].gap / times->gaps[i].untimed;
			found++;
		}
	}
	if (n == 0)
		return otherwise;
	qsort(cycles, n, sizeof(double), usual_by_value);
	return n % 2 ? cycles[n / 2] : (cycles[n / 2 - 1] + cycles[n / 2]) / 2;
}

/*
 * Time in gaps that is like no sample: their calls hold stretches of a kind
 * that was never timed.  If calls take ever longer, a gap is like its
 * neighbours.  Adds to `squares` the variance of what is found.
 */
static double
never_timed(const Usual *u, const RowTimes *times, double *squares)
{
	double		sum = 0;

	for (int i = 0; i < times->ngaps; i++)
	{
		double		calls = times->gaps[i].untimed;
		double		spread = calls * u->any_spread + calls * calls * u->any_variance;
		double		more = times->gaps[i].gap - calls * u->any;

		if (more <= 0 || more * more <= UNLIKE * UNLIKE * spread)
			continue;
		more = times->gaps[i].gap - calls * around(times, i, u->any);
		if (more <= 0 || more * more <= UNLIKE * UNLIKE * spread)
			continue;
		sum += more;
		*squares += spread;
	}
	return sum;
}

/* The sampled gaps: regression, and what the sample did not see apart. */
static void
add_gaps(RowEstimate *sum, const RowTimes *times, const Usual *u)
{
	double		together = u->inside + u->outside;
	double		odds = u->share;
	double		reach = most_of(odds, 1 - odds) / 1.96;
	double		unseen = u->gap - u->calls * together;
	double		error = sampling_error(u, unseen);
	double		rest = unseen - error;
	double		noise = 0;
	double		unknown;
	double		beyond = 0,
				squares = 0,
				largest = 0;

	sum->time += most_of(0, u->calls * u->inside + u->slope * error) + odds * rest;
	sum->variance += u->calls * u->calls * u->variance + u->calls * u->residual;
	sum->variance += error * error * u->slope_variance;
	sum->most += u->gap;
	/* what no sample is like may be all inside or all outside */
	unknown = HIDDEN * never_timed(u, times, &noise);
	if (u->longs == 0)
		unknown = sqrt(most_of(0, square(unknown) - square(most_of(0, rest))));
	sum->variance += square(reach) * (square(unknown) + noise);
	if (rest <= 0)
		return;
	/* taken for a single stretch in each gap, by how much that gap took too long */
	for (int i = 0; i < times->ngaps; i++)
	{
		double		more = most_of(0, times->gaps[i].gap - times->gaps[i].untimed * together);

		beyond += more;
		squares += more * more;
		largest = most_of(largest, more);
	}
	squares *= (rest / beyond) * (rest / beyond);
	largest *= rest / beyond;
	sum->variance += odds * (1 - odds) * squares + rest * rest * u->share_variance;
	/* the interval reaches both ends of what the largest alone may be */
	sum->variance += most_of(0, reach * reach - odds * (1 - odds)) * largest * largest;
}

/* From call to call before the last end, if calls take ever longer: the middle of the last gaps */
static double
last_cycle(const RowTimes *times, double usually)
{
	double		cycles[NEIGHBOURS];
	int			n = 0;

	for (int i = times->ngaps - 1; i >= 0 && n < NEIGHBOURS; i--)
	{
		const RowGap *gap = &times->gaps[i];

		if (gap->untimed > 0)
			cycles[n++] = ((double) gap->gap + gap->inside + gap->outside) /
				(gap->untimed + gap->timed);
	}
	if (n < NEIGHBOURS)
		return usually;
	qsort(cycles, n, sizeof(double), usual_by_value);
	return most_of(usually, cycles[NEIGHBOURS / 2]);
}

/* Untimed calls up to the end of a scan: what is unusual was spent to find the end. */
static void
add_ends(RowEstimate *sum, const RowTimes *times, const Usual *u)
{
	double		together = u->inside + u->outside;
	double		reach = most_of(u->share, 1 - u->share) / 1.96;

	for (int i = 0; i < times->nends; i++)
	{
		const RowEnd *end = &times->ends[i];
		double		cycle = i == times->nends - 1 ? last_cycle(times, together) : together;
		double		beyond = unusual(end->gap, end->untimed, cycle);
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
				end->untimed * u->residual + (1 - END_IS_INSIDE) * beyond * beyond +
				square(reach * doubtful(u, usually - end->untimed * cycle, end->untimed));
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
	RowEstimate sum = {times->known, 0, times->known, times->known, 1.96};
	Usual		u;

	/* each call was timed */
	if (times->ngaps == 0 && times->nends == 0 && times->tail == 0)
		return sum;
	u = row_usual(times);
	if (u.samples > 0)
		add_gaps(&sum, times, &u);
	add_ends(&sum, times, &u);
	add_tail(&sum, times, &u);
	sum.quantile = quantile(usual_freedom(&u));
	return sum;
}

double
row_low(const RowEstimate *of)
{
	return least_of(of->time,
					most_of(of->least, of->time - of->quantile * sqrt(of->variance)));
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
	int			end = whole + 1;

	/* what hangs on a node follows it at once */
	while (end < n && shares[end].whole >= whole)
		end++;
	if (end == whole + 1)
		return;
	for (int i = whole + 1; i < end; i++)
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
		for (int i = whole + 1; i < end; i++)
			if (shares[i].whole == whole && shares[i].summed)
				shares[i].of.time = most_of(shares[i].of.least, shares[i].of.time -
											excess * shares[i].of.variance / doubt);
		all->time = least_of(all->most, all->time + excess * all->variance / doubt);
	}
	for (int i = whole + 1; i < end; i++)
		if (shares[i].whole == whole && !shares[i].apart)
		{
			shares[i].of.most = least_of(shares[i].of.most, row_high(all));
			shares[i].of.time = least_of(shares[i].of.time, shares[i].of.most);
			all->least = most_of(all->least, shares[i].of.least);
		}
	all->time = most_of(all->time, all->least);
}

/*
 * A node's time holds that of its children: if the estimates contradict
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
