/*-------------------------------------------------------------------------
 * binds.c
 *		Values bound to an execution, as the server holds them.
 *
 * No output function is called: it would take its time, and could fail.  Values
 * of built-in types are copied as they are, of others only their type is recorded.
 *-------------------------------------------------------------------------
 */
#include "fused.h"
#include "secrets.h"
#include "statement.h"
#include "../core/module.h"
#include "../core/ring_store.h"

#include "access/transam.h"
#include "access/tupmacs.h"
#include "nodes/params.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

static int	longest_shown = 64;		/* setting: bytes of a value; -1: of any length */

/* How a value is to be shown, and where its bytes are */
typedef struct Shown
{
	BindEntry	entry;
	const char *bytes;
	Datum		value;			/* the bytes themselves, of what is passed by value */
} Shown;

/* Bytes of them that are gathered while their size is requested */
#define GATHERED 512

typedef struct TypeForm
{
	Oid			type;
	int16		length;
	bool		by_value;
} TypeForm;

/* Neighbours are often alike. */
static const TypeForm *
form_of(Oid type)
{
	static TypeForm last = {InvalidOid};

	if (last.type != type)
	{
		get_typlenbyval(type, &last.length, &last.by_value);
		last.type = type;
	}
	return &last;
}

/* Where the bytes of a value are; false: they are not at hand. */
static bool
locate(Shown *shown, Datum value, const TypeForm *form)
{
	const void *pointer;

	if (form->by_value)
	{
		shown->entry.form = BIND_BY_VALUE;
		shown->entry.length = form->length;
		/* stored as the type has it, not as a Datum */
		store_att_byval(&shown->value, value, form->length);
		shown->bytes = (const char *) &shown->value;
		return true;
	}
	pointer = DatumGetPointer(value);
	if (form->length > 0)
	{
		shown->entry.form = BIND_FIXED;
		shown->entry.length = form->length;
		shown->bytes = pointer;
		return true;
	}
	if (form->length == -2)
	{
		shown->entry.form = BIND_CSTRING;
		shown->entry.length = (uint32) strlen(pointer);
		shown->bytes = pointer;
		return true;
	}
	if (VARATT_IS_EXTERNAL(pointer) || VARATT_IS_COMPRESSED(pointer))
		return false;
	shown->entry.form = BIND_VARIABLE;
	shown->entry.length = (uint32) VARSIZE_ANY_EXHDR(pointer);
	shown->bytes = VARDATA_ANY(pointer);
	return true;
}

/* "room": bytes that there are for the value.  Inline, as most executions have one. */
static pg_attribute_always_inline void
show(Shown *shown, const ParamExternData *parameter, bool secret, Size room)
{
	shown->entry = (BindEntry) {0};
	shown->bytes = NULL;
	shown->entry.type = parameter->ptype;
	if (parameter->isnull)
		shown->entry.state = BIND_NULL;
	else if (!OidIsValid(parameter->ptype) || parameter->ptype >= FirstGenbkiObjectId ||
			 !locate(shown, parameter->value, form_of(parameter->ptype)))
		shown->entry.state = BIND_OMITTED;
	else if (secret || (longest_shown >= 0 && shown->entry.length > (uint32) longest_shown))
		shown->entry.state = BIND_REDACTED;
	else
	{
		shown->entry.state = shown->entry.length <= room ? BIND_WHOLE : BIND_CUT;
		shown->entry.stored = (uint32) Min(shown->entry.length, room);
	}
	/* without bytes there is nothing whose form could be recorded */
	if (shown->entry.stored == 0 && shown->entry.state != BIND_WHOLE)
		shown->entry.form = BIND_NONE;
}

static Size
size_of(const BindEntry *entry)
{
	return sizeof(*entry) + TYPEALIGN(8, entry->stored);
}

static void
gather(char *into, const Shown *shown)
{
	memcpy(into, &shown->entry, sizeof(BindEntry));
	if (shown->entry.stored == 0)
		return;
	into += sizeof(BindEntry);
	memset(into + TYPEALIGN(8, shown->entry.stored) - 8, 0, 8);
	memcpy(into, shown->bytes, shown->entry.stored);
}

/* Those that were not gathered */
static pg_noinline void
put_all(const ParamExternData *params, int n, bool secret, Size limit)
{
	Size		size = 0;
	Shown		shown;

	for (int i = 0; i < n; i++)
	{
		show(&shown, &params[i], secret, limit - size - sizeof(BindEntry));
		ring_put(&shown.entry, sizeof(BindEntry));
		if (shown.entry.stored > 0)
			ring_put(shown.bytes, shown.entry.stored);
		ring_pad();
		size += size_of(&shown.entry);
	}
}

/*
 * Write the values of an execution, as they were then.  Lists that fetch their values only when
 * asked are those of PL/pgSQL's variables, and left out.
 */
void
binds_write(uint64 call, ParamListInfo parameters, bool secret, int64 time)
{
	BindsRecord record = {0};
	char		gathered[GATHERED];
	Size		limit = trace.ring->size / 4;
	Size		size = 0;
	Shown		shown;
	int			n;

	if (parameters == NULL || parameters->numParams <= 0 || parameters->paramFetch != NULL)
		return;
	secret = secret || secrets_of_role();
	limit -= sizeof(record);
	/* their size must be known beforehand */
	for (n = 0; n < parameters->numParams && size + sizeof(BindEntry) <= limit; n++)
	{
		show(&shown, &parameters->params[n], secret, limit - size - sizeof(BindEntry));
		if (size + size_of(&shown.entry) <= GATHERED)
			gather(gathered + size, &shown);
		size += size_of(&shown.entry);
	}
	record.parameters = parameters->numParams;
	record.entries = n;
	if (fused.open && size <= GATHERED &&
		fused_binds(call, record.parameters, n, gathered, size, time))
		return;
	if (size <= GATHERED)
		(void) record_write_with(RECORD_BINDS, trace.depth, call, time, &record, sizeof(record),
								 gathered, size);
	else if (record_begin(RECORD_BINDS, trace.depth, call, time, sizeof(record) + size,
						  &record.header))
	{
		ring_put(&record, sizeof(record));
		put_all(parameters->params, n, secret, limit);
		ring_end();
	}
}

/* Called when the library is loaded. */
void
binds_init(void)
{
	DefineCustomIntVariable("sql_trace.bind_length",
							"Values that take more bytes are not shown.",
							"-1: all are shown.",
							&longest_shown, 64, -1, 1024 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
}
