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

/* So many samples show by themselves how calls change */
#define ENOUGH 4

#define MOST_TREND 6.0

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
	double		x_sampled,		/* of them, the samples */
				y_sampled,
				x_late,			/* and the later half of the first calls */
				y_late;
	int			n;
	int			sampled;
	int			late;
	double		shortest;
	double		longest;
} Sums;

static Sums
sums_of_few(const RowTimes *times, double cycle)
{
	Sums		s = {.shortest = INFINITY};
	int			first = 0;

	while (first < times->ngaps && times->gaps[first].untimed == 0)
		first++;
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
		else if (i >= first / 2)
		{
			s.x_late += x;
			s.y_late += y;
			s.late++;
		}
	}
	return s;
}

/* How far some of them are from the line, beyond so many times what chance explains; squared */
static double
apart(const Usual *u, double x, double y, int n, double chances)
{
	double		rest;

	if (n == 0 || n >= u->samples)
		return 0;
	rest = y / n - u->inside - u->slope * (x / n - u->inside - u->outside);
	return most_of(0, rest * rest - chances * u->residual * (1.0 / n - 1.0 / u->samples));
}

/*
 * Where the first calls change from one to the next, those to come are further
 * away, at most so many times as their later half.
 */
static double
trend(const Usual *u, const Sums *s, double untimed)
{
	double		times = least_of(MOST_TREND, 2 + untimed / 2);

	return times * times * apart(u, s->x_late, s->y_late, s->late, 2);
}

/* False if even with the first calls they are too few. */
bool
row_usual_of_few(const RowTimes *times, Usual *u)
{
	Sums		s = sums_of_few(times, INFINITY);
	double		xx,
				xy,
				yy,
				n,
				ends = 0;

	*u = (Usual) {.few = true, .cycle = INFINITY};
	if (s.longest > LONG * s.shortest)
	{
		u->cycle = usual_cycle_of_few(times);
		s = sums_of_few(times, u->cycle);
	}
	/* two points make a line without doubt */
	if (s.n < 3)
		return false;
	for (int i = 0; i < times->ngaps; i++)
	{
		u->calls += times->gaps[i].untimed;
		u->gap += times->gaps[i].gap;
	}
	for (int i = 0; i < times->nends; i++)
		ends += times->ends[i].untimed;
	n = u->samples = s.n;
	u->inside = s.y / n;
	u->outside = s.x / n - u->inside;
	xx = most_of(0, s.xx - s.x * s.x / n);
	xy = s.xy - s.x * s.y / n;
	yy = most_of(0, s.yy - s.y * s.y / n);
	u->slope = xx > 0 ? most_of(0, least_of(1, xy / xx)) : s.y / most_of(s.x, 1);
	u->residual = most_of(0, yy - 2 * u->slope * xy + u->slope * u->slope * xx) / (n - 2);
	u->variance = u->residual / n;
	u->variance += apart(u, s.x_sampled, s.y_sampled, s.sampled, 1);
	if (s.sampled < ENOUGH)
		u->variance += trend(u, &s, u->calls + ends);
	u->slope_variance = xx > 0 ? u->residual / xx : 0;
	u->inside_variance = yy / (n - 1) / n;
	u->cycle_spread = xx / (n - 1);
	/* the calls in the gaps are few as well */
	u->cycle_variance = u->cycle_spread * (1 / n + (u->calls > 0 ? 1 / u->calls : 0));
	usual_tell_share(u, times);
	return true;
}
