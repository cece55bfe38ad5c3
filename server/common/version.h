/*-------------------------------------------------------------------------
 * version.h
 *		The version that the command and all server modules share.
 *
 * CONTRIBUTING.md says what else changes with it; a test compares all places.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_VERSION_H
#define PGTARE_VERSION_H

#define PGTARE_VERSION "1.0.0"

#endif							/* PGTARE_VERSION_H */
