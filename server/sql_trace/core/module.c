/*-------------------------------------------------------------------------
 * module.c
 *		Loading the module.
 *
 * Nothing here may fail in a way that locks users out: a session that loads
 * the module by session_preload_libraries must get in, come what may.
 *-------------------------------------------------------------------------
 */
#include "module.h"
#include "kept.h"

#include "fmgr.h"
#include "utils/guc.h"

#include "../../common/module_settings.h"
#include "../../common/version.h"

MODULE_MAGIC("sql_trace", PGTARE_VERSION);

void		_PG_init(void);

void
_PG_init(void)
{
	void	  **loaded = module_place("sql_trace");

	if (loaded == NULL)
		return;
	/* in parallel mode this can fail, and what will be loaded again must not be half loaded */
	shmem_init();
	kept_shmem_init();
	*loaded = loaded;
	level_init();
	recorder_init();
	ring_init();
	binds_init();
	secrets_init();
	timeline_init();
	trigger_init();
	kept_init();
	keeper_init();
	for_finding_init();
	analyse_init();
	execute_init();
	utility_init();
	commit_init();
	messages_init();
	row_sources_init();
	MarkGUCPrefixReserved("sql_trace");
}
