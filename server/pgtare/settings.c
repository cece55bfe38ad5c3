/*-------------------------------------------------------------------------
 * settings.c
 *		Applying the settings of an arm to a session, and taking them back.
 *
 * Settings are switched while the session is idle, outside any transaction, so
 * that PostgreSQL keeps no stack of old values and nothing rolls them back.
 * Nothing here may throw: an error sent from an idle session would come between
 * the answers that its client expects.
 *
 * Values are set with source "interactive", which PostgreSQL itself never gives
 * to a value.  A SET by the application leaves "session" behind, a RESET the
 * source of the default: one comparison at each switch shows what is the
 * session's own from now on.  Changes that have been undone by then are seen by
 * setting_watch.c.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"

#include "pgtare.h"

typedef struct BoundSetting
{
	struct config_generic *conf;
	const char *name;
	char	   *own_value;		/* of a SET of the session's own, or NULL */
	char	   *present;		/* its value when it was the session's own last, or NULL */
	const char *applied;		/* what we gave it, and it still has; NULL: nothing */
	GucSource	expected;		/* source after our last change */
} BoundSetting;

static BoundSetting bound[MAX_SETTINGS];
static int	nbound = 0;

/* A variable by name; placeholders of libraries not loaded do not count. */
struct config_generic *
settings_find(const char *name)
{
	struct config_generic *found = setting_by_name(name);

	if (found && (found->flags & GUC_CUSTOM_PLACEHOLDER))
		return NULL;
	return found;
}

/* Keep a value; must not throw, so that without memory it is given up. */
static void
keep(char **place, const char *value)
{
	Size		size = value ? strlen(value) + 1 : 0;

	if (*place)
		pfree(*place);
	*place = value ? MemoryContextAllocExtended(TopMemoryContext, size, MCXT_ALLOC_NO_OOM) : NULL;
	if (*place)
		memcpy(*place, value, size);
}

/*
 * The session has its own value: an arm that keeps that is given it as any other arm
 * its own.
 */
static void
remember_own(BoundSetting *b)
{
	const char *value;
	char		digits[64];

	b->applied = NULL;
	if (b->conf->vartype == PGC_REAL)
	{
		/* GetConfigOption() shows six digits only */
		snprintf(digits, sizeof(digits), "%.17g", *SETTING_RECORD(b->conf, real)->variable);
		value = digits;
	}
	else
		value = GetConfigOption(b->name, true, false);
	keep(&b->present, value);
	keep(&b->own_value, b->conf->source == PGC_S_SESSION ? value : NULL);
}

/* One change, silently; false if PostgreSQL refused it. */
static bool
change(const char *name, const char *value, GucSource source)
{
	return set_config_option(name, value, PGC_SUSET, source, GUC_ACTION_SET,
							 true, DEBUG5, false) > 0;
}

static bool
apply_one(BoundSetting *b, const char *value)
{
	bool		ok = true;

	/* a lower source would be ignored while a SET of the session is in force */
	if (b->conf->source == PGC_S_SESSION)
		ok = change(b->name, NULL, PGC_S_SESSION);
	if (value)
		ok = change(b->name, value, PGC_S_INTERACTIVE) && ok;
	else
		ok = change(b->name, NULL, PGC_S_SESSION) && ok;
	b->expected = b->conf->source;
	b->applied = ok ? value : NULL;
	return ok;
}

/*
 * Look up the trial's settings in this session, and watch them until
 * settings_release(); false if one is missing, as with a library that is not
 * loaded here.
 */
bool
settings_bind(const TrialDef *def)
{
	nbound = 0;
	for (int s = 0; s < def->nsettings; s++)
	{
		BoundSetting *b = &bound[s];

		b->name = def->text + def->name[s];
		b->conf = settings_find(b->name);
		if (b->conf == NULL || !watch_setting(b->conf))
		{
			watch_end();
			return false;
		}
		remember_own(b);
		b->expected = b->conf->source;
	}
	nbound = def->nsettings;
	watch_reset();
	return true;
}

/* The session takes no part any more. */
void
settings_release(void)
{
	watch_end();
	nbound = 0;
}

/*
 * Has the application changed a setting since we did, be it for a while only?
 * What it left behind is now its own.  In a unit with a reload, changes are the
 * configuration file's.
 */
bool
settings_changed_by_application(bool reloaded)
{
	bool		changed = watch_changed();

	for (int s = 0; s < nbound; s++)
	{
		BoundSetting *b = &bound[s];

		if (likely(b->conf->source == b->expected))
			continue;
		changed = true;
		remember_own(b);
		b->expected = b->conf->source;
	}
	return changed && !reloaded;
}

/* Give a session back its own value, with the source that it had. */
static bool
restore_one(BoundSetting *b, const char *unused)
{
	bool		ok = true;

	/* what the application changed since our last switch is its own */
	if (b->conf->source != b->expected)
		remember_own(b);
	else
	{
		ok = change(b->name, NULL, PGC_S_SESSION);
		if (b->own_value)
			ok = change(b->name, b->own_value, PGC_S_SESSION) && ok;
	}
	b->expected = b->conf->source;
	b->applied = NULL;
	return ok;
}

/*
 * Do one thing to one setting; an error that a setting's hooks raise despite
 * what we ask of them becomes "false".
 */
static bool
quietly(bool (*action) (BoundSetting *, const char *), BoundSetting *b, const char *value)
{
	volatile bool ok = false;
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;

	PG_TRY();
	{
		HOLD_INTERRUPTS();
		ok = action(b, value);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		/* whatever stage it stopped at, the change was ours */
		b->expected = b->conf->source;
		b->applied = NULL;
	}
	PG_END_TRY();
	/* an error has set both to zero; the caller may be reading a message */
	InterruptHoldoffCount = holdoff;
	QueryCancelHoldoffCount = cancel_holdoff;
	return ok;
}

/* Has a setting that value, given by us and not changed since? */
static inline bool
has(const BoundSetting *b, const char *value)
{
	return value && b->applied && b->conf->source == b->expected &&
		(b->applied == value || strcmp(b->applied, value) == 0);
}

/* One pass of settings_apply(); false if PostgreSQL refused a setting. */
static bool
apply_all(const TrialDef *def, int arm)
{
	bool		ok = true;

	for (int s = 0; s < nbound; s++)
	{
		uint32		offset = def->value[arm][s];
		const char *value = offset == NO_TEXT ? bound[s].present : def->text + offset;

		if (likely(has(&bound[s], value)))
			continue;
		if (session.restored)
			remember_own(&bound[s]);
		value = offset == NO_TEXT ? bound[s].present : value;
		ok = quietly(apply_one, &bound[s], value) && ok;
	}
	session.restored = false;
	return ok;
}

/*
 * Put an arm's settings in force: of the trial's settings those that it has not
 * yet.  To set the others again would cool the processor's caches for nothing.
 * One that is refused may wait for another of this arm, as log_statement_stats
 * does for log_parser_stats: hence the second pass.
 */
bool
settings_apply(const TrialDef *def, int arm)
{
	bool		ok = likely(apply_all(def, arm)) || apply_all(def, arm);

	watch_reset();
	return ok;
}

/*
 * Give the session back what it had, with the sources that it had.  If it has that
 * already, what it holds may be newer than what we know.
 */
void
settings_restore(void)
{
	bool		refused[MAX_SETTINGS] = {false};

	for (int s = 0; s < nbound && !session.restored; s++)
		refused[s] = !quietly(restore_one, &bound[s], NULL);
	/* some wait for others to be given back, as in settings_apply() */
	for (int s = 0; s < nbound && !session.restored; s++)
		if (refused[s])
			(void) quietly(restore_one, &bound[s], NULL);
	session.restored = true;
	watch_reset();
}

/*
 * May cached plans differ by the trial's settings?  Those that the planner obeys, which
 * EXPLAIN (SETTINGS) shows, and the one by which queries get their identifiers.
 */
bool
settings_shape_plans(void)
{
	for (int s = 0; s < nbound; s++)
		if ((bound[s].conf->flags & GUC_EXPLAIN) ||
			strcmp(bound[s].conf->name, "compute_query_id") == 0)
			return true;
	return false;
}

static void
refuse(const char *name, const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("setting \"%s\" cannot be switched between transactions", name),
			 errdetail_internal("%s", why)));
}

/* The variable of this name; an error unless it may be part of an arm. */
struct config_generic *
settings_check(const char *name)
{
	static const char *const identity[] = {
		"role", "session_authorization", "client_encoding", "search_path",
		"transaction_isolation", "transaction_read_only", "transaction_deferrable",
		"session_replication_role", NULL
	};
	struct config_generic *conf = settings_find(name);

	if (conf == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("unrecognized configuration parameter \"%s\"", name),
				 errhint("A parameter of a library is known once the library is in "
						 "\"shared_preload_libraries\".")));
	for (int i = 0; identity[i]; i++)
		if (strcmp(conf->name, identity[i]) == 0)
			refuse(conf->name, "It decides whose a session is or what its transactions mean.");
	if (strcmp(conf->name, "temp_buffers") == 0)
		refuse(conf->name, "A session keeps the value that it has at its first temporary table.");
	if (pg_strncasecmp(name, "pgtare.", 7) == 0)
		refuse(conf->name, "It belongs to the scale itself.");
	if (conf->flags & GUC_REPORT)
		refuse(conf->name, "Its value is reported to the client, in the midst of answers.");
	if (conf->flags & GUC_NO_RESET_ALL)
		refuse(conf->name, "It has no value that a session could be given back.");
	switch (conf->context)
	{
		case PGC_SUSET:
		case PGC_USERSET:
			break;
		case PGC_SIGHUP:
			refuse(conf->name, "It acts in other processes, so an arm of a session would look free.");
			break;
		default:
			refuse(conf->name, "It is fixed when the server or the session starts.");
	}
	return conf;
}

/*
 * Raise an error unless a setting that has been checked would take the value,
 * with the caller's own rights: a trial must not lend those of a superuser.
 */
void
settings_try(const char *name, const char *value)
{
	(void) set_config_option(name, value, superuser() ? PGC_SUSET : PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SET, false, ERROR, false);
}
