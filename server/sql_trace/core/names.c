/*-------------------------------------------------------------------------
 * names.c
 *		Texts and plans that records name, and that are not among them.
 *
 * Sessions of the recorder write into their rings only the identifiers of what they
 * have put into the dictionary.  Whoever copies records out of a ring puts what is found here in
 * front of them.
 *-------------------------------------------------------------------------
 */
#include "dictionary.h"

#include "utils/hsearch.h"

/* It ends there: no reader takes more at once. */
#define MOST_NAMES (64 * 1024 * 1024)

typedef struct Named
{
	uint64		id;
	uint64		kind;			/* RecordKind: TEXT or PLAN */
} Named;

typedef struct Search
{
	HTAB	   *known;			/* Named: among the records, or found */
	StringInfo	to;				/* NULL: what is among the records is being noted */
} Search;

static void
meet(Search *search, RecordKind kind, uint64 id)
{
	Named		key = {id, (uint64) kind};
	bool		found;

	if (id == 0)
		return;
	(void) hash_search(search->known, &key, HASH_ENTER, &found);
	if (search->to && !found && search->to->len < MOST_NAMES)
		dictionary_look(kind, id, search->to);
}

/* An identifier in a record, wherever it is; 0: the record ends before */
static uint64
id_at(const char *record, Size size, Size at)
{
	uint64		id = 0;

	if (at + sizeof(id) <= size)
		memcpy(&id, record + at, sizeof(id));
	return id;
}

static Size
counters_size(uint16 flags)
{
	return sizeof(uint64) * ((flags & CALL_SHARED ? 4 : 0) + (flags & CALL_LOCAL_TEMP ? 6 : 0) +
							 (flags & CALL_WAL ? 2 : 0));
}

/* The plans of a request in one record */
static void
meet_plans(Search *search, const char *record, Size size)
{
	for (Size at = sizeof(FusedRecord); at + sizeof(FusedCall) <= size;)
	{
		FusedCall	call;

		memcpy(&call, record + at, sizeof(call));
		at += sizeof(call);
		if (call.kind == FUSED_BINDS)
		{
			at += call.start;	/* where the size of values is */
			continue;
		}
		if (call.flags & FUSED_ROWS)
			at += sizeof(uint64);
		if (call.flags & FUSED_PLAN)
		{
			meet(search, RECORD_PLAN, id_at(record, size, at));
			at += sizeof(uint64);
		}
		at += counters_size(call.flags);
	}
}

StaticAssertDecl(offsetof(FusedCall, start) == offsetof(FusedBinds, size),
				 "both kinds of items are read as one");

static void
meet_all(Search *search, RecordKind kind, const char *record, Size size)
{
	switch (kind)
	{
		case RECORD_CALL:
			meet(search, RECORD_TEXT, id_at(record, size, offsetof(CallRecord, text)));
			meet(search, RECORD_PLAN, id_at(record, size, offsetof(CallRecord, plan)));
			break;
		case RECORD_ERROR:
			meet(search, RECORD_TEXT, id_at(record, size, offsetof(ErrorRecord, text)));
			break;
		case RECORD_ROWSOURCES:
			meet(search, RECORD_PLAN, id_at(record, size, offsetof(RowSourcesRecord, plan)));
			break;
		case RECORD_FUSED:
		case RECORD_OPEN:
			meet(search, RECORD_TEXT, id_at(record, size, offsetof(FusedRecord, text)));
			meet_plans(search, record, size);
			break;
		default:
			break;
	}
}

static void
walk(Search *search, const char *records, Size size)
{
	for (Size at = 0; at + sizeof(RecordHeader) <= size;)
	{
		const RecordHeader *header = (const RecordHeader *) (records + at);

		if (!record_size_fits(header->size, size - at))
			return;
		if (search->to)
			meet_all(search, (RecordKind) header->kind, records + at, header->size);
		else if (header->kind == RECORD_TEXT || header->kind == RECORD_PLAN)
			meet(search, (RecordKind) header->kind,
				 id_at(records + at, header->size, offsetof(NameRecord, id)));
		at += header->size;
	}
}

/*
 * Append the texts and plans, as records, that these records name without having them.
 * What the dictionary has lost is not found.
 */
void
names_find(const char *records, Size size, StringInfo to)
{
	HASHCTL		control = {
		.keysize = sizeof(Named),.entrysize = sizeof(Named),.hcxt = CurrentMemoryContext
	};
	Search		search = {0};

	if (size == 0 || !dictionary_begin())
		return;
	search.known = hash_create("names in a trace", 256, &control,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	walk(&search, records, size);
	search.to = to;
	walk(&search, records, size);
	hash_destroy(search.known);
}
