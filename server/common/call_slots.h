/*-------------------------------------------------------------------------
 * call_slots.h
 *		Replacing the server executable's call slots for libc functions.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_CALL_SLOTS_H
#define PGTARE_CALL_SLOTS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * One function to take over.  "real" is filled before any slot is written, so
 * a wrapper may be entered at once.  Aliases (pread64, __recv_chk) are entries
 * of their own; those with the same signature may share a wrapper.
 */
typedef struct CallSlot
{
	const char *name;			/* dynamic symbol in the executable */
	void	   *wrapper;
	void	  **real;			/* out: what the slot called before */
	int			slots;			/* out: slots that now hold the wrapper */
} CallSlot;

/* Returns the number of slots replaced; a name that has no slot is no error. */
extern int	call_slots_replace(CallSlot *entries, size_t n);

/*
 * What went wrong with the protection of the executable's memory when slots
 * were replaced; NULL: nothing.
 */
extern const char *call_slots_problem(void);

/* How many of the entries' slots still hold the wrapper. */
extern int	call_slots_intact(const CallSlot *entries, size_t n);

#endif							/* PGTARE_CALL_SLOTS_H */
