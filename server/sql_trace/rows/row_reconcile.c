/*-------------------------------------------------------------------------
 * row_reconcile.c
 *		Estimates of a plan's nodes, made consistent with each other.
 *-------------------------------------------------------------------------
 */
#include "row_estimate.h"

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
