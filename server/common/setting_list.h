/*-------------------------------------------------------------------------
 * setting_list.h
 *		Settings that are lists: checking their values.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_SETTING_LIST_H
#define PGTARE_SETTING_LIST_H

#include "postgres.h"

#include "utils/varlena.h"

#include "pg_compat.h"

/*
 * Take a list apart, by a function that says what is wrong with an item.  "extra" gets
 * the number of its items, an int, and at "offset" the items, of "size" bytes each.
 */
static inline bool
setting_list_check(const char *value, void **extra, Size offset, Size size,
				   bool (*parse) (char *text, void *item), const char *syntax)
{
	char	   *copy = pstrdup(value ? value : "");
	List	   *items = NIL;
	ListCell   *cell;
	int		   *parsed = NULL;
	bool		good = SplitGUCList(copy, ',', &items);

	if (!good)
		GUC_check_errdetail("List syntax is invalid: write %s, separated by commas.", syntax);
	else if ((parsed = setting_alloc(offset + list_length(items) * size)) != NULL)
		*parsed = 0;
	good = parsed != NULL;
	foreach(cell, items)
	{
		if (good && (good = parse(lfirst(cell), (char *) parsed + offset + *parsed * size)))
			++*parsed;
	}
	list_free(items);
	pfree(copy);
	if (good)
		*extra = parsed;
	else if (parsed)
		setting_free(parsed);
	return good;
}

#endif							/* PGTARE_SETTING_LIST_H */
