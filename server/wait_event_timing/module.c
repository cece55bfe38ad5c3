/*-------------------------------------------------------------------------
 * module.c
 *		Loading the module.
 *
 * Nothing here may fail in a way that locks users out: a session that loads
 * the module by session_preload_libraries must get in, come what may.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "waits.h"
#include "../common/module_settings.h"

MODULE_MAGIC("wait_event_timing", PGTARE_VERSION);

void		_PG_init(void);

void
_PG_init(void)
{
	void	  **loaded = module_place("wait_event_timing");

	if (loaded == NULL)
		return;
	/* in parallel mode this can fail, and what is to be loaded again must not be half loaded */
	shmem_init();
	*loaded = loaded;
	calls_init();
	ring_init();
	level_init();
	MarkGUCPrefixReserved("wait_event_timing");
	if (!calls_hooks)
		return;
	if (!process_shared_preload_libraries_in_progress)
	{
		if (shmem_get() == NULL)
			return;
		(void) slot_attach();
	}
	trace_install();
	explain_install();
	offer_install();
	calls_install();
}
