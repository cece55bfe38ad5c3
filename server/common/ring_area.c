/*-------------------------------------------------------------------------
 * ring_area.c
 *		An area of the server's main shared memory for rings: its blocks.
 *
 * Free blocks of each size are in a list.  A block is divided until it has the
 * size that is needed; one that becomes free joins its neighbour of the same size,
 * if that is free, and so on.
 *-------------------------------------------------------------------------
 */
#include "ring_area.h"

#include "fmgr.h"
#include "port/pg_bitutils.h"

#include "lately.h"
#include "module_shmem.h"
#include "version.h"

#define PIECE_BYTES (RING_PIECE + RING_PIECE_HEADER)

/* A handle: this bit, the number of the block, and the first of its pieces */
#define PIECE_BITS 22
#define MOST_PIECES ((uint64) 1 << PIECE_BITS)
#define MOST_SIZES (PIECE_BITS + 1)
#define NONE (-1)

/* The share of the area that rings do not grow into */
#define SHARE_TO_BEGIN 8

/* What is known of the block that begins with a piece; all but the first two under the lock */
typedef struct Piece
{
	pg_atomic_uint64 state;		/* twice its number, and 1 while it is claimed; 0: given up */
	pg_atomic_uint64 used;		/* TimestampTz: when its owner wrote last */
	uint64		number;			/* of the block; 0: it is free */
	uint32		readers;
	int			size;			/* it has 2^size pieces; or NONE: no block begins here */
	int			previous;		/* in the list of free ones */
	int			next;
} Piece;

typedef union PaddedPiece
{
	Piece		piece;
	char		padding[PG_CACHE_LINE_SIZE];
} PaddedPiece;

typedef struct Area
{
	LWLock		lock;
	int			tranche;
	int			npieces;
	int			free_pieces;
	uint64		last_number;
	uint64		rings;
	uint64		gave_way;
	uint64		refused;
	int			first_free[MOST_SIZES];
	char	   *memory;
	PaddedPiece pieces[FLEXIBLE_ARRAY_MEMBER];
} Area;

MODULE_LOCK_LEADS(Area);

static int	npieces;

static Size
memory_offset(void)
{
	return TYPEALIGN(PG_CACHE_LINE_SIZE,
					 offsetof(Area, pieces) + npieces * sizeof(PaddedPiece));
}

static Size
total_size(void)
{
	return add_size(memory_offset() + PG_CACHE_LINE_SIZE, mul_size(npieces, PIECE_BYTES));
}

static Piece *
piece_at(Area *area, int i)
{
	return &area->pieces[i].piece;
}

static void
list_add(Area *area, int i)
{
	Piece	   *piece = piece_at(area, i);

	piece->previous = NONE;
	piece->next = area->first_free[piece->size];
	if (piece->next != NONE)
		piece_at(area, piece->next)->previous = i;
	area->first_free[piece->size] = i;
}

static void
list_remove(Area *area, int i)
{
	Piece	   *piece = piece_at(area, i);

	if (piece->next != NONE)
		piece_at(area, piece->next)->previous = piece->previous;
	if (piece->previous != NONE)
		piece_at(area, piece->previous)->next = piece->next;
	else
		area->first_free[piece->size] = piece->next;
}

/* A block is free: join its neighbours. */
static void
make_free(Area *area, int i)
{
	int			size = piece_at(area, i)->size;

	piece_at(area, i)->number = 0;
	area->free_pieces += 1 << size;
	for (; size < MOST_SIZES - 1; size++)
	{
		int			other = i ^ (1 << size);
		Piece	   *neighbour;

		if (other >= area->npieces)
			break;
		neighbour = piece_at(area, other);
		if (neighbour->number != 0 || neighbour->size != size)
			break;
		list_remove(area, other);
		piece_at(area, Max(i, other))->size = NONE;
		i = Min(i, other);
	}
	piece_at(area, i)->size = size;
	list_add(area, i);
}

static void
initialise(void *fresh)
{
	Area	   *area = fresh;

	memset(area, 0, memory_offset());
	area->npieces = npieces;
	area->memory = (char *) TYPEALIGN(PG_CACHE_LINE_SIZE, (char *) area + memory_offset());
	for (int size = 0; size < MOST_SIZES; size++)
		area->first_free[size] = NONE;
	for (int i = 0; i < npieces; i++)
	{
		Piece	   *piece = piece_at(area, i);

		pg_atomic_init_u64(&piece->state, 0);
		pg_atomic_init_u64(&piece->used, 0);
		piece->size = NONE;
	}
	for (int i = 0; i < npieces; i++)
	{
		piece_at(area, i)->size = 0;
		make_free(area, i);
	}
}

static ModuleShmem memory = {
	"sql_trace ring area", "sql_trace_ring_area", PGTARE_VERSION, total_size, initialise
};

static RingHandle
handle_of(uint64 number, int i)
{
	return RING_IN_AREA | number << PIECE_BITS | (uint64) i;
}

/* The block of a handle, if it is still that; NULL: it is not.  The caller holds the lock. */
static Piece *
block_of(Area *area, RingHandle handle)
{
	uint64		i = handle & (MOST_PIECES - 1);
	uint64		number = (handle & ~RING_IN_AREA) >> PIECE_BITS;
	Piece	   *piece = i < (uint64) area->npieces ? piece_at(area, (int) i) : NULL;

	return piece && piece->number == number ? piece : NULL;
}

/* Divide the smallest block that is large enough; returns its first piece, or NONE. */
static int
find_free(Area *area, int size)
{
	int			larger = size;
	int			i;

	while (larger < MOST_SIZES && area->first_free[larger] == NONE)
		larger++;
	if (larger == MOST_SIZES)
		return NONE;
	i = area->first_free[larger];
	list_remove(area, i);
	for (; larger > size; larger--)
	{
		int			half = i + (1 << (larger - 1));

		piece_at(area, half)->size = larger - 1;
		piece_at(area, half)->number = 0;
		list_add(area, half);
	}
	piece_at(area, i)->size = size;
	area->free_pieces -= 1 << size;
	return i;
}

/* May a block be taken from its owner, as far as can be seen? */
static bool
can_be_taken(Piece *piece, TimestampTz now)
{
	return piece->number != 0 && piece->readers == 0 &&
		pg_atomic_read_u64(&piece->state) == piece->number * 2 &&
		!lately((TimestampTz) pg_atomic_read_u64(&piece->used), now, RING_REST_US);
}

/* Take the block that was written least recently from its owner; false: there is none. */
static bool
take_from_owner(Area *area)
{
	TimestampTz now = GetCurrentTimestamp();

	for (;;)
	{
		int			oldest = NONE;
		uint64		idle;

		for (int i = 0; i < area->npieces; i += 1 << piece_at(area, i)->size)
			if (can_be_taken(piece_at(area, i), now) &&
				(oldest == NONE || pg_atomic_read_u64(&piece_at(area, i)->used) <
				 pg_atomic_read_u64(&piece_at(area, oldest)->used)))
				oldest = i;
		if (oldest == NONE)
			return false;
		idle = piece_at(area, oldest)->number * 2;
		/* its owner may have claimed it just now */
		if (!pg_atomic_compare_exchange_u64(&piece_at(area, oldest)->state, &idle, 0))
			continue;
		make_free(area, oldest);
		area->rings--;
		area->gave_way++;
		return true;
	}
}

/* Is there so much for a ring that grows? */
static bool
may_grow_by(const Area *area, int size)
{
	return area->free_pieces - (1 << size) >= area->npieces / SHARE_TO_BEGIN;
}

static bool
take(uint64 room, bool begins, RingBlock *block)
{
	Area	   *area = module_shmem_get(&memory);
	int			size = room <= RING_PIECE ? 0 : pg_ceil_log2_64(room / RING_PIECE);
	Piece	   *piece;
	int			i;

	if (area == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	i = begins || may_grow_by(area, size) ? find_free(area, size) : NONE;
	if (i == NONE && begins && take_from_owner(area))
		i = find_free(area, size);
	if (i == NONE)
	{
		area->refused += begins;
		LWLockRelease(&area->lock);
		return false;
	}
	area->rings++;
	piece = piece_at(area, i);
	piece->number = ++area->last_number;
	piece->readers = 0;
	block->handle = handle_of(piece->number, i);
	block->idle = piece->number * 2;
	block->memory = area->memory + i * PIECE_BYTES;
	block->room = RING_PIECE << size;
	block->state = &piece->state;
	block->used = &piece->used;
	block->rests = false;
	pg_atomic_write_u64(&piece->state, block->idle + 1);
	LWLockRelease(&area->lock);
	/* readers must not see what others have left there */
	memset(block->memory, 0, PIECE_BYTES << size);
	return true;
}

static void
give_up(RingHandle handle)
{
	Area	   *area = module_shmem_get(&memory);
	Piece	   *piece;

	if (area == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	piece = block_of(area, handle);
	if (piece && pg_atomic_exchange_u64(&piece->state, 0) != 0)
	{
		area->rings--;
		/* else the last reader does it */
		if (piece->readers == 0)
			make_free(area, (int) (handle & (MOST_PIECES - 1)));
	}
	LWLockRelease(&area->lock);
}

static void *
hold(RingHandle handle)
{
	Area	   *area = module_shmem_get(&memory);
	Piece	   *piece;
	void	   *found = NULL;

	if (area == NULL)
		return NULL;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	piece = block_of(area, handle);
	if (piece && pg_atomic_read_u64(&piece->state) != 0)
	{
		piece->readers++;
		found = area->memory + (handle & (MOST_PIECES - 1)) * PIECE_BYTES;
	}
	LWLockRelease(&area->lock);
	return found;
}

static void
let_go(RingHandle handle)
{
	Area	   *area = module_shmem_get(&memory);
	Piece	   *piece;

	if (area == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	piece = block_of(area, handle);
	if (piece && --piece->readers == 0 && pg_atomic_read_u64(&piece->state) == 0)
		make_free(area, (int) (handle & (MOST_PIECES - 1)));
	LWLockRelease(&area->lock);
}

static bool
is_there(RingHandle handle)
{
	Area	   *area = module_shmem_get(&memory);
	uint64		i = handle & (MOST_PIECES - 1);
	uint64		number = (handle & ~RING_IN_AREA) >> PIECE_BITS;

	return area && i < (uint64) area->npieces &&
		pg_atomic_read_u64(&piece_at(area, (int) i)->state) / 2 == number;
}

static RingAreaUse
use(void)
{
	Area	   *area = module_shmem_get(&memory);
	RingAreaUse found = {0};

	if (area == NULL)
		return found;
	LWLockAcquire(&area->lock, LW_SHARED);
	found.bytes = area->npieces * PIECE_BYTES;
	found.free_bytes = area->free_pieces * PIECE_BYTES;
	found.rings = area->rings;
	found.gave_way = area->gave_way;
	found.refused = area->refused;
	LWLockRelease(&area->lock);
	return found;
}

static const RingAreaOffer offer = {take, give_up, hold, let_go, is_there, use};

void
ring_area_init(uint64 bytes)
{
	npieces = (int) Min(bytes / PIECE_BYTES, MOST_PIECES);
	if (npieces == 0)
		return;
	module_shmem_init(&memory);
	*find_rendezvous_variable(RING_AREA_OFFER) = (void *) &offer;
}
