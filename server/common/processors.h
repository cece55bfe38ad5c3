/*-------------------------------------------------------------------------
 * processors.h
 *		How many processors this process may use.  Free of PostgreSQL.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_PROCESSORS_H
#define PGTARE_PROCESSORS_H

/* "root" is "/", or where a test has made up /proc and /sys. */
extern double processors_usable(const char *root);

#endif							/* PGTARE_PROCESSORS_H */
