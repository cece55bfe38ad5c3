/*-------------------------------------------------------------------------
 * setting_watch.c
 *		Noticing every change of a trial's settings, those that end by themselves too.
 *
 * SET LOCAL and set_config(..., true) are undone when the transaction ends, and
 * the SET clause of a function when it returns: afterwards value and source are
 * what they were.  So while a session takes part, the assign hooks of just the
 * trial's settings are chained: PostgreSQL calls them at each change, whatever
 * makes it, and at no other time.  Only the session's own records are touched.
 *
 * A change to the value that the arm has anyway counts too.  Otherwise an
 * application that sets its own value would spoil some arms and not the others.
 *
 * A hook does not learn its setting, so each place of a watched setting has a
 * function of its own for each type.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "pgtare.h"

typedef struct Watched
{
	struct config_generic *conf;	/* NULL: the place is free */
	union
	{
		GucBoolAssignHook of_bool;
		GucIntAssignHook of_int;
		GucRealAssignHook of_real;
		GucStringAssignHook of_string;
		GucEnumAssignHook of_enum;
	}			chained;
} Watched;

static Watched watched[MAX_SETTINGS];
static bool changed;

#define ASSIGN(n, type, value_type) \
	static void assign_##type##_##n(value_type newval, void *extra) \
	{ \
		changed = true; \
		if (watched[n].chained.of_##type) \
			watched[n].chained.of_##type(newval, extra); \
	}

#define ASSIGN_ALL(n) \
	ASSIGN(n, bool, bool) ASSIGN(n, int, int) ASSIGN(n, real, double) \
	ASSIGN(n, string, const char *) ASSIGN(n, enum, int)

#define EIGHT(m, a, b, c, d, e, f, g, h) m(a) m(b) m(c) m(d) m(e) m(f) m(g) m(h)
#define EACH_PLACE(m) \
	EIGHT(m, 0, 1, 2, 3, 4, 5, 6, 7) EIGHT(m, 8, 9, 10, 11, 12, 13, 14, 15) \
	EIGHT(m, 16, 17, 18, 19, 20, 21, 22, 23) EIGHT(m, 24, 25, 26, 27, 28, 29, 30, 31)

EACH_PLACE(ASSIGN_ALL)

#define OF_BOOL(n) assign_bool_##n,
#define OF_INT(n) assign_int_##n,
#define OF_REAL(n) assign_real_##n,
#define OF_STRING(n) assign_string_##n,
#define OF_ENUM(n) assign_enum_##n,

static const GucBoolAssignHook of_bool[] = {EACH_PLACE(OF_BOOL)};
static const GucIntAssignHook of_int[] = {EACH_PLACE(OF_INT)};
static const GucRealAssignHook of_real[] = {EACH_PLACE(OF_REAL)};
static const GucStringAssignHook of_string[] = {EACH_PLACE(OF_STRING)};
static const GucEnumAssignHook of_enum[] = {EACH_PLACE(OF_ENUM)};

StaticAssertDecl(lengthof(of_bool) == MAX_SETTINGS, "a place for each setting of a trial");

/* Take the place of a hook, or give it back unless somebody has chained to us. */
#define CHAIN(record, w, n, type) \
	((w)->chained.of_##type = (record)->assign_hook, (record)->assign_hook = of_##type[n])
#define UNCHAIN(record, w, n, type) \
	((record)->assign_hook == of_##type[n] ? \
	 ((record)->assign_hook = (w)->chained.of_##type, true) : false)

static void
chain(Watched *w, int n)
{
	switch (w->conf->vartype)
	{
		case PGC_BOOL:
			CHAIN(SETTING_RECORD(w->conf, bool), w, n, bool);
			break;
		case PGC_INT:
			CHAIN(SETTING_RECORD(w->conf, int), w, n, int);
			break;
		case PGC_REAL:
			CHAIN(SETTING_RECORD(w->conf, real), w, n, real);
			break;
		case PGC_STRING:
			CHAIN(SETTING_RECORD(w->conf, string), w, n, string);
			break;
		case PGC_ENUM:
			CHAIN(SETTING_RECORD(w->conf, enum), w, n, enum);
			break;
	}
}

static bool
unchain(Watched *w, int n)
{
	switch (w->conf->vartype)
	{
		case PGC_BOOL:
			return UNCHAIN(SETTING_RECORD(w->conf, bool), w, n, bool);
		case PGC_INT:
			return UNCHAIN(SETTING_RECORD(w->conf, int), w, n, int);
		case PGC_REAL:
			return UNCHAIN(SETTING_RECORD(w->conf, real), w, n, real);
		case PGC_STRING:
			return UNCHAIN(SETTING_RECORD(w->conf, string), w, n, string);
		case PGC_ENUM:
			return UNCHAIN(SETTING_RECORD(w->conf, enum), w, n, enum);
	}
	return false;
}

/* Watch a setting; false if no place is free, as others have chained to us in all. */
bool
watch_setting(struct config_generic *conf)
{
	Watched    *w = NULL;

	for (int n = 0; n < MAX_SETTINGS; n++)
		if (watched[n].conf == conf)
			return true;
	for (int n = 0; n < MAX_SETTINGS && w == NULL; n++)
		if (watched[n].conf == NULL)
			w = &watched[n];
	if (w == NULL)
		return false;
	w->conf = conf;
	chain(w, w - watched);
	return true;
}

/* Leave all settings as we found them. */
void
watch_end(void)
{
	for (int n = 0; n < MAX_SETTINGS; n++)
		if (watched[n].conf && unchain(&watched[n], n))
			watched[n].conf = NULL;
}

/* What has been changed up to now was changed by ourselves. */
void
watch_reset(void)
{
	changed = false;
}

bool
watch_changed(void)
{
	return changed;
}
