/*-------------------------------------------------------------------------
 * dictionary.c
 *		The dictionary of the recorder: its memory, and its entries (dictionary.h).
 *-------------------------------------------------------------------------
 */
#include "dictionary.h"

#include "common/pg_prng.h"
#include "port/pg_bitutils.h"

#include "../../common/module_shmem.h"
#include "../../common/version.h"

#define NONE (-1)
#define CELL_DATA ((Size) sizeof(((Cell *) NULL)->data))

/* An eighth of the recorder's memory, but no less than this, if that is no more than half of it */
#define SHARE 8
#define LEAST_BYTES (UINT64CONST(64) * 1024)

/* An entry takes no more than this, and no more than an eighth of all */
#define MOST_ENTRY ((Size) 64 * 1024)

/* Cells that the hand passes by at most, for one entry; then what was needed makes way as well */
#define MOST_PASSED 4096

typedef struct Dictionary
{
	LWLock		lock;			/* everything except numbers and what is needed (dictionary.h) */
	int			tranche;
	int			ncells;
	int			nfree;
	int			first_free;
	int			hand;
	uint64		last;			/* entries ever */
	uint64		entries;
	uint64		replaced;
	uint32		nbuckets;		/* power of two */
	int			buckets[FLEXIBLE_ARRAY_MEMBER];
} Dictionary;

MODULE_LOCK_LEADS(Dictionary);

/* Where the next byte of an entry is */
typedef struct Place
{
	Cell	   *cell;
	Size		at;
} Place;

Cell	   *dictionary_cells = NULL;

static int	ncells = 0;
static uint32 nbuckets = 0;

static Size
cells_offset(void)
{
	return TYPEALIGN(PG_CACHE_LINE_SIZE, offsetof(Dictionary, buckets) + nbuckets * sizeof(int));
}

static Size
total_size(void)
{
	return add_size(cells_offset() + PG_CACHE_LINE_SIZE, mul_size(ncells, sizeof(Cell)));
}

static Cell *
cells_of(Dictionary *dictionary)
{
	return (Cell *) TYPEALIGN(PG_CACHE_LINE_SIZE, (char *) dictionary + cells_offset());
}

static void
initialise(void *fresh)
{
	Dictionary *dictionary = fresh;
	Cell	   *cells;

	memset(dictionary, 0, total_size());
	dictionary->ncells = dictionary->nfree = ncells;
	dictionary->nbuckets = nbuckets;
	for (uint32 i = 0; i < nbuckets; i++)
		dictionary->buckets[i] = NONE;
	cells = cells_of(dictionary);
	for (int i = 0; i < ncells; i++)
		cells[i].next = i + 1 < ncells ? i + 1 : NONE;
}

static ModuleShmem memory = {
	"sql_trace dictionary", "sql_trace_dictionary", PGTARE_VERSION, total_size, initialise
};

/* Called when the server loads the library: what it takes of the recorder's memory. */
uint64
dictionary_init(uint64 bytes)
{
	uint64		share = Min(Max(bytes / SHARE, LEAST_BYTES), bytes / 2);
	uint64		head = offsetof(Dictionary, buckets) + 2 * PG_CACHE_LINE_SIZE;

	if (share < LEAST_BYTES / 2)
		return 0;
	ncells = (int) Min((share - head) / (sizeof(Cell) + sizeof(int)), MOST_CELLS);
	nbuckets = pg_prevpower2_32((uint32) ncells);
	module_shmem_init(&memory);
	return total_size();
}

/* This process is going to have numbers of entries.  False: there is no dictionary. */
bool
dictionary_begin(void)
{
	Dictionary *dictionary = module_shmem_get(&memory);

	if (dictionary == NULL)
		return false;
	dictionary_cells = cells_of(dictionary);
	return true;
}

/* Bytes of a record at most */
uint32
dictionary_largest(void)
{
	return (uint32) Min(MOST_ENTRY, ncells / 8 * CELL_DATA);
}

static int *
bucket_of(Dictionary *dictionary, uint64 id)
{
	return &dictionary->buckets[(id ^ id >> 32) & (dictionary->nbuckets - 1)];
}

/* Bytes are put there, or compared with what is there: false, if they differ. */
static bool
pass(const Cell *cells, Place *place, const char *bytes, Size n, bool compare)
{
	while (n > 0)
	{
		Size		part;

		if (place->at == CELL_DATA)
			*place = (Place) {unconstify(Cell *, &cells[place->cell->next]), 0};
		part = Min(n, CELL_DATA - place->at);
		if (!compare)
			memcpy(&place->cell->data[place->at], bytes, part);
		else if (memcmp(&place->cell->data[place->at], bytes, part) != 0)
			return false;
		place->at += part;
		bytes += part;
		n -= part;
	}
	return true;
}

/* The same of all that is to be an entry. */
static bool
pass_all(const Cell *cells, Cell *first, const NameContent *content, bool compare)
{
	static const char zeros[8] = {0};
	Place		place = {first, 0};
	Size		size = content->head + content->size[0] + content->size[1];

	return pass(cells, &place, (const char *) content->record, content->head, compare) &&
		pass(cells, &place, content->data[0], content->size[0], compare) &&
		pass(cells, &place, content->data[1], content->size[1], compare) &&
		pass(cells, &place, zeros, content->record->header.size - size, compare);
}

static RecordKind
kind_of(const Cell *cell)
{
	return (RecordKind) ((const RecordHeader *) cell->data)->kind;
}

/* The caller holds the lock. */
static Cell *
find(Dictionary *dictionary, RecordKind kind, uint64 id)
{
	Cell	   *cells = cells_of(dictionary);

	for (int i = *bucket_of(dictionary, id); i != NONE; i = cells[i].neighbour)
		if (cells[i].id == id && kind_of(&cells[i]) == kind)
			return &cells[i];
	return NULL;
}

/*
 * The caller holds the lock.  The number of the entry that is the same, or 0.  If another
 * one has its identifier, it gets a new one.
 */
static uint64
find_same(Dictionary *dictionary, const NameContent *content)
{
	NameRecord *record = content->record;
	const Cell *cells = cells_of(dictionary);
	Cell	   *found = find(dictionary, (RecordKind) record->header.kind, record->id);

	if (found == NULL)
		return 0;
	if (found->size == record->header.size && pass_all(cells, found, content, true))
	{
		pg_atomic_write_u32(&found->needed, 1);
		return pg_atomic_read_u64(&found->number);
	}
	record->id = pg_prng_uint64(&pg_global_prng_state) | 1;
	return 0;
}

/* The caller holds the lock. */
static void
give_up(Dictionary *dictionary, int first)
{
	Cell	   *cells = cells_of(dictionary);
	int		   *link = bucket_of(dictionary, cells[first].id);
	int			i = first;

	while (*link != first)
		link = &cells[*link].neighbour;
	*link = cells[first].neighbour;
	pg_atomic_write_u64(&cells[first].number, 0);
	for (;;)
	{
		dictionary->nfree++;
		if (cells[i].next == NONE)
			break;
		i = cells[i].next;
	}
	cells[i].next = dictionary->first_free;
	dictionary->first_free = first;
	dictionary->entries--;
}

/* The caller holds the lock.  There are entries, as not all cells are free. */
static void
make_way(Dictionary *dictionary)
{
	Cell	   *cells = cells_of(dictionary);

	for (int passed = 0;; passed++)
	{
		int			i = dictionary->hand;
		Cell	   *cell = &cells[i];

		dictionary->hand = i + 1 < dictionary->ncells ? i + 1 : 0;
		if (pg_atomic_read_u64(&cell->number) == 0)
			continue;
		if (passed < MOST_PASSED && pg_atomic_read_u32(&cell->needed) != 0)
		{
			pg_atomic_write_u32(&cell->needed, 0);
			continue;
		}
		give_up(dictionary, i);
		dictionary->replaced++;
		return;
	}
}

static Size
size_of(const NameContent *content)
{
	return content->head + content->size[0] + content->size[1];
}

/* The caller holds the lock. */
static uint64
add(Dictionary *dictionary, const NameContent *content)
{
	const NameRecord *record = content->record;
	Cell	   *cells = cells_of(dictionary);
	int			n = (int) ((record->header.size + CELL_DATA - 1) / CELL_DATA);
	int			first;
	int			last;
	int		   *bucket = bucket_of(dictionary, record->id);
	uint64		number;

	while (dictionary->nfree < n)
		make_way(dictionary);
	first = last = dictionary->first_free;
	for (int i = 1; i < n; i++)
		last = cells[last].next;
	dictionary->first_free = cells[last].next;
	dictionary->nfree -= n;
	cells[last].next = NONE;
	(void) pass_all(cells, &cells[first], content, false);
	cells[first].size = record->header.size;
	cells[first].id = record->id;
	cells[first].neighbour = *bucket;
	*bucket = first;
	dictionary->entries++;
	number = IN_DICTIONARY | (++dictionary->last << CELL_BITS & ~NEEDED_ONCE) | (uint64) first;
	pg_atomic_write_u32(&cells[first].needed, 0);
	pg_atomic_write_u64(&cells[first].number, number);
	return number;
}

static bool
take_lock(Dictionary *dictionary, LWLockMode mode, bool may_wait)
{
	return may_wait ? LWLockAcquire(&dictionary->lock, mode), true :
		LWLockConditionalAcquire(&dictionary->lock, mode);
}

/*
 * The number of an entry with this content; the header of its record needs only its kind.
 * 0: there is no place for it, or a lock would have to be waited for.  It gets another
 * identifier if another entry has its own.
 */
uint64
dictionary_put(const NameContent *content, bool may_wait)
{
	Dictionary *dictionary = module_shmem_get(&memory);
	RecordHeader *header = &content->record->header;
	uint64		number;

	if (dictionary == NULL || size_of(content) > dictionary_largest())
		return 0;
	*header = (RecordHeader) {
		.size = (uint32) TYPEALIGN(8, size_of(content)),.kind = header->kind
	};
	if (!take_lock(dictionary, LW_SHARED, may_wait))
		return 0;
	number = find_same(dictionary, content);
	LWLockRelease(&dictionary->lock);
	if (number != 0 || !take_lock(dictionary, LW_EXCLUSIVE, may_wait))
		return number;
	number = find_same(dictionary, content);
	if (number == 0)
		number = add(dictionary, content);
	LWLockRelease(&dictionary->lock);
	return number;
}

/* Append the record of an entry, if there is one. */
void
dictionary_look(RecordKind kind, uint64 id, StringInfo to)
{
	Dictionary *dictionary = module_shmem_get(&memory);
	const Cell *found;

	if (dictionary == NULL)
		return;
	enlargeStringInfo(to, (int) dictionary_largest());	/* which cannot be done under the lock */
	LWLockAcquire(&dictionary->lock, LW_SHARED);
	found = find(dictionary, kind, id);
	for (Size left = found ? found->size : 0; left > 0;)
	{
		Size		part = Min(left, CELL_DATA);

		memcpy(to->data + to->len, found->data, part);
		to->len += (int) part;
		left -= part;
		if (left > 0)
			found = &cells_of(dictionary)[found->next];
	}
	LWLockRelease(&dictionary->lock);
}

DictionaryUse
dictionary_use(void)
{
	Dictionary *dictionary = module_shmem_get(&memory);
	DictionaryUse use = {0};

	if (dictionary == NULL)
		return use;
	LWLockAcquire(&dictionary->lock, LW_SHARED);
	use.bytes = (uint64) dictionary->ncells * sizeof(Cell);
	use.free_bytes = (uint64) dictionary->nfree * sizeof(Cell);
	use.entries = dictionary->entries;
	use.replaced = dictionary->replaced;
	LWLockRelease(&dictionary->lock);
	return use;
}
