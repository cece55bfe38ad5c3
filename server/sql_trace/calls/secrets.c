/*-------------------------------------------------------------------------
 * secrets.c
 *		What a trace must not show (secrets.h).
 *-------------------------------------------------------------------------
 */
#include "secrets.h"
#include "statement.h"
#include "../core/level.h"
#include "../core/module.h"

#include "miscadmin.h"
#include "access/xact.h"
#include "commands/prepare.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

static char *sensitive_roles = NULL;

/* What is known of the role under whose rights we run */
static struct
{
	bool		known;
	Oid			user;
	Oid			outer;			/* by SET ROLE; a function with the rights of its owner has its values */
	Oid			session;
	bool		sensitive;
} role;

/* A statement of EXPLAIN or CREATE TABLE AS is a query, which may hold a utility statement. */
static bool
in_query(const Node *query)
{
	return query != NULL && IsA(query, Query) && ((const Query *) query)->utilityStmt != NULL &&
		secrets_in_statement(((const Query *) query)->utilityStmt);
}

/* EXECUTE gives values to a statement that was sent before; maybe that is gone by now. */
static bool
in_prepared(const char *name)
{
	const PreparedStatement *prepared = FetchPreparedStatement(name, false);

	return prepared == NULL || text_is_secret(prepared->plansource->query_string);
}

/* Has a change of a table, or of what is said to be one, options of a foreign one? */
static bool
in_changes(const List *changes)
{
	ListCell   *cell;

	foreach(cell, changes)
	{
		const AlterTableCmd *change = lfirst_node(AlterTableCmd, cell);

		if (change->subtype == AT_GenericOptions || change->subtype == AT_AlterColumnGenericOptions)
			return true;
		if (change->def != NULL && IsA(change->def, ColumnDef) &&
			((const ColumnDef *) change->def)->fdwoptions != NIL)
			return true;
	}
	return false;
}

/* Does this statement carry secrets, whatever its words are? */
bool
secrets_in_statement(const Node *utility)
{
	switch (nodeTag(utility))
	{
		case T_CreateRoleStmt:
		case T_AlterRoleStmt:
		case T_AlterRoleSetStmt:
		case T_CreateUserMappingStmt:
		case T_AlterUserMappingStmt:
		case T_CreateForeignServerStmt:
		case T_AlterForeignServerStmt:
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
		case T_CreateFdwStmt:
		case T_AlterFdwStmt:
		case T_CreateForeignTableStmt:
		case T_ImportForeignSchemaStmt:
			return true;
		case T_AlterTableStmt:
			return ((const AlterTableStmt *) utility)->objtype == OBJECT_FOREIGN_TABLE ||
				in_changes(((const AlterTableStmt *) utility)->cmds);
		case T_CopyStmt:
			return ((const CopyStmt *) utility)->is_program;
		case T_ConstraintsSetStmt:
			return trace.secret_transaction || trace.unseen;	/* runs its deferred triggers */
		case T_ExecuteStmt:
			return in_prepared(((const ExecuteStmt *) utility)->name);
		case T_ExplainStmt:
			return in_query(((const ExplainStmt *) utility)->query);
		case T_CreateTableAsStmt:
			return in_query(((const CreateTableAsStmt *) utility)->query);
		case T_AlterSystemStmt:
		case T_VariableSetStmt:
			{
				const VariableSetStmt *set = IsA(utility, AlterSystemStmt) ?
					((const AlterSystemStmt *) utility)->setstmt :
					(const VariableSetStmt *) utility;

				return set->name != NULL && (strcmp(set->name, "primary_conninfo") == 0 ||
											 strcmp(set->name, "ssl_passphrase_command") == 0);
			}
		default:
			return false;
	}
}

/*
 * The same of a message whose statements are not known: any EXECUTE in it counts, as
 * nobody can say of which statement it is.
 */
bool
secrets_in_message(const char *message)
{
	static const char word[] = "execute";

	for (const char *at = message; *at != '\0'; at++)
		if ((*at == 'e' || *at == 'E') && pg_strncasecmp(at, word, strlen(word)) == 0)
			return true;
	return false;
}

static bool
tells(const char *text)
{
	return text != NULL && secret_words_in(text, strlen(text));
}

/*
 * An error is raised, maybe one that is caught and never sent: a later message may
 * quote it.  A statement that does not parse is known from the error alone.
 *
 * All else that is asked for the context of the error has been asked before.
 */
static void
note_error(void *arg)
{
	int			sqlstate = geterrcode();
	int			class = ERRCODE_TO_CATEGORY(sqlstate);
	MemoryContext before;
	MemoryContext context;
	ErrorData  *error;

	if (!trace.on || !LEVEL_BINDS(trace.now_level) || trace.secret_met ||
		class == ERRCODE_SUCCESSFUL_COMPLETION || class == ERRCODE_WARNING ||
		sqlstate == ERRCODE_OUT_OF_MEMORY || CritSectionCount > 0)
		return;
	/* should it fail, it goes with the error that is reported instead */
	context = AllocSetContextCreate(ErrorContext, "error for sql_trace", ALLOCSET_SMALL_SIZES);
	before = MemoryContextSwitchTo(context);
	error = CopyErrorData();
	/* within no call, a function raises it: a deferred trigger, which may quote what was not seen */
	trace.secret_met = (trace.unseen && trace.depth == 0 && error->context != NULL) ||
		tells(error->message) || tells(error->detail) || tells(error->hint) ||
		tells(error->context) || tells(error->internalquery);
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}

/*
 * Have all errors of this process looked at.  As it answers a request nothing else
 * gives context to errors; an error that ends a request takes ours away.
 */
void
secrets_watch_errors(void)
{
	static ErrorContextCallback ours = {.callback = note_error};

	if (error_context_stack == NULL)
		error_context_stack = &ours;
}

static void
roles_changed(const char *newval, void *extra)
{
	role.known = false;
}

static void
role_invalidated(Datum arg, int cache, uint32 hash)
{
	role.known = false;
}

/* Is a role, or one that it is a member of, among those of the setting? */
static bool
is_sensitive(Oid user)
{
	char	   *copy = pstrdup(sensitive_roles);
	List	   *names = NIL;
	ListCell   *cell;
	bool		found = false;

	/* a role that cannot be identified is taken for sensitive */
	if (!SplitIdentifierString(copy, ',', &names))
		found = true;
	foreach(cell, names)
	{
		Oid			listed = get_role_oid((char *) lfirst(cell), true);

		if (OidIsValid(listed) && is_member_of_role_nosuper(user, listed))
			found = true;
	}
	list_free(names);
	pfree(copy);
	return found;
}

/* Is it the role whose rights count now that is known? */
static bool
is_current(void)
{
	return role.known && role.user == GetUserId() && role.outer == GetOuterUserId() &&
		role.session == GetSessionUserId();
}

/* Does this session, or what runs in it now, have the rights of a sensitive role? */
bool
secrets_of_role(void)
{
	if (sensitive_roles == NULL || sensitive_roles[0] == '\0')
		return false;
	if (!is_current())
	{
		if (!IsTransactionState())
			return true;
		role.known = true;
		role.user = GetUserId();
		role.outer = GetOuterUserId();
		role.session = GetSessionUserId();
		role.sensitive = true;	/* should the look into catalogs fail */
		role.sensitive = is_sensitive(role.user) || is_sensitive(role.outer) ||
			is_sensitive(role.session);
	}
	return role.sensitive;
}

/* The same, if no catalog can be read: a role that is not known is taken for sensitive. */
bool
secrets_of_role_known(void)
{
	if (sensitive_roles == NULL || sensitive_roles[0] == '\0')
		return false;
	return !is_current() || role.sensitive;
}

/* Have changes of roles reported; in a process of its own, once. */
void
secrets_watch_roles(void)
{
	static bool watched = false;

	if (watched)
		return;
	watched = true;
	CacheRegisterSyscacheCallback(AUTHOID, role_invalidated, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, role_invalidated, (Datum) 0);
}

/* The application's name, which can be any text */
const char *
secrets_application(void)
{
	const char *name = application_name ? application_name : "";

	return secret_words_in(name, strlen(name)) ? "(hidden)" : name;
}

/* Called when the library is loaded. */
void
secrets_init(void)
{
	DefineCustomStringVariable("sql_trace.sensitive_roles",
							   "Roles whose values, and those of their members, are never shown.",
							   NULL,
							   &sensitive_roles, "",
							   PGC_SIGHUP, GUC_LIST_INPUT, NULL, roles_changed, NULL);
}
