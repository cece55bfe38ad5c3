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
 * tell, each as one of its kind, and beside them the usual proportion, which
 * interruptions keep to; the doubt goes into the interval.
 */
#include "row_usual.h"

#include <math.h>
#include <stdlib.h>

/* A stretch before the end of a scan is unusual from so many times the usual time of its calls */
#define UNUSUAL 4.0

/* What the gaps took beyond the sample is its error, up to so many standard errors */
#define SAMPLING_ERROR 2.0

/* Where a single unusual stretch was spent is never surer than this */
#define LEAST_ODDS 0.05

/* How sure it is that unusual time before the end of a scan was spent to find the end */
#define END_IS_INSIDE 0.95

static int
by_value(const void *a, const void *b)
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
	qsort(cycles, n, sizeof(double), by_value);
	if (n > 0)
		found = n % 2 ? cycles[n / 2] : (cycles[n / 2 - 1] + cycles[n / 2]) / 2;
	free(cycles);
	return found;
}

/* What a gap took beyond the usual, if that is much. */
static double
unusual(double took, double calls, double cycle)
{
	return calls > 0 && took > UNUSUAL * cycle * calls ? took - cycle * calls : 0;
}

/*
 * Where time in long stretches is spent: in proportion to all time, as
 * interruptions would be, corrected by the long samples there are.
 */
void
row_tell_share(Usual *u, const RowTimes *times)
{
	double		together = u->inside + u->outside;
	double		usually = together > 0 ? u->inside / together : 0.5;
	double		weight;
	double		sum = 0,
				squares = 0,
				inside = 0;

	/* of few samples it may be known that none is long */
	for (int i = 0; i < times->ngaps && u->cycle < INFINITY; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		all = (double) gap->inside + gap->outside;

		if ((gap->untimed == 0 && !u->few) || !is_long(gap, u->cycle))
			continue;
		inside += gap->inside;
		sum += all;
		squares += all * all;
		u->longs++;
	}
	/* what is usual speaks like one of them */
	weight = u->longs > 0 ? sum / u->longs : 1;
	sum += weight;
	squares += weight * weight;
	inside += weight * usually;
	u->share = inside / sum;
	u->share_variance = u->share * (1 - u->share) / (sum * sum / squares);
}

/* Counted up to where they are no longer few */
static int
samples_of(const RowTimes *times)
{
	int			samples = 0;

	for (int i = 0; i < times->ngaps && samples < FEW_SAMPLES; i++)
		samples += times->gaps[i].untimed > 0;
	return samples;
}

/* Each sample speaks for the untimed calls before it; long ones are no part of what is usual. */
static Usual
usual_of_many(const RowTimes *times)
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
	u.slope = squares > 0 ? products / squares : u.inside / most_of(u.cycle, 1);
	u.slope = most_of(0, least_of(1, u.slope));
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
	}
	if (u.samples > 1)
	{
		double		unbiased = (double) u.samples / (u.samples - 1);

		u.variance *= unbiased / (u.calls * u.calls);
		u.inside_variance *= unbiased / (u.calls * u.calls);
		u.cycle_variance *= unbiased / (u.calls * u.calls);
		u.residual *= unbiased;
	}
	row_tell_share(&u, times);
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

/* The sampled gaps: regression, and what the sample did not see apart. */
static void
add_gaps(RowEstimate *sum, const RowTimes *times, const Usual *u)
{
	double		together = u->inside + u->outside;
	double		odds = least_of(1 - LEAST_ODDS, most_of(LEAST_ODDS, u->share));
	double		reach = most_of(odds, 1 - odds) / 1.96;
	double		unseen = u->gap - u->calls * together;
	double		error = sampling_error(u, unseen);
	double		rest = unseen - error;
	double		beyond = 0,
				squares = 0,
				largest = 0;

	sum->most += u->gap;
	if (u->samples == 0)
	{
		/* nothing is known of usual calls: from nothing to all of it */
		sum->time += u->gap / 2;
		sum->variance += u->gap * u->gap / 12;
		return;
	}
	sum->time += most_of(0, u->calls * u->inside + u->slope * error) + odds * rest;
	sum->variance += u->calls * u->calls * u->variance + u->calls * u->residual +
		error * error * u->slope_variance;
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
		double		more = usually + u->outside - end->untimed * together;

		/* one stretch outside is missing: nothing follows the last call */
		if (beyond == 0)
			inside += u->slope * more;
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
			if (beyond == 0)
				sum->variance += more * more * u->slope_variance;
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
	int			samples = samples_of(times);
	Usual		u;

	/* each call was timed */
	if (samples == 0 && times->nends == 0 && times->tail == 0)
		return sum;
	u = samples < FEW_SAMPLES ? row_usual_of_few(times) : usual_of_many(times);
	if (u.gap > 0)
		add_gaps(&sum, times, &u);
	add_ends(&sum, times, &u);
	add_tail(&sum, times, &u);
	sum.quantile = quantile(u.few ? u.samples - 2 : u.samples - 1);
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
