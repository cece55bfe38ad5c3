/*-------------------------------------------------------------------------
 * trigger.c
 *		What makes a traced session keep its trace: settings, and when they fire.
 *
 * A trigger only notes its cause: it may fire within an error, or as a
 * transaction ends.  When the client has its answer, the session keeps what its
 * ring holds (kept.c).  Of several causes of a request the first counts: an
 * error, a transaction that ends, then what is looked at when the request has
 * been answered.  Requests that are not traced fire nothing.
 *-------------------------------------------------------------------------
 */
#include "kept.h"
#include "module.h"

#include <limits.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"

#include "../../common/setting_list.h"

#define NS_PER_MS INT64CONST(1000000)

/* Less beyond the usual time is no incident: other processes of a busy machine take as much */
#define LEAST_UNUSUAL_NS (10 * NS_PER_MS)

typedef struct SqlState
{
	int			code;
	bool		is_class;		/* all that begin with its two characters */
} SqlState;

typedef struct SqlStates
{
	int			n;
	SqlState	item[FLEXIBLE_ARRAY_MEMBER];
} SqlStates;

/* False: no setting keeps any trace.  A setting that changes makes us look. */
bool		trigger_armed = true;

/* The request has been answered, and what its ring holds must be kept. */
bool		trigger_ready = false;

static int	request_ms = -1;
static int	transaction_ms = -1;
static int	lock_wait_ms = -1;
static int	times_usual = -1;
static char *sqlstates_text = NULL;
static const SqlStates *sqlstates = NULL;

static Firing pending;
static bool watched = false;	/* the request, from its beginning on */
static bool followed = false;	/* what the latest request took is known up to its end */
static bool locks_watched = false;	/* others know that they are of interest */

static void
number_changed(int newval, void *extra)
{
	trigger_armed = true;
	watched = followed = false;
}

static void
sqlstates_changed(const char *newval, void *extra)
{
	sqlstates = extra;
	trigger_armed = true;
}

/* A SQLSTATE, or the two characters of a class */
static bool
read_sqlstate(const char *text, SqlState *state)
{
	char		code[5] = {'0', '0', '0', '0', '0'};
	size_t		length = strlen(text);

	if (length != 2 && length != 5)
		return false;
	for (size_t i = 0; i < length; i++)
	{
		code[i] = (char) pg_ascii_toupper((unsigned char) text[i]);
		if (!((code[i] >= '0' && code[i] <= '9') || (code[i] >= 'A' && code[i] <= 'Z')))
			return false;
	}
	state->code = MAKE_SQLSTATE(code[0], code[1], code[2], code[3], code[4]);
	state->is_class = length == 2;
	return true;
}

static bool
parse_sqlstate(char *text, void *to)
{
	if (read_sqlstate(text, to))
		return true;
	GUC_check_errdetail("\"%s\" is neither a SQLSTATE, such as 40P01, nor a class, such as 53.",
						text);
	return false;
}

static bool
check_sqlstates(char **newval, void **extra, GucSource source)
{
	return setting_list_check(*newval, extra, offsetof(SqlStates, item), sizeof(SqlState),
							  parse_sqlstate, "SQLSTATEs");
}

static void
define_limit(const char *name, const char *about, const char *more, int *value, int flags)
{
	DefineCustomIntVariable(name, about, more, value, -1, -1, INT_MAX, PGC_SUSET, flags,
							NULL, number_changed, NULL);
}

/* Called when the library is loaded. */
void
trigger_init(void)
{
	define_limit("sql_trace.keep_slower_than",
				 "Keeps the trace of a session whose request takes longer.",
				 "From its arrival to its answer; -1: never.", &request_ms, GUC_UNIT_MS);
	define_limit("sql_trace.keep_slower_than_usual",
				 "Keeps the trace of a session whose request takes this many times its usual time.",
				 "Nine of ten of the session's last 32 requests of its statement took no longer; -1: never.",
				 &times_usual, 0);
	define_limit("sql_trace.keep_transaction_slower_than",
				 "Keeps the trace of a session whose transaction takes longer.",
				 "From its first statement to its end, with the time that the client takes; -1: never.",
				 &transaction_ms, GUC_UNIT_MS);
	define_limit("sql_trace.keep_lock_wait",
				 "Keeps the trace of a session of which a request waits for heavyweight locks for longer.",
				 "As wait_event_timing captures its waits; -1: never.",
				 &lock_wait_ms, GUC_UNIT_MS);
	DefineCustomStringVariable("sql_trace.keep_sqlstates",
							   "Keeps the trace of a session that meets such an error.",
							   "A list of SQLSTATEs, and of classes by their two characters.",
							   &sqlstates_text, "",
							   PGC_SUSET, 0, check_sqlstates, sqlstates_changed, NULL);
}

static bool
is_any_set(void)
{
	return request_ms >= 0 || transaction_ms >= 0 || lock_wait_ms >= 0 || times_usual >= 0 ||
		(sqlstates != NULL && sqlstates->n > 0);
}

/* NULL: wait_event_timing is not loaded. */
static const WaitCopyOffer *
waits_offer(void)
{
	static void **variable = NULL;

	if (variable == NULL)
		variable = find_rendezvous_variable(WAIT_COPY_OFFER);
	return *variable;
}

static int64
lock_waits(void)
{
	return waits_offer() ? waits_offer()->lock_waits() : 0;
}

/* Who else is in a long wait for an LWLock is known at its end alone. */
static void
watch_same_wait(bool wanted)
{
	if (waits_offer())
		waits_offer()->watch_same_wait(wanted);
}

static void
note_same_wait(void)
{
	if (waits_offer())
		pending.same_wait = *waits_offer()->same_wait();
}

static void
fire(KeptCause cause, int64 value)
{
	if (pending.cause != CAUSE_NONE)
		return;
	pending.cause = cause;
	pending.value = value;
	pending.usual_ns = 0;
	pending.same_wait.event = 0;
	pending.at = GetCurrentTimestamp();
	/* of a utility statement it hashes what that says */
	pending.query_id = trace.secret_met || trace.secret_transaction ? 0 :
		(int64) pgstat_get_my_query_id();
}

/*
 * A request begins.  When we are called it has been parsed, and may have waited for
 * the locks of its tables: it is compared with the end of the one before.
 */
void
trigger_request_begins(bool traced)
{
	pending.cause = CAUSE_NONE;
	trigger_armed = is_any_set();
	watched = traced;
	if (!traced || !trigger_armed)
		watch_same_wait(false);
	else if (!followed)
		watch_same_wait(true);
	if (!traced)
	{
		followed = false;
		return;
	}
	if (!followed && lock_wait_ms >= 0)
		(void) lock_waits();
	if (lock_wait_ms >= 0 || locks_watched)
		kept_watch_locks(lock_wait_ms);
	locks_watched = lock_wait_ms >= 0;
}

/* The first or the last number in a line; 0: there is none. */
static int
process_in_line(const char *line, const char *end, bool last)
{
	int			found = 0;

	while (line < end)
	{
		const char *digits = line;
		long		number = 0;

		while (line < end && *line >= '0' && *line <= '9' && line - digits < 9)
			number = number * 10 + (*line++ - '0');
		if (line > digits)
			found = (int) number;
		if (line > digits && !last)
			break;
		if (line == digits)
			line++;
	}
	return found;
}

/*
 * The detail of the error has a line for each process that was in the deadlock, in
 * the language of the server's messages: it begins with that process, and ends with
 * the one that it waits for.
 */
static void
in_deadlock(const char *detail)
{
	int			others[MAX_IN_DEADLOCK];
	int			n = 0;

	while (detail && *detail != '\0' && n < MAX_IN_DEADLOCK)
	{
		const char *end = strchr(detail, '\n') ? strchr(detail, '\n') : detail + strlen(detail);
		int			waits = process_in_line(detail, end, false);

		if (waits != 0 && waits != MyProcPid && process_in_line(detail, end, true) != waits)
			others[n++] = waits;
		detail = *end == '\n' ? end + 1 : end;
	}
	locks_watched = true;		/* for the incident to be forgotten */
	kept_deadlock(others, n);
}

/*
 * An error is on its way to the client.  "deadlock": the detail of one that the lock
 * manager reports, or NULL; whoever raises an error chooses its SQLSTATE and detail.
 */
void
trigger_error(uint32 sqlstate, const char *deadlock)
{
	bool		fires = false;

	for (int i = 0; sqlstates && i < sqlstates->n; i++)
	{
		const SqlState *wanted = &sqlstates->item[i];

		if (wanted->code == (int) sqlstate ||
			(wanted->is_class && wanted->code == ERRCODE_TO_CATEGORY((int) sqlstate)))
			fires = true;
	}
	if (!fires)
		return;
	fire(CAUSE_SQLSTATE, sqlstate);
	if (deadlock != NULL)
		in_deadlock(deadlock);
}

/* A transaction is over that took this long. */
void
trigger_transaction_ended(int64 ns)
{
	if (transaction_ms >= 0 && ns > transaction_ms * NS_PER_MS)
		fire(CAUSE_TRANSACTION, ns);
}

/* Also of a request that another cause has kept: it counts for the next ones. */
static void
compare_with_usual(int64 ns)
{
	int64		usual = usual_time((int64) pgstat_get_my_query_id(), ns, LEAST_UNUSUAL_NS);

	if (usual < 0 || ns - usual < LEAST_UNUSUAL_NS || ns / Max(times_usual, 1) <= usual ||
		pending.cause != CAUSE_NONE)
		return;
	fire(CAUSE_USUAL, ns);
	pending.usual_ns = usual;
}

/*
 * A traced request has taken this long, and its answer is on its way.  "answered" is
 * the number of statements answered; 0: one was only prepared, or failed.  A request
 * in which a setting changed, or that is traced for one of its statements, has not
 * been watched from its beginning on.
 */
void
trigger_request_ended(int64 ns, uint32 answered)
{
	int64		lock = watched && lock_wait_ms >= 0 ? lock_waits() : 0;

	followed = watched;
	watched = false;
	if (lock_wait_ms >= 0 && lock > lock_wait_ms * NS_PER_MS)
		fire(CAUSE_LOCK_WAIT, lock);
	if (request_ms >= 0 && ns > request_ms * NS_PER_MS)
		fire(CAUSE_REQUEST, ns);
	if (times_usual >= 0 && answered > 0)
		compare_with_usual(ns);
	if (pending.cause != CAUSE_NONE)
		note_same_wait();
	watch_same_wait(trigger_armed);
	if (locks_watched && pending.cause == CAUSE_NONE)
		kept_forget_incident();
}

/* All is done for a request but to send that it is over: what is flushed next is its answer. */
void
trigger_answer_leaves(void)
{
	trigger_ready = pending.cause != CAUSE_NONE;
}

/*
 * The answer has left, and the session holds nothing.  Messages of a notice leave
 * at once, too, from within the report; but then nothing is ready, or, if another
 * module warns as the answer is made, interrupts are held.
 */
void
trigger_flushed(void)
{
	Firing		fired = pending;
	bool		rested = recorder_block.rests;

	if (InterruptHoldoffCount > 0)
		return;
	trigger_ready = false;
	pending.cause = CAUSE_NONE;
	if (trace.ring == NULL)
		return;
	if (rested && !recorder_claim())
	{
		recorder_block.rests = true;	/* the next request notices that it has been taken */
		return;
	}
	kept_copy(&fired);
	if (locks_watched)
		kept_forget_incident();
	if (rested)
		recorder_let_rest();
}

/* The session has ended; its ring lies among those that ended.  True: it is kept there. */
bool
trigger_session_ended(RingHandle handle)
{
	if (pending.cause != CAUSE_NONE)
		note_same_wait();
	return pending.cause != CAUSE_NONE && kept_session_ended(&pending, handle);
}

const char *
trigger_cause_name(KeptCause cause)
{
	static const char *const names[] = {
		"", "sqlstate", "lock_wait", "request", "transaction", "slower_than_usual",
		"blocker", "deadlock", "finding"
	};

	return cause < lengthof(names) ? names[cause] : "";
}

/* How much it was, or which error */
void
trigger_detail(const Firing *trigger, char *to, Size size)
{
	if (trigger->cause == CAUSE_SQLSTATE)
		strlcpy(to, unpack_sql_state((int) trigger->value), size);
	else if (trigger->cause == CAUSE_BLOCKER || trigger->cause == CAUSE_DEADLOCK)
		snprintf(to, size, "of process " INT64_FORMAT, trigger->value);
	else if (trigger->cause == CAUSE_FINDING)
		strlcpy(to, trigger->label, size);
	else if (trigger->cause == CAUSE_USUAL)
		snprintf(to, size, "%.1f ms, usually %.1f ms", (double) trigger->value / NS_PER_MS,
				 (double) trigger->usual_ns / NS_PER_MS);
	else
		snprintf(to, size, "%.1f ms", (double) trigger->value / NS_PER_MS);
}
