/*-------------------------------------------------------------------------
 * level.c
 *		The level of capture of a session and its clock: the settings, and what they
 *		do to its capture when they change.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "waits.h"
#include "../common/application.h"
#include "../common/module_settings.h"

const struct config_enum_entry level_names[] = {
	{"off", CAPTURE_OFF, false},
	{"stats", CAPTURE_STATS, false},
	{"trace", CAPTURE_TRACE, false},
	{NULL, 0, false}
};

/* Where the value of the level's setting comes from */
static GucSource source_of_setting = PGC_S_DEFAULT;

/* What our settings say; it counts unless another session has requested a level. */
static void
configure(int level)
{
	pg_atomic_write_u32(&capture.slot->configured, level);
	/* a session that gives the level back clears "asked", and then reads what we wrote */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&capture.slot->asked) == 0)
	{
		pg_atomic_write_u32(&capture.slot->level, level);
		ring_let_end(capture.slot, capture.ring != NULL);
	}
	timing_follow_level();
}

/*
 * The setting of this session changed, or is read again.  It replaces what
 * others had requested, but a reload that brings nothing new does not.
 */
static void
setting_changed(int setting, void *extra)
{
	GucSource	source = *(GucSource *) extra;
	bool		same = source < PGC_S_GLOBAL && source == source_of_setting &&
		setting == capture_setting;
	uint32		asked;

	source_of_setting = source;
	if (capture.slot == NULL || same)
		return;
	capture_fold();
	capture.level_sets++;
	/* what another module of this process has asked for goes on, unless nothing is to be captured */
	asked = pg_atomic_read_u32(&capture.slot->asked);
	if (asked == 0 || asked != capture.asked_for_waits || setting == CAPTURE_OFF)
		pg_atomic_write_u32(&capture.slot->asked, 0);
	configure(application_level(setting, source));
	slot_follow_leader();
	trace_follow_level();
	/* what the change itself leaves is no part of the statement to come */
	capture_fold();
}

/* The application's name has changed, or the patterns, and so perhaps the level that these give. */
static void
follow_application(void)
{
	configure(application_level(capture_setting, source_of_setting));
}

static const ApplicationLevels application_levels = {
	level_names, "level of capture", "off, stats and trace", "trace",
	follow_application
};

/* Waits not yet folded are in the old clock's units. */
static void
clock_changed(int clock, void *extra)
{
	if (capture.slot == NULL)
		return;
	capture.lock_entry = -1;
	capture_fold();
	if (capture.ring)
		ring_rebase(shmem_get(), clock_source_read(capture.clock), capture.clock,
					clock_source_read(clock));
	timing_stop_own();
	capture.slot->timed_until = 0;	/* which was by the old clock */
	capture.clock = clock;
	capture.clock_changes++;
	capture.slot->clock = clock;
	/* a reader that sees a time by the new clock must see the clock */
	pg_write_barrier();
}

/* Called when the library is loaded. */
void
level_init(void)
{
	DefineCustomEnumVariable("wait_event_timing.clock",
							 "Where time stamps come from.",
							 NULL,
							 &capture_clock, CLOCK_SOURCE_TSC, clock_entries,
							 PGC_SUSET, 0, check_clock, clock_changed, NULL);
	DefineCustomEnumVariable("wait_event_timing.capture",
							 "What is recorded of each wait.",
							 NULL,
							 &capture_setting, CAPTURE_OFF, level_names,
							 PGC_SUSET, 0, check_keeps_source, setting_changed, NULL);
	application_define("wait_event_timing.capture_application",
					   "What is recorded in client sessions by name of their application.",
					   &application_levels, NULL);
}
