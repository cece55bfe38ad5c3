/*-------------------------------------------------------------------------
 * row_few.c
 *		What few samples of a node's calls tell of usual ones.
 *
 * Few samples tell little by themselves.  With the first calls, each of which
 * counts like a sample, they make an ordinary regression: one of a node whose
 * calls go on as they began.  How far the samples are from that is doubt.
 *-------------------------------------------------------------------------
 */
#include "row_usual.h"

#include <math.h>

/* That many and the first calls */
#define MOST 24

/* The middle of what few samples took from call to call */
static double
usual_cycle_of_few(const RowTimes *times)
{
	double		sorted[MOST];
	int			n = 0;

	for (; n < times->ngaps && n < MOST; n++)
	{
		double		cycle = (double) times->gaps[n].inside + times->gaps[n].outside;
		int			at = n;

		for (; at > 0 && sorted[at - 1] > cycle; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = cycle;
	}
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Of time inside (y) and from call to call (x) */
typedef struct Sums
{
	double		x,
				y,
				xx,
				xy,
				yy;
	double		x_sampled,
				y_sampled;
	int			n;
	int			sampled;
	double		shortest;
	double		longest;
} Sums;

static Sums
sums_of_few(const RowTimes *times, double cycle)
{
	Sums		s = {.shortest = INFINITY};

	for (int i = 0; i < times->ngaps && i < MOST; i++)
	{
		const RowGap *gap = &times->gaps[i];
		double		y = gap->inside;
		double		x = y + gap->outside;

		if (x > LONG * cycle)
			continue;
		s.n++;
		s.x += x;
		s.y += y;
		s.xx += x * x;
		s.xy += x * y;
		s.yy += y * y;
		s.shortest = least_of(s.shortest, x);
		s.longest = most_of(s.longest, x);
		if (gap->untimed > 0)
		{
			s.x_sampled += x;
			s.y_sampled += y;
			s.sampled++;
		}
	}
	return s;
}

Usual
row_usual_of_few(const RowTimes *times)
{
	Usual		u = {.few = true, .cycle = INFINITY};
	Sums		s = sums_of_few(times, INFINITY);
	double		xx,
				xy,
				yy,
				n;

	for (int i = 0; i < times->ngaps; i++)
	{
		u.calls += times->gaps[i].untimed;
		u.gap += times->gaps[i].gap;
	}
	if (s.longest > LONG * s.shortest)
	{
		u.cycle = usual_cycle_of_few(times);
		s = sums_of_few(times, u.cycle);
	}
	/* two points make a line without doubt */
	if (s.n < 3)
		return u;
	n = u.samples = s.n;
	u.inside = s.y / n;
	u.outside = s.x / n - u.inside;
	xx = most_of(0, s.xx - s.x * s.x / n);
	xy = s.xy - s.x * s.y / n;
	yy = most_of(0, s.yy - s.y * s.y / n);
	u.slope = xx > 0 ? most_of(0, least_of(1, xy / xx)) : s.y / most_of(s.x, 1);
	u.residual = most_of(0, yy - 2 * u.slope * xy + u.slope * u.slope * xx) / (n - 2);
	u.variance = u.residual / n;
	if (s.sampled > 0)
	{
		double		apart = s.y_sampled / s.sampled - u.inside -
			u.slope * (s.x_sampled - s.x / n * s.sampled) / s.sampled;

		u.variance += most_of(0, apart * apart - u.residual * (1.0 / s.sampled - 1 / n));
	}
	u.slope_variance = xx > 0 ? u.residual / xx : 0;
	u.inside_variance = yy / (n - 1) / n;
	/* the calls in the gaps are few as well */
	u.cycle_variance = xx / (n - 1) * (1 / n + (u.calls > 0 ? 1 / u.calls : 0));
	row_tell_share(&u, times);
	return u;
}

