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

#include "../common/module_settings.h"
#include "pgtare.h"

MODULE_MAGIC("pgtare", PGTARE_VERSION);

void		_PG_init(void);

void
_PG_init(void)
{
	void	  **loaded = module_place("pgtare");

	if (loaded == NULL)
		return;
	*loaded = loaded;
	trial_init();
	session_init();
	pgtare_shmem_init();
	MarkGUCPrefixReserved("pgtare");
	bounds_install();
	evidence_install();
}
