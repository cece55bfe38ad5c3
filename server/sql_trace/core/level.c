/*-------------------------------------------------------------------------
 * level.c
 *		Whether, and at which level, this session is traced (level.h).
 *-------------------------------------------------------------------------
 */
#include "level.h"
#include "module.h"
#include "record.h"
#include "timeline.h"
#include "../calls/secrets.h"
#include "../calls/statement.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"

#include "../../common/application.h"
#include "../../common/module_settings.h"
#include "../../common/setting_list.h"

/* What a pattern of the application's name can say in the place of a level */
#define LEVEL_RECORDER 16

typedef struct QueryIds
{
	int			n;
	int64		id[FLEXIBLE_ARRAY_MEMBER];
} QueryIds;

double		level_statement_rate = 1;
bool		level_has_query_ids = false;

static bool enabled = true;
static int	level_setting = 0;
static bool recorder = false;
static int	recorder_level = 8;
static int	query_level = 12;
static char *query_ids_text = NULL;

/* Those of patterns of the application's name; the recorder is no level of a setting */
static const struct config_enum_entry levels_of_applications[] = {
	{"recorder", LEVEL_RECORDER, false},
	{"0", 0, false},
	{"1", 1, false},
	{"4", 4, false},
	{"8", 8, false},
	{"12", 12, false},
	{NULL, 0, false}
};

#define levels (&levels_of_applications[1])

static const ApplicationLevels application_levels = {
	levels_of_applications, "level of a trace", "0, 1, 4, 8, 12 and recorder", "12", NULL
};

static GucSource source_of_setting = PGC_S_DEFAULT;
static bool changed = true;		/* a setting that the level depends on */
static uint32 asked_seen = 0;	/* of the slot's "asked" */
static bool asked = false;		/* by another session, later than our setting was changed */
static double rate_recorded;		/* by the last record, which lies at ... */
static uint64 recorded_at;
static bool was_enabled = true;
static WaitsWanted waits_wanted = WAITS_OFF;
static bool matched = false;	/* statements of this session are traced by their identifiers */

/*
 * The last look at all of this left nothing to be done.  It is not repeated until
 * one of the few things differs that a request can change unnoticed.
 */
static bool settled = false;
static const char *application_seen;	/* where the name was then */
static uint64 oldest_needed;	/* of our records in the ring */
static const QueryIds *query_ids = NULL;

/* The setting of this session changed, or is read again; it replaces what others requested. */
static void
setting_changed(int level, void *extra)
{
	GucSource	source = *(GucSource *) extra;

	/* a reload that brings nothing new to this session is no word of it */
	if (source >= PGC_S_GLOBAL || source != source_of_setting || level != level_setting)
		asked = false;
	source_of_setting = source;
	changed = true;
	settled = false;
}

/* A setting has another value that the level depends on, maybe the application's name. */
void
level_setting_reported(void)
{
	settled = false;
}

/* Whether, or how, the recorder traces this session has changed. */
static void
recorder_changed(bool newval, void *extra)
{
	changed = true;
	settled = false;
}

static void
recorder_level_changed(int newval, void *extra)
{
	recorder_changed(recorder, extra);
}

static bool
parse_query_id(char *text, void *to)
{
	char	   *end;

	errno = 0;
	*(int64 *) to = strtoll(text, &end, 10);
	if (errno == 0 && end != text && *end == '\0')
		return true;
	GUC_check_errdetail("\"%s\" is no query identifier.", text);
	return false;
}

static bool
check_query_ids(char **newval, void **extra, GucSource source)
{
	return setting_list_check(*newval, extra, offsetof(QueryIds, id), sizeof(int64),
							  parse_query_id, "numbers");
}

static void
query_ids_changed(const char *newval, void *extra)
{
	query_ids = extra;
	level_has_query_ids = query_ids != NULL && query_ids->n > 0;
	changed = true;
	settled = false;
}

/*
 * The caller holds the lock, and has taken this slot: what was requested of its last
 * owner is not meant for us, nor the other way round.
 */
void
level_begin(Slot *slot)
{
	asked_seen = pg_atomic_read_u32(&slot->asked);
	pg_atomic_write_u32(&slot->asked_level, NOT_ASKED);
}

/* The level at which somebody wants this session to be traced, and why */
static int
requested(LevelReason *reason)
{
	Slot	   *slot = trace.slot;
	uint32		n = pg_atomic_read_u32(&slot->asked);
	int			level = level_setting;
	uint32		asked_level;

	pg_read_barrier();
	asked_level = pg_atomic_read_u32(&slot->asked_level);
	if (n != asked_seen)
	{
		asked_seen = n;
		asked = asked_level != NOT_ASKED;
	}
	*reason = REASON_SETTING;
	if (!enabled)
		return 0;
	if (asked && asked_level != NOT_ASKED)
	{
		*reason = REASON_ASKED;
		return (int) asked_level;
	}
	if (source_of_setting < PGC_S_GLOBAL && application_matches(&level))
		*reason = REASON_APPLICATION;
	return level;
}

/*
 * The level that this session should have, and why.  The recorder has what nobody
 * else traces, not even single statements.
 */
static int
wanted(LevelReason *reason)
{
	int			level = requested(reason);
	bool		recorded = recorder || level == LEVEL_RECORDER;

	if (level == LEVEL_RECORDER)
		level = 0;
	if (level > 0 || !recorded || !enabled || *reason == REASON_ASKED ||
		level_has_query_ids)
		return level;
	*reason = REASON_RECORDER;
	return recorder_level;
}

static void
write_level(void)
{
	LevelRecord record = {0};

	record.level = trace.level;
	record.reason = trace.reason;
	record.statement_rate = rate_recorded = level_statement_rate;
	trace.slot->trace.level = trace.level;
	trace.slot->trace.reason = trace.reason;
	recorded_at = ring_head();
	record_write(RECORD_LEVEL, trace.depth, trace.current, timeline_now(), &record,
					  sizeof(record));
}

static void
apply(int level, LevelReason reason)
{
	trace.level = level;
	trace.reason = reason;
	if (trace.ring == NULL)
		return;
	if (level > 0)
		text_begin_as(reason == REASON_RECORDER);
	write_level();
}

static WaitsWanted
waits_of_level(void)
{
	return !LEVEL_WAITS(trace.level) ? WAITS_OFF :
		trace.reason == REASON_RECORDER ? WAITS_RECORDED : WAITS_TRACED;
}

/*
 * Have the waits traced if the level says so, and give them back afterwards;
 * if statements are traced by their identifiers, from the first of them on.  A
 * ring of theirs is made only if ours could be.
 */
static void
follow_with_waits(bool can_open)
{
	WaitsWanted wants = waits_of_level();

	if (wants == WAITS_OFF && matched && LEVEL_WAITS(query_level))
		wants = WAITS_TRACED;
	if (wants == waits_wanted || (wants != WAITS_OFF && !can_open && !timeline_has_waits()))
		return;
	waits_wanted = timeline_want_waits(wants, (uint64) recorder_ring_kb * 1024) ? wants : WAITS_OFF;
}

/*
 * Behind a pool one session serves applications in turn: record which it is
 * now, if the ring does not have it already.
 */
static void
record_application(void)
{
	static TimestampTz recorded_in = 0; /* when that ring began */
	static char recorded[NAMEDATALEN];
	static uint64 position = PG_UINT64_MAX; /* of the record */
	const char *name = secrets_application();
	ApplicationRecord record = {0};

	if (trace.ring == NULL)
		return;
	if (recorded_in != trace.ring->started)
	{
		recorded_in = trace.ring->started;
		strlcpy(recorded, trace.ring->session.application, sizeof(recorded));
		position = PG_UINT64_MAX;	/* a reader has it anyway */
	}
	oldest_needed = Min(recorded_at, position);
	if (strncmp(name, recorded, sizeof(recorded) - 1) == 0 && ring_holds(position))
		return;
	strlcpy(recorded, name, sizeof(recorded));
	strlcpy(record.application, name, sizeof(record.application));
	position = ring_head();
	oldest_needed = recorded_at;
	record_write(RECORD_APPLICATION, trace.depth, trace.current, timeline_now(), &record,
					  sizeof(record));
}

static void
update(bool can_open)
{
	bool		application = application_changed();
	LevelReason reason;
	int			level;
	bool		requested;

	if (!changed && !application && enabled == was_enabled &&
		pg_atomic_read_u32(&trace.slot->asked) == asked_seen &&
		(trace.level == 0 || trace.ring != NULL))
	{
		follow_with_waits(can_open);
		return;
	}
	requested = matched;
	changed = matched = false;
	was_enabled = enabled;
	level = wanted(&reason);
	if (level > 0 && trace.ring == NULL && (!can_open || !ring_open(reason == REASON_RECORDER)))
	{
		trace.level = 0;
		changed = true;			/* try again */
		follow_with_waits(can_open);	/* alone they are of no use */
		return;
	}
	/* what is requested anew begins anew */
	if (requested || level != trace.level || (level > 0 && (LevelReason) trace.reason != reason))
		apply(level, reason);
	follow_with_waits(can_open);
}

static bool
is_settled(void)
{
	return settled && application_name == application_seen && enabled == was_enabled &&
		pg_atomic_read_u32(&trace.slot->asked) == asked_seen &&
		(trace.level == 0 || (trace.ring != NULL && rate_recorded == level_statement_rate &&
							  ring_holds(oldest_needed)));
}

/* Not inline, as a look that finds nothing to do would pay for it. */
static pg_noinline void
settle(bool can_open)
{
	application_seen = application_name;
	update(can_open);
	if (trace.level > 0)
	{
		if (rate_recorded != level_statement_rate || !ring_holds(recorded_at))
			write_level();
		record_application();
	}
	settled = !changed && !matched && waits_wanted == waits_of_level();
}

/*
 * Look whether the level is to change: when a request has been answered, or as
 * one begins.  "can_open": the ring can be made.
 */
void
level_update(bool can_open)
{
	if (unlikely(!is_settled()))
		settle(can_open);
}

/*
 * The same as a request has been answered.  What it cannot have changed itself is
 * left to the next one; records that it overwrote are not, as none may follow.
 */
void
level_answered(void)
{
	if (unlikely(!settled || pg_atomic_read_u32(&trace.slot->asked) != asked_seen ||
				 (trace.level > 0 && trace.ring != NULL && !ring_holds(oldest_needed))))
		level_update(true);
}

/* There is no ring any more: whatever is traced next is recorded anew. */
void
level_ring_given_up(void)
{
	matched = false;
	settled = false;
}

/* The ring has been taken by others who needed the memory: the next one begins anew. */
void
level_ring_lost(void)
{
	level_ring_given_up();
	trace.level = 0;
	changed = true;
}

/* The ring of waits has been taken: what wants them still has them traced anew. */
void
level_waits_lost(void)
{
	(void) timeline_want_waits(WAITS_OFF, 0);
	waits_wanted = WAITS_OFF;
	settled = false;
}

/* A statement is known by its query identifier: is it one to be traced? */
void
level_match(int64 query_id)
{
	if (query_id == 0 || !trace.client || trace.on || !enabled || query_level == 0)
		return;
	for (int i = 0; i < query_ids->n; i++)
	{
		if (query_ids->id[i] != query_id)
			continue;
		if (!ring_open(false))
			return;
		if (trace.level == 0 && (!matched || !ring_holds(recorded_at)))
		{
			/* recorded, but in force only for this request */
			matched = true;
			settled = false;
			apply(query_level, REASON_QUERY);
			trace.level = 0;
			follow_with_waits(true);
		}
		record_application();
		trace.now_level = query_level;
		trace.last_end = timeline_now();	/* what was before is not in the trace */
		trace.on = true;
		/*
		 * What runs around it has not been looked at, except for what the client sent.
		 * That is not known at Sync, when deferred triggers run.
		 */
		if (debug_query_string == NULL || text_is_secret(debug_query_string))
			secrets_hide(-1);
		if (LEVEL_WAITS(query_level))
			timeline_follow_waits();
		return;
	}
}

bool
level_is_valid(int level)
{
	for (const struct config_enum_entry *entry = levels; entry->name; entry++)
		if (entry->val == level)
			return true;
	return false;
}

/* Called when the library is loaded. */
void
level_init(void)
{
	DefineCustomBoolVariable("sql_trace.enabled",
							 "Allows sessions to be traced.",
							 "When off, no session is, whatever its settings say.",
							 &enabled, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("sql_trace.level",
							 "What is traced: 1 calls and statements, 4 values too, 8 waits too, 12 both.",
							 NULL,
							 &level_setting, 0, levels,
							 PGC_SUSET, 0, check_keeps_source, setting_changed, NULL);
	application_define("sql_trace.application",
					   "Levels of client sessions by name of their application.",
					   &application_levels, level_setting_reported);
	DefineCustomStringVariable("sql_trace.query_ids",
							   "Statements to trace wherever they run, by query identifier.",
							   "A list of numbers, as in pg_stat_statements.",
							   &query_ids_text, "",
							   PGC_SUSET, 0, check_query_ids, query_ids_changed, NULL);
	DefineCustomEnumVariable("sql_trace.query_level",
							 "Level at which statements of sql_trace.query_ids are traced.",
							 NULL,
							 &query_level, 12, levels,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomRealVariable("sql_trace.statement_rate",
							 "Share of the requests of a traced session that are traced.",
							 NULL,
							 &level_statement_rate, 1, 0, 1,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("sql_trace.recorder",
							 "Keeps what a session did last in a small ring, if nothing else traces it.",
							 "Needs sql_trace.recorder_memory.",
							 &recorder, false,
							 PGC_SUSET, 0, NULL, recorder_changed, NULL);
	DefineCustomEnumVariable("sql_trace.recorder_level",
							 "Level at which the recorder traces.",
							 NULL,
							 &recorder_level, 8, levels,
							 PGC_SUSET, 0, NULL, recorder_level_changed, NULL);
}
