/*-------------------------------------------------------------------------
 * clock_trust.h
 *		Whether the processor's counter may serve as a clock, and why.
 *
 * That the counter runs at a constant rate does not make it a clock: counters
 * of several processors may differ, and a hypervisor may move them.  The kernel
 * watches them, so it must trust the counter, too: it reads the time by it, or
 * by a clock of the hypervisor that is made from it.  In the second case the
 * hypervisor must say that the counter is fit for use by itself, and the kernel
 * must still offer it (a counter that was found unstable is offered no more).
 * What cannot be found out counts as no.
 *
 * The header is free of PostgreSQL.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_CLOCK_TRUST_H
#define PGTARE_CLOCK_TRUST_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"

typedef struct ClockTrust
{
	bool		counter;		/* it may serve as a clock */
	char		reason[160];	/* why, or why not */
} ClockTrust;

#if defined(__x86_64__)

#define CLOCK_SOURCES "/sys/devices/system/clocksource/clocksource0/"
#define CPUID_HYPERVISOR (1u << 31)	/* leaf 1, ecx */
#define KVM_CLOCK_STABLE (1u << 24)	/* its leaf 1, eax */
#define HYPERV_TSC_INVARIANT (1u << 15)	/* its leaf 3, eax */

/* The first line of a small file, without its end; empty: it cannot be read. */
static inline void
clock_read_line(const char *path, char *line, size_t size)
{
	int			file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t		got = file >= 0 ? read(file, line, size - 1) : 0;

	line[got > 0 ? got : 0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (file >= 0)
		close(file);
}

/* Is a word in a list that blanks separate? */
static inline bool
clock_listed(const char *list, const char *word)
{
	size_t		length = strlen(word);

	for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
		if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
			return true;
	return false;
}

/*
 * The hypervisor's word that the counter is fit for use, by a flag of one of its
 * leaves.  KVM may put its leaves behind those of an imitated Hyper-V.
 */
static inline bool
clock_hypervisor_says(const char *name, unsigned leaf, unsigned flag)
{
	unsigned	a,
				b,
				c,
				d;

	if (!__get_cpuid(1, &a, &b, &c, &d) || (c & CPUID_HYPERVISOR) == 0)
		return false;
	for (unsigned base = 0x40000000; base < 0x40010000; base += 0x100)
	{
		unsigned	signature[3];

		__cpuid(base, a, signature[0], signature[1], signature[2]);
		if (memcmp(signature, name, sizeof(signature)) != 0)
			continue;
		__cpuid(base + leaf, a, b, c, d);
		return (a & flag) != 0;
	}
	return false;
}

static inline ClockTrust
clock_trust(void)
{
	ClockTrust	trust = {false, "the processor's counter does not run at a constant rate"};
	char		current[64];
	char		available[256];

	if (!clock_counter_usable())
		return trust;
	clock_read_line(CLOCK_SOURCES "current_clocksource", current, sizeof(current));
	clock_read_line(CLOCK_SOURCES "available_clocksource", available, sizeof(available));
	if (current[0] == '\0')
	{
		snprintf(trust.reason, sizeof(trust.reason),
				 "the kernel does not say by which clock it reads the time");
		return trust;
	}
	if (strcmp(current, "tsc") == 0)
		trust.counter = true;
	else if (clock_listed(available, "tsc"))
		trust.counter = (strcmp(current, "kvm-clock") == 0 &&
						 clock_hypervisor_says("KVMKVMKVM\0\0", 1, KVM_CLOCK_STABLE)) ||
			(strncmp(current, "hyperv_clocksource", 18) == 0 &&
			 clock_hypervisor_says("Microsoft Hv", 3, HYPERV_TSC_INVARIANT));
	snprintf(trust.reason, sizeof(trust.reason), "the kernel reads the time by %s%s", current,
			 strcmp(current, "tsc") == 0 ? "" : trust.counter ?
			 ", whose hypervisor offers the processor's counter" :
			 ", not by the processor's counter");
	return trust;
}

#else

/* The architecture's counter is the kernel's own clock. */
static inline ClockTrust
clock_trust(void)
{
	ClockTrust	trust = {clock_counter_usable(), "the architecture's counter"};

	return trust;
}

#endif

#endif							/* PGTARE_CLOCK_TRUST_H */
