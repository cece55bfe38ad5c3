/*-------------------------------------------------------------------------
 * module.h
 *		The module's settings.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_MODULE_H
#define PGTARE_MODULE_H

extern bool pgtare_enabled;		/* the kill switch */
extern int	pgtare_max_duration;	/* s */
extern int	pgtare_ring_memory; /* kB */

#endif							/* PGTARE_MODULE_H */
