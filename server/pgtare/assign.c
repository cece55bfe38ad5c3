/*-------------------------------------------------------------------------
 * assign.c
 *		Drawing the arms of permuted blocks and of runs, and the slices of a trial.
 *
 * Each (seed, session, block) has a SplitMix64 stream of its own, so that an
 * assignment can be computed again from the result's seed, in any order and in
 * any language; the client does so to check what was recorded.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgtare.h"

static inline uint64
splitmix64(uint64 *state)
{
	uint64		z = (*state += UINT64CONST(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64CONST(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64CONST(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* Fisher-Yates; the high half of the product is uniform on 0 .. i. */
static inline int
pick(uint64 *state, int i)
{
	return (int) (((unsigned __int128) splitmix64(state) * (uint64) (i + 1)) >> 64);
}

/* Fill order[0 .. nblock - 1]. */
void
assign_block(const TrialDef *def, uint32 backend, uint32 block, uint16 *order)
{
	uint64		stream = ((uint64) backend << 32) | block;
	uint64		state = def->seed ^ (stream * UINT64CONST(0xD1342543DE82EF95));

	memcpy(order, def->block, sizeof(uint16) * def->nblock);
	for (int i = def->nblock - 1; i > 0; i--)
	{
		int			j = pick(&state, i);
		uint16		swap = order[i];

		order[i] = order[j];
		order[j] = swap;
	}
}

/*
 * Does a filler come before this block?  In one case of ten it does, with any
 * arm of the block.
 */
bool
assign_filler(const TrialDef *def, uint32 backend, uint32 block, uint16 *arm)
{
	uint64		stream = ((uint64) backend << 32) | block;
	uint64		state = def->seed ^ (stream * UINT64CONST(0xA0761D6478BD642F));

	if (splitmix64(&state) >= UINT64_MAX / 10)
		return false;
	*arm = def->block[pick(&state, def->nblock - 1)];
	return true;
}

/* Does a pair of runs come before this block (and before its filler)? */
bool
assign_runs_before(const TrialDef *def, uint32 backend, uint32 block)
{
	uint64		stream = ((uint64) backend << 32) | block;
	uint64		state = def->seed ^ (stream * UINT64CONST(0xE7037ED1A0B428DB));

	if (def->nturns == 0 || (uint64) block * def->nblock < RUNS_AFTER)
		return false;
	return splitmix64(&state) < UINT64_MAX / def->runs_every;
}

/*
 * The arm and the length of a session's run.  Runs 2 k and 2 k + 1 are a pair:
 * the base and another arm, in random order and of the same length, so that
 * neighbours are compared.  The other arms come in permuted rounds.
 */
void
assign_run(const TrialDef *def, uint32 backend, uint32 run, uint16 *arm, uint16 *length)
{
	uint32		pair = run / 2;
	uint64		stream = ((uint64) backend << 32) | (pair / def->nturns);
	uint64		state = def->seed ^ (stream * UINT64CONST(0x8EBC6AF09C88C6E3));
	uint16		order[MAX_BLOCK];
	bool		base_first;

	memcpy(order, def->turn, sizeof(uint16) * def->nturns);
	for (int i = def->nturns - 1; i > 0; i--)
	{
		int			j = pick(&state, i);
		uint16		swap = order[i];

		order[i] = order[j];
		order[j] = swap;
	}
	stream = ((uint64) backend << 32) | pair;
	state = def->seed ^ (stream * UINT64CONST(0x589965CC75374CC3));
	base_first = splitmix64(&state) >> 63;
	*length = def->run_shortest + pick(&state, def->run_longest - def->run_shortest);
	*arm = base_first == (run % 2 == 0) ? 0 : order[pair % def->nturns];
}

/* The kinds of slices of a block of slices: fill order[0 .. nslices - 1]. */
void
assign_slices(const TrialDef *def, uint32 block, int16 *order)
{
	uint64		state = def->seed ^ (((uint64) block + 1) * UINT64CONST(0x9FB21C651E98DF25));

	memcpy(order, def->slice_kind, sizeof(int16) * def->nslices);
	for (int i = def->nslices - 1; i > 0; i--)
	{
		int			j = pick(&state, i);
		int16		swap = order[i];

		order[i] = order[j];
		order[j] = swap;
	}
}

/* The length of a slice, uniform between its bounds. */
int64
assign_slice_ns(const TrialDef *def, uint32 slice)
{
	uint64		state = def->seed ^ (((uint64) slice + 1) * UINT64CONST(0xC2B2AE3D27D4EB4F));
	uint64		lengths = (uint64) (def->slice_max_ns - def->slice_min_ns) + 1;

	/* the bounds lie within a second, so that 32 bits are enough */
	return def->slice_min_ns + (int64) (((splitmix64(&state) >> 32) * lengths) >> 32);
}
