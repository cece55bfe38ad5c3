/*-------------------------------------------------------------------------
 * draw_arms.c
 *		Drawing the arms of runs in permuted blocks, and the slices of a trial.
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
 * The arm of the first run of a session that begins during the trial: such sessions
 * share blocks, so that of each block of them one, or two, begin with each arm.
 */
uint16
assign_first(const TrialDef *def, uint32 session)
{
	uint16		order[MAX_BLOCK];

	assign_block(def, UINT32_MAX, session / (uint32) def->nblock, order);
	return order[session % (uint32) def->nblock];
}

/* The units of each run of a block, or of a session's first run */
uint16
assign_length(const TrialDef *def, uint32 backend, uint32 block)
{
	uint64		stream = ((uint64) backend << 32) | block;
	uint64		state = def->seed ^ (stream * UINT64CONST(0x589965CC75374CC3));

	return def->run_shortest + pick(&state, def->run_longest - def->run_shortest);
}

/*
 * The arm of a session in a mixed slice: of two sessions in a row one has the base,
 * the other the instrument.
 */
uint16
assign_mixed(const TrialDef *def, uint32 backend, uint32 slice)
{
	uint64		stream = ((uint64) (backend / 2) << 32) | slice;
	uint64		state = def->seed ^ (stream * UINT64CONST(0xA0761D6478BD642F));

	return (uint16) ((splitmix64(&state) >> 63) ^ (backend & 1));
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
