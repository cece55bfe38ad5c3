/*-------------------------------------------------------------------------
 * link.c
 *		One connection: opening it, and taking one transaction through it.
 *
 * Statements are sent and answers received without ever waiting here, so that
 * a slow cluster does not hold up another one of the same thread.  Requests
 * are small and at most one is under way, so sending does not block.
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "duet.h"

#define CONNECT_SECONDS	"10"

static void
ignore_notice(void *arg, const PGresult *result)
{
	(void) arg;
	(void) result;
}

/* ---------------- opening ---------------- */

static bool
refuse(Link *link, const char *what)
{
	run_end(link->run, ENDED_BY_FAILURE, "cluster %d: %s: %s", link->cluster, what,
			PQerrorMessage(link->conn));
	return false;
}

static bool
prepare(Link *link)
{
	const Plan *plan = link->run->plan;

	for (int s = 0; s < plan->nscripts; s++)
	{
		for (int i = 0; i < plan->scripts[s].ncommands; i++)
		{
			const Command *command = &plan->scripts[s].commands[i];
			PGresult   *result;
			bool		good;

			if (command->assigns)
				continue;
			result = PQprepare(link->conn, command->name, command->sql, 0, NULL);
			good = PQresultStatus(result) == PGRES_COMMAND_OK;
			PQclear(result);
			if (!good)
				return refuse(link, "a statement could not be prepared");
		}
	}
	return true;
}

/* Connect and get everything ready; false if the run has been ended for a failure. */
bool
link_open(Link *link, Run *run, int thread, int cluster)
{
	const Plan *plan = run->plan;
	/* what the connection string says comes last, and wins */
	const char *const keywords[] = {"connect_timeout", "fallback_application_name", "dbname", NULL};
	const char *const values[] = {
		CONNECT_SECONDS, "pgtare-duet", plan->conninfo[cluster], NULL
	};

	link->run = run;
	link->thread = thread;
	link->cluster = cluster;
	link->state = LINK_IDLE;
	cycle_first(plan, thread, &link->cycle);
	link->variables = calloc(plan->nvariables + 1, sizeof(int64_t));
	link->conn = PQconnectdbParams(keywords, values, 1);
	if (link->conn == NULL || link->variables == NULL)
	{
		run_end(run, ENDED_BY_FAILURE, "out of memory for a connection");
		return false;
	}
	if (PQstatus(link->conn) != CONNECTION_OK)
		return refuse(link, "cannot connect");
	PQsetNoticeReceiver(link->conn, ignore_notice, NULL);
	return pin_backend(link) && (plan->protocol != PROTOCOL_PREPARED || prepare(link));
}

void
link_close(Link *link)
{
	PQfinish(link->conn);
	free(link->variables);
}

/* ---------------- failing ---------------- */

/* Keep the first failure of a transaction; a conflict is none, and explains none after it. */
static void
note_failure(Link *link, Outcome outcome, const char *sqlstate, const char *message)
{
	if (link->outcome == OUTCOME_OK || link->outcome == OUTCOME_CONFLICT)
	{
		snprintf(link->sqlstate, sizeof(link->sqlstate), "%s", sqlstate ? sqlstate : "");
		snprintf(link->message, sizeof(link->message), "%s", message);
	}
	link->outcome = outcome;
}

static Progress
lost(Link *link)
{
	note_failure(link, OUTCOME_LOST, NULL, PQerrorMessage(link->conn));
	run_end(link->run, ENDED_BY_FAILURE, "the connection to cluster %d was lost: %s",
			link->cluster, link->message);
	link->state = LINK_DEAD;
	return PROGRESS_FINISHED;
}

/*
 * A conflict between transactions belongs to the load and is counted; any
 * other error means that it does not do what it should.
 */
static bool
is_conflict(const char *sqlstate)
{
	return strcmp(sqlstate, "40001") == 0 || strcmp(sqlstate, "40P01") == 0;
}

static void
note_error(Link *link, const PGresult *result)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	bool		conflict = sqlstate && is_conflict(sqlstate);

	note_failure(link, conflict ? OUTCOME_CONFLICT : OUTCOME_ERROR, sqlstate,
				 PQresultErrorMessage(result));
}

/* ---------------- a transaction ---------------- */

static int
send_simple(Link *link, const Command *command)
{
	char		query[MAX_STATEMENT];	/* plan.c has seen that everything fits */
	char	   *to = query;

	for (int i = 0; i < command->nparts; i++)
	{
		const Part *part = &command->parts[i];

		if (part->text)
			to = stpcpy(to, part->text);
		else
			to += sprintf(to, "%" PRId64, link->variables[part->variable]);
	}
	return PQsendQuery(link->conn, query);
}

static int
send_with_parameters(Link *link, const Command *command, bool prepared)
{
	char		digits[MAX_PARAMETERS][MAX_DIGITS + 1];
	const char *values[MAX_PARAMETERS];

	for (int i = 0; i < command->nparams; i++)
	{
		snprintf(digits[i], sizeof(digits[i]), "%" PRId64, link->variables[command->params[i]]);
		values[i] = digits[i];
	}
	if (prepared)
		return PQsendQueryPrepared(link->conn, command->name, command->nparams, values,
								   NULL, NULL, 0);
	return PQsendQueryParams(link->conn, command->sql, command->nparams, NULL, values,
							 NULL, NULL, 0);
}

/* Compute what comes before the next statement; false at the end of the script, or on failure. */
static bool
advance(Link *link)
{
	const Script *script = &link->run->plan->scripts[link->script];

	for (; link->command < script->ncommands; link->command++)
	{
		const Command *command = &script->commands[link->command];

		if (!command->assigns)
			return true;
		if (!assign(command, link->variables, &link->values))
		{
			note_failure(link, OUTCOME_ERROR, NULL,
						 "a \\set divides by zero, overflows, or draws from an empty range");
			return false;
		}
	}
	return false;
}

static int
send_statement(Link *link)
{
	const Plan *plan = link->run->plan;
	const Command *command = &plan->scripts[link->script].commands[link->command];

	if (plan->protocol == PROTOCOL_SIMPLE)
		return send_simple(link, command);
	return send_with_parameters(link, command, plan->protocol == PROTOCOL_PREPARED);
}

/* The script has come to its end or to an error: judge it, and undo what it left. */
static Progress
finish(Link *link)
{
	bool		open = PQtransactionStatus(link->conn) != PQTRANS_IDLE;

	if (open && link->outcome == OUTCOME_OK)
		note_failure(link, OUTCOME_ERROR, NULL, "the script leaves a transaction open at its end");
	if (link->outcome == OUTCOME_ERROR)
		run_end(link->run, ENDED_BY_FAILURE, "cluster %d: %s", link->cluster, link->message);
	link->state = LINK_IDLE;
	if (open)
	{
		if (!PQsendQuery(link->conn, "ROLLBACK"))
			return lost(link);
		link->state = LINK_ROLLING_BACK;
	}
	return PROGRESS_FINISHED;
}

/* Begin the cycle's transaction; in an open loop it was due at due_ns. */
Progress
link_start(Link *link, int64_t due_ns)
{
	const Plan *plan = link->run->plan;
	bool		sends;

	link->values = values_stream(plan, link->thread, link->cycle.number);
	memcpy(link->variables, plan->initial, plan->nvariables * sizeof(int64_t));
	if (plan->client_variable >= 0)
		link->variables[plan->client_variable] = link->thread;
	link->script = script_choose(plan, &link->values);
	link->command = 0;
	link->outcome = OUTCOME_OK;
	link->sqlstate[0] = '\0';
	sends = advance(link);
	/* the last thing before the request leaves */
	link->sent_ns = run_now(link->run);
	link->scheduled_ns = plan->rate > 0 ? due_ns : link->sent_ns;
	if (!sends)
		return finish(link);
	link->state = LINK_BUSY;
	return send_statement(link) ? PROGRESS_NONE : lost(link);
}

/* Look at a result; false if the server waits for something that never comes. */
static bool
take_result(Link *link, PGresult *result)
{
	bool		goes_on = true;

	switch (PQresultStatus(result))
	{
		case PGRES_COMMAND_OK:
		case PGRES_TUPLES_OK:
		case PGRES_EMPTY_QUERY:
			break;
		case PGRES_COPY_IN:
		case PGRES_COPY_OUT:
		case PGRES_COPY_BOTH:
			goes_on = false;
			break;
		default:
			if (link->state == LINK_BUSY)
				note_error(link, result);
			break;
	}
	PQclear(result);
	return goes_on;
}

static Progress
refuse_copy(Link *link)
{
	note_failure(link, OUTCOME_ERROR, NULL, "COPY cannot be part of a duet");
	run_end(link->run, ENDED_BY_FAILURE, "cluster %d: %s", link->cluster, link->message);
	link->state = LINK_DEAD;
	return PROGRESS_FINISHED;
}

/* Read what has arrived, and go on with the script as far as that allows. */
Progress
link_receive(Link *link)
{
	if (!PQconsumeInput(link->conn))
	{
		if (link->state == LINK_BUSY)
			return lost(link);
		(void) lost(link);		/* its transaction has been recorded */
		return PROGRESS_NONE;
	}
	while (!PQisBusy(link->conn))
	{
		PGresult   *result = PQgetResult(link->conn);

		if (result != NULL)
		{
			if (!take_result(link, result))
				return refuse_copy(link);
			continue;
		}
		/* the server is ready for the next statement */
		if (link->state == LINK_ROLLING_BACK)
		{
			link->state = LINK_IDLE;
			return PROGRESS_NONE;
		}
		if (PQstatus(link->conn) == CONNECTION_BAD)
			return lost(link);
		link->command++;
		if (link->outcome != OUTCOME_OK || !advance(link))
			return finish(link);
		if (!send_statement(link))
			return lost(link);
	}
	return PROGRESS_NONE;
}

/* The record of the transaction that has just finished, or that the end cut off. */
void
link_describe(const Link *link, int64_t now_ns, Record *record)
{
	*record = (Record)
	{
		.scheduled_ns = link->scheduled_ns,
			.lag_ns = link->sent_ns - link->scheduled_ns,
			.latency_ns = now_ns - link->scheduled_ns,
			.cycle = link->cycle.number,
			.thread = (uint16_t) link->thread,
			.cluster = (uint8_t) link->cluster,
			.turn = (uint8_t) cycle_turn(&link->cycle, link->cluster),
			.script = (uint8_t) link->script,
			.outcome = (uint8_t) link->outcome,
	};
	/* without what an earlier transaction left behind its end */
	memcpy(record->sqlstate, link->sqlstate, strlen(link->sqlstate));
}
