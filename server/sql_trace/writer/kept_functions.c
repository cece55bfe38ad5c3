/*-------------------------------------------------------------------------
 * kept_functions.c
 *		Kept traces, for SQL: which there are, and reading one.
 *
 * A trace holds values of whoever's statements ran in it: all of this is for
 * members of pg_read_all_stats.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"

#include <fcntl.h>
#include <unistd.h>

#include "../../common/sql_rows.h"

PG_FUNCTION_INFO_V1(sql_trace_kept);
PG_FUNCTION_INFO_V1(sql_trace_kept_info);
PG_FUNCTION_INFO_V1(sql_trace_kept_file);
PG_FUNCTION_INFO_V1(sql_trace_kept_forget);

static KeptShared *
shared_or_error(void)
{
	KeptShared *shared;

	/* a session that loads the library may have one memory and not the other */
	(void) shmem_get_or_error();
	shared = kept_get_or_error();
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for kept traces"),
				 errhint("Members of pg_read_all_stats may read them.")));
	return shared;
}

static void
put_kept(FunctionCallInfo fcinfo, const KeptTrace *kept)
{
	Datum		values[12];
	bool		nulls[12] = {0};
	char		detail[KEPT_DETAIL];

	trigger_detail(&kept->trigger, detail, sizeof(detail));
	values[0] = Int64GetDatum(kept->id);
	values[1] = Int32GetDatum(kept->trace.pid);
	values[2] = ObjectIdGetDatum(kept->trace.role);
	values[3] = ObjectIdGetDatum(kept->trace.database);
	values[4] = CStringGetTextDatum(kept->trace.application);
	values[5] = CStringGetTextDatum(trigger_cause_name(kept->trigger.cause));
	values[6] = CStringGetTextDatum(detail);
	values[7] = Int64GetDatum(kept->trigger.query_id);
	nulls[7] = kept->trigger.query_id == 0;
	values[8] = TimestampTzGetDatum(kept->trigger.at);
	values[9] = Int64GetDatum((int64) (kept->trace.handle != 0 ?
									   kept->trace.memory + kept->waits_memory : 0));
	nulls[10] = kept->file[0] == '\0';
	values[10] = nulls[10] ? (Datum) 0 : CStringGetTextDatum(kept->file);
	nulls[11] = kept->incident == 0;
	values[11] = Int64GetDatum(kept->incident);
	sql_put_row(fcinfo, values, nulls);
}

Datum
sql_trace_kept(PG_FUNCTION_ARGS)
{
	KeptShared *shared = shared_or_error();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < MAX_PLACES; i++)
	{
		KeptTrace	kept;

		LWLockAcquire(&shared->lock, LW_SHARED);
		kept = shared->kept[i];
		LWLockRelease(&shared->lock);
		if (kept.id != 0)
			put_kept(fcinfo, &kept);
	}
	return (Datum) 0;
}

/* How many there have been since the server started, and what was not kept */
Datum
sql_trace_kept_info(PG_FUNCTION_ARGS)
{
	KeptShared *shared = shared_or_error();
	Datum		values[5];
	bool		nulls[5] = {0};
	const char *directory = keeper_directory();

	LWLockAcquire(&shared->lock, LW_SHARED);
	values[0] = TimestampTzGetDatum(shared->since);
	values[1] = Int64GetDatum(shared->last_id);
	values[2] = Int64GetDatum(shared->skipped);
	values[3] = Int64GetDatum(shared->refused);
	LWLockRelease(&shared->lock);
	nulls[4] = directory == NULL;
	values[4] = directory ? CStringGetTextDatum(directory) : (Datum) 0;
	return sql_row(fcinfo, values, nulls);
}

/* One that is in a file alone; NULL: it cannot be read there. */
static bytea *
read_file(const KeptTrace *kept)
{
	char		path[MAXPGPATH];
	const char *directory = keeper_directory();
	bytea	   *data = NULL;
	off_t		size;
	int			fd;

	if (directory == NULL || kept->file[0] == '\0')
		return NULL;
	snprintf(path, sizeof(path), "%s/%s", directory, kept->file);
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	size = lseek(fd, 0, SEEK_END);
	if (size > 0 && size < MaxAllocSize - VARHDRSZ)
		data = palloc_extended(VARHDRSZ + size, MCXT_ALLOC_NO_OOM);
	if (data)
	{
		SET_VARSIZE(data, VARHDRSZ + size);
		if (pread(fd, VARDATA(data), size, 0) != size)
			data = NULL;
	}
	close(fd);
	return data;
}

/* A kept trace as one file of a trace */
Datum
sql_trace_kept_file(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	KeptTrace	kept;
	StringInfoData bytes;
	bytea	   *data;

	(void) shared_or_error();
	if (!kept_find(id, &kept))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no kept trace " INT64_FORMAT, id)));
	if (kept.trace.handle != 0 && kept_file(&kept, &bytes))
		PG_RETURN_BYTEA_P(cstring_to_text_with_len(bytes.data, bytes.len));
	/* it may have been written in between */
	if (!kept_find(id, &kept) || (data = read_file(&kept)) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the kept trace " INT64_FORMAT " cannot be read", id),
				 kept.file[0] != '\0' ?
				 errdetail("It was written to \"%s\" in sql_trace.keep_directory.", kept.file) :
				 errdetail("It has just been given up.")));
	PG_RETURN_BYTEA_P(data);
}

/* Give one up; its file stays.  False: there is none of that number. */
Datum
sql_trace_kept_forget(PG_FUNCTION_ARGS)
{
	(void) shmem_get_or_error();
	(void) kept_get_or_error();
	PG_RETURN_BOOL(kept_done(PG_GETARG_INT64(0), NULL));
}
