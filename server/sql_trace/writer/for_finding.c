/*-------------------------------------------------------------------------
 * for_finding.c
 *		Traces that somebody asks for who found what slows the server.
 *
 * The function only notes what is wanted, and wakes the worker that writes files
 * (keeper.c): it waits for nobody, and touches no ring.  Who may call it need not be
 * allowed to read what is kept.  So that nothing else makes way for it, it has places
 * and a number in an hour of its own.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"
#include "../calls/secrets.h"
#include "../core/module.h"

#include "utils/array.h"
#include "utils/guc.h"

#include "../../common/sql_rows.h"

#define MOST_SESSIONS 8			/* of one finding */

/* Nothing that a path, JSON or a terminal takes for more than a letter */
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_:@-"

static int	keep_findings = 15;

PG_FUNCTION_INFO_V1(sql_trace_keep_for_finding);

static void
check_label(const char *label)
{
	Size		length = strlen(label);

	if (length == 0 || length >= KEPT_DETAIL || strspn(label, LETTERS) != length)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("this cannot be the label of a kept trace"),
				 errhint("Use 1 to %d letters and digits, and the signs _ : @ and -.",
						 KEPT_DETAIL - 1)));
	if (secret_words_in(label, length))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a word in the label of a kept trace shows a secret")));
}

/* The caller holds the lock.  NULL: the hour has had all that the setting allows. */
static KeptTrace *
free_place(KeptShared *shared, TimestampTz now)
{
	KeptTrace  *oldest = NULL;
	int			in_hour = 0;

	for (int i = MAX_KEPT; i < MAX_PLACES; i++)
	{
		KeptTrace  *kept = &shared->kept[i];

		if (kept->id != 0 && kept_is_near(kept->trigger.at, now, USECS_PER_HOUR))
			in_hour++;
		else if (oldest == NULL || kept->trigger.at < oldest->trigger.at)
			oldest = kept;
	}
	return in_hour < keep_findings ? oldest : NULL;
}

/* The incident in which one of them waits, as the worker has seen; else a new one */
static int64
incident_of(const Shared *shared, KeptShared *kept, const int32 *pids, int n)
{
	int64		found = 0;

	LWLockAcquire(&kept->lock, LW_SHARED);
	for (uint32 i = 0; i < shared->nslots && found == 0; i++)
	{
		const LockWatch *watch = &kept->watch[i];
		const PGPROC *proc = &ProcGlobal->allProcs[i];

		for (int k = 0; k < n && found == 0; k++)
			if (watch->pid == pids[k] && proc->pid == pids[k] &&
				proc->waitStatus == PROC_WAIT_STATUS_WAITING)
				found = watch->incident;
	}
	LWLockRelease(&kept->lock);
	return found != 0 ? found : (int64) pg_atomic_add_fetch_u64(&kept->last_incident, 1);
}

/* Ask for one; returns why it is not kept, or NULL. */
static const char *
ask(Shared *shared, KeptShared *kept, KeptTrace *asked, int pid)
{
	KeptTrace  *place;

	if (keeper_directory() == NULL)
		return "sql_trace.keep_directory is not set";
	if (pg_atomic_read_u32(&kept->keeper) == 0)
		return "nothing can be written to sql_trace.keep_directory now";
	if (!shmem_find_trace(shared, pid, false, &asked->trace) || asked->trace.level == 0)
		return "the session is not traced";
	asked->trace.handle = 0;
	LWLockAcquire(&kept->lock, LW_EXCLUSIVE);
	place = free_place(kept, asked->trigger.at);
	if (place)
	{
		asked->id = ++kept->last_id;
		*place = *asked;
	}
	LWLockRelease(&kept->lock);
	return place ? NULL : "sql_trace.keep_findings allows no more in this hour";
}

static bool
is_earlier(const int32 *pids, int at)
{
	for (int i = 0; i < at; i++)
		if (pids[i] == pids[at])
			return true;
	return false;
}

Datum
sql_trace_keep_for_finding(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	char	   *label = text_to_cstring(PG_GETARG_TEXT_PP(1));
	int			n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	const int32 *pids = (const int32 *) ARR_DATA_PTR(array);
	Shared	   *shared = shmem_get_or_error();
	KeptShared *kept = kept_get_or_error();
	KeptTrace	asked = {0};

	if (n > MOST_SESSIONS || array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the traces of at most %d sessions are kept for a finding", MOST_SESSIONS)));
	check_label(label);
	asked.is_live = true;
	asked.incident = incident_of(shared, kept, pids, n);
	asked.trigger.cause = CAUSE_FINDING;
	asked.trigger.at = GetCurrentTimestamp();
	strlcpy(asked.trigger.label, label, sizeof(asked.trigger.label));
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		const char *missing;
		char		file[KEPT_FILE_NAME];
		Datum		values[5];
		bool		nulls[5] = {0};

		if (is_earlier(pids, i))
			continue;
		missing = ask(shared, kept, &asked, pids[i]);
		keeper_name_file(&asked, file, sizeof(file));
		values[0] = Int32GetDatum(pids[i]);
		values[1] = Int64GetDatum(asked.id);
		values[2] = CStringGetTextDatum(file);
		values[3] = Int64GetDatum(asked.incident);
		nulls[1] = nulls[2] = nulls[3] = missing != NULL;
		nulls[4] = missing == NULL;
		values[4] = missing ? CStringGetTextDatum(missing) : (Datum) 0;
		sql_put_row(fcinfo, values, nulls);
	}
	kept_wake_keeper(kept);
	return (Datum) 0;
}

/* Called when the library is loaded. */
void
for_finding_init(void)
{
	DefineCustomIntVariable("sql_trace.keep_findings",
							"Traces that are kept for findings in an hour.",
							"They are in addition to those that triggers keep; 0: none.",
							&keep_findings, 15, 0, MAX_FOR_FINDINGS,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
}
