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
#include "utils/guc.h"

#include "pgtare.h"

MODULE_MAGIC("pgtare", PGTARE_VERSION);

void		_PG_init(void);

void
_PG_init(void)
{
	/*
	 * To define our settings twice would be an error, and end the session.  This
	 * copy stays idle: it has no shared memory, and its functions say so.
	 */
	if (settings_find("pgtare.enabled") != NULL)
	{
		ereport(warning_in_leader(),
				(errmsg("another copy of pgtare is loaded already, this one is not usable"),
				 errhint("Name the same file in \"shared_preload_libraries\", in "
						 "\"session_preload_libraries\" and in LOAD.")));
		return;
	}
	trial_init();
	session_init();
	pgtare_shmem_init();
	MarkGUCPrefixReserved("pgtare");
	bounds_install();
	evidence_install();
}
