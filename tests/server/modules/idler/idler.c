/*-------------------------------------------------------------------------
 * idler.c
 *		Functions that take time of known length, as a truth for tests.
 *
 * A call keeps the processor busy for as long as it is told, and books what it
 * really took, by the system's clock, under the place that it was given.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <time.h>

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(idle_for);
PG_FUNCTION_INFO_V1(idled);
PG_FUNCTION_INFO_V1(idled_reset);

#define PLACES 16

typedef struct Book
{
	int64		calls[PLACES];
	int64		ns[PLACES];
} Book;

/* Of all processes together, where the server loads the module */
static Book *book;

void		_PG_init(void);

void
_PG_init(void)
{
	book = mmap(NULL, sizeof(Book), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (book == MAP_FAILED)
		ereport(ERROR, (errmsg("no memory for the times idled: %m")));
}

static int64
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64) t.tv_sec * INT64CONST(1000000000) + t.tv_nsec;
}

static int
place_of(int32 place)
{
	if (place < 0 || place >= PLACES)
		ereport(ERROR, (errmsg("there is no place %d", place)));
	return place;
}

/* Always true, so that it can stand in any condition; of 0 it takes no time at all. */
Datum
idle_for(PG_FUNCTION_ARGS)
{
	int64		start = now_ns();
	int			place = place_of(PG_GETARG_INT32(0));
	int64		until = start + (int64) (PG_GETARG_FLOAT8(1) * 1000.0);
	int64		now;

	do
		now = now_ns();
	while (now < until);
	__atomic_fetch_add(&book->calls[place], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&book->ns[place], now - start, __ATOMIC_RELAXED);
	PG_RETURN_BOOL(true);
}

Datum
idled(PG_FUNCTION_ARGS)
{
	int			place = place_of(PG_GETARG_INT32(0));
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "called where no record is accepted");
	values[0] = Int64GetDatum(book->calls[place]);
	values[1] = Float8GetDatum((double) book->ns[place] / 1e6);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

Datum
idled_reset(PG_FUNCTION_ARGS)
{
	memset(book, 0, sizeof(Book));
	PG_RETURN_VOID();
}
