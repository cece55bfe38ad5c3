/*-------------------------------------------------------------------------
 * rights.c
 *		What a role that is not a superuser may do to the sessions of others.
 *
 * Such a role weighs settings of a list only, in sessions of the current
 * database whose roles it has the privileges of and that are no superuser's,
 * with short delays.  A session cannot look into the catalogs while it is idle,
 * where it decides to take part; so the roles are looked up when the trial
 * starts, and the session compares numbers.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc_tables.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "allowed_settings.h"
#include "pgtare.h"

#define MAX_DELAY_NS INT64CONST(1000000)

static bool
holds_here(const ArmSetting *setting)
{
	return BUILT_FOR_MAJOR >= ARM_SETTINGS_FIRST && BUILT_FOR_MAJOR <= ARM_SETTINGS_LAST &&
		BUILT_FOR_MAJOR >= setting->first &&
		(setting->last == 0 || BUILT_FOR_MAJOR <= setting->last);
}

static bool
is_listed(const char *name)
{
	for (int i = 0; i < (int) lengthof(arm_settings); i++)
		if (holds_here(&arm_settings[i]) && strcmp(arm_settings[i].name, name) == 0)
			return true;
	return false;
}

/* Raise an error unless the current role may make this setting part of an arm. */
void
rights_check_setting(const struct config_generic *conf)
{
	if (superuser() || is_listed(conf->name))
		return;
	if (BUILT_FOR_MAJOR < ARM_SETTINGS_FIRST || BUILT_FOR_MAJOR > ARM_SETTINGS_LAST)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("settings of PostgreSQL %d can be weighed by superusers only",
						BUILT_FOR_MAJOR),
				 errdetail("This version of pgtare does not know which of them do no harm."),
				 errhint("Update pgtare, or start the trial as a superuser.")));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("setting \"%s\" can be weighed by superusers only", conf->name),
			 errdetail("Other roles weigh settings that observe, and settings of the planner and "
					   "of memory that change no result."),
			 errhint("SELECT pgtare.arm_settings() lists them.")));
}

/* Likewise for a delay. */
void
rights_check_delay(int64 delay_ns)
{
	if (delay_ns > MAX_DELAY_NS && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("a role that is not a superuser can inject a delay of at most 1 ms"),
				 errhint("Use at most 1000000 ns, or start the trial as a superuser.")));
}

/* The roles whose sessions may take part: those of whose privileges the current role has. */
static void
find_roles(TrialDef *def)
{
	Relation	rel = table_open(AuthIdRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_authid role = (Form_pg_authid) GETSTRUCT(tuple);

		if (role->rolsuper || !has_privs_of_role(GetUserId(), role->oid))
			continue;
		if (def->nroles == MAX_ROLES)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("more than %d roles could take part", MAX_ROLES),
					 errhint("Start the trial as a role with fewer memberships, or as a "
							 "superuser.")));
		def->roles[def->nroles++] = role->oid;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

static bool
is_reachable(const TrialDef *def, Oid role)
{
	for (int i = 0; i < def->nroles; i++)
		if (def->roles[i] == role)
			return true;
	return false;
}

/* Limit the population to what the current role may reach, or raise an error. */
void
rights_limit_population(TrialDef *def)
{
	def->owner_role = GetUserId();
	def->limited = !superuser();
	if (!def->limited)
		return;
	if (!OidIsValid(def->database))
		def->database = MyDatabaseId;
	if (def->database != MyDatabaseId)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("a role that is not a superuser can weigh in its current database only"),
				 errhint("Connect to database \"%s\", or start the trial as a superuser.",
						 get_database_name(def->database))));
	find_roles(def);
	if (OidIsValid(def->role) && !is_reachable(def, def->role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("you cannot weigh in sessions of role \"%s\"",
						GetUserNameFromId(def->role, false)),
				 errhint("Name a role that you are a member of and that is not a superuser, or "
						 "start the trial as a superuser.")));
}

/*
 * May this session take part?  It runs with the rights of its current role, and
 * can go back to those of the other two.
 */
bool
rights_session_may_join(const TrialDef *def)
{
	return !def->limited ||
		(!GetSessionUserIsSuperuser() && is_reachable(def, GetUserId()) &&
		 is_reachable(def, GetSessionUserId()) && is_reachable(def, GetAuthenticatedUserId()));
}

static void
require_owner(Oid owner)
{
	char	   *name;

	if (!OidIsValid(owner) || has_privs_of_role(GetUserId(), owner))
		return;
	name = GetUserNameFromId(owner, true);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 name ? errmsg("the trial was started by role \"%s\"", name) :
			 errmsg("the trial was started by a role that has been dropped"),
			 errhint("That role, its members and superusers can close, stop and read it.")));
}

/*
 * Take the lock for closing, stopping or reading the trial; an error if it is
 * another role's (and runs, with "only_running").  False, without the lock, if a
 * trial is named and a later one has taken its place: that is none of the
 * caller's business.  Memberships are looked up without the lock, as that may
 * wait for the catalogs.
 */
bool
rights_lock_as_owner(Shared *shared, uint64 trial, bool only_running)
{
	for (;;)
	{
		uint64		generation;
		Oid			owner;

		LWLockAcquire(&shared->lock, LW_SHARED);
		generation = pg_atomic_read_u64(&shared->generation);
		owner = only_running && !pgtare_is_running(shared) ? InvalidOid :
			shared->def.owner_role;
		LWLockRelease(&shared->lock);
		if (trial != 0 && trial != generation)
			return false;
		require_owner(owner);
		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		if (pg_atomic_read_u64(&shared->generation) == generation)
			return true;
		LWLockRelease(&shared->lock);
	}
}

PG_FUNCTION_INFO_V1(pgtare_arm_settings);

/* arm_settings(): the names on the list, of this server's version and its libraries */
Datum
pgtare_arm_settings(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	for (int i = 0; i < (int) lengthof(arm_settings); i++)
	{
		const char *name = arm_settings[i].name;
		Datum		value = CStringGetTextDatum(name);
		bool		null = false;

		/* of a library that is not loaded there is nothing to set */
		if (holds_here(&arm_settings[i]) &&
			(strchr(name, '.') == NULL || settings_find(name) != NULL))
			tuplestore_putvalues(result->setResult, result->setDesc, &value, &null);
	}
	return (Datum) 0;
}
