/*-------------------------------------------------------------------------
 * call_slots.c
 *		Replacing the server executable's call slots for libc functions.
 *
 * The executable reaches libc through slots of its global offset table, which
 * the dynamic linker fills from relocations of type JUMP_SLOT and GLOB_DAT.
 * We walk those relocations and put our own function into the slot.  Which
 * functions: ../pgtare/transaction_bounds.c (recv, send) and ../wait_event_timing/wrapped_calls.c.
 *
 * Traps, and what is done about them:
 *
 * - Lazy binding: before its first call a slot points back into the
 *	 executable, at code which asks the linker for the function and then
 *	 overwrites the slot.  To call that as "the real function" would make our
 *	 wrapper vanish at its first use.  A value inside the executable is
 *	 therefore never kept; the function is looked up instead.
 * - A lookup may itself return the executable's own stub (in a non-PIE program
 *	 whose code takes the function's address), so such an answer is refused too.
 * - RELRO: the pages of the table may have been made read-only.  They are
 *	 opened for the write and closed again, exactly as far as the linker had
 *	 closed them.
 * - Others may have replaced the slot before us: we chain to what is there,
 *	 and never put a slot back, as somebody may have chained to us.
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "call_slots.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define RELOC_JUMP_SLOT R_X86_64_JUMP_SLOT
#define RELOC_GLOB_DAT R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define RELOC_JUMP_SLOT R_AARCH64_JUMP_SLOT
#define RELOC_GLOB_DAT R_AARCH64_GLOB_DAT
#else
#error "only x86-64 and aarch64 are supported"
#endif

#define MAX_SEGMENTS 16

/* What we need to know of the executable */
typedef struct Executable
{
	uintptr_t	base;			/* load bias */
	struct
	{
		uintptr_t	start,
					end;
	}			segment[MAX_SEGMENTS];	/* its mappings */
	int			nsegments;
	uintptr_t	relro_start,	/* read-only pages, whole ones */
				relro_end;
	const char *strtab;
	const ElfW(Sym) *symtab;
	const ElfW(Rela) *rela[2];
	size_t		nrela[2];
	const ElfW(Half) *versym;
	const ElfW(Verneed) *verneed;
	size_t		nverneed;
} Executable;

static bool
inside(const Executable *exe, const void *address)
{
	uintptr_t	a = (uintptr_t) address;

	for (int i = 0; i < exe->nsegments; i++)
		if (a >= exe->segment[i].start && a < exe->segment[i].end)
			return true;
	return false;
}

/* glibc relocates most of .dynamic in place; others leave file addresses. */
static uintptr_t
dynamic_address(const Executable *exe, ElfW(Addr) value)
{
	return value < exe->base ? exe->base + value : value;
}

static void
read_dynamic(Executable *exe, const ElfW(Dyn) *dyn)
{
	for (; dyn->d_tag != DT_NULL; dyn++)
	{
		uintptr_t	address = dynamic_address(exe, dyn->d_un.d_ptr);

		switch (dyn->d_tag)
		{
			case DT_STRTAB:
				exe->strtab = (const char *) address;
				break;
			case DT_SYMTAB:
				exe->symtab = (const ElfW(Sym) *) address;
				break;
			case DT_JMPREL:
				exe->rela[0] = (const ElfW(Rela) *) address;
				break;
			case DT_PLTRELSZ:
				exe->nrela[0] = dyn->d_un.d_val / sizeof(ElfW(Rela));
				break;
			case DT_RELA:
				exe->rela[1] = (const ElfW(Rela) *) address;
				break;
			case DT_RELASZ:
				exe->nrela[1] = dyn->d_un.d_val / sizeof(ElfW(Rela));
				break;
			case DT_VERSYM:
				exe->versym = (const ElfW(Half) *) address;
				break;
			case DT_VERNEED:
				exe->verneed = (const ElfW(Verneed) *) address;
				break;
			case DT_VERNEEDNUM:
				exe->nverneed = dyn->d_un.d_val;
				break;
			default:
				break;
		}
	}
}

static int
describe_executable(struct dl_phdr_info *info, size_t size, void *arg)
{
	Executable *exe = arg;
	uintptr_t	page = (uintptr_t) sysconf(_SC_PAGESIZE) - 1;
	const ElfW(Dyn) *dyn = NULL;

	(void) size;
	exe->base = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
		uintptr_t	start = exe->base + ph->p_vaddr;

		if (ph->p_type == PT_LOAD && exe->nsegments < MAX_SEGMENTS)
		{
			exe->segment[exe->nsegments].start = start;
			exe->segment[exe->nsegments].end = start + ph->p_memsz;
			exe->nsegments++;
		}
		else if (ph->p_type == PT_GNU_RELRO)
		{
			/* the linker protects only pages that lie wholly before the end */
			exe->relro_start = start & ~page;
			exe->relro_end = (start + ph->p_memsz) & ~page;
		}
		else if (ph->p_type == PT_DYNAMIC)
			dyn = (const ElfW(Dyn) *) start;
	}
	if (dyn)
		read_dynamic(exe, dyn);

	return 1;					/* the executable comes first: stop here */
}

/* The version the executable was linked against, such as GLIBC_2.2.5 */
static const char *
symbol_version(const Executable *exe, size_t symbol)
{
	const char *need = (const char *) exe->verneed;
	ElfW(Half)	wanted;

	if (exe->versym == NULL || need == NULL)
		return NULL;
	wanted = exe->versym[symbol] & 0x7fff;
	for (size_t i = 0; i < exe->nverneed; i++)
	{
		const ElfW(Verneed) *vn = (const ElfW(Verneed) *) need;
		const char *aux = need + vn->vn_aux;

		for (int j = 0; j < vn->vn_cnt; j++)
		{
			const ElfW(Vernaux) *va = (const ElfW(Vernaux) *) aux;

			if ((va->vna_other & 0x7fff) == wanted)
				return exe->strtab + va->vna_name;
			aux += va->vna_next;
		}
		need += vn->vn_next;
	}
	return NULL;
}

static void *
look_up(void *handle, const char *name, const char *version)
{
	return version ? dlvsym(handle, name, version) : dlsym(handle, name);
}

/*
 * As the linker would resolve it: a preloaded library that comes first may define it
 * without a version.
 */
static void *
look_up_default(const Executable *exe, const char *name, const char *version)
{
	void	   *versioned = look_up(RTLD_DEFAULT, name, version),
			   *first = dlsym(RTLD_DEFAULT, name);
	Dl_info		of_versioned,
				of_first;

	if (first == NULL || inside(exe, first) || versioned == NULL ||
		dladdr(first, &of_first) == 0 || dladdr(versioned, &of_versioned) == 0)
		return versioned;
	return of_first.dli_fbase == of_versioned.dli_fbase ? versioned : first;
}

/* What a slot really calls: its value, or the function it would resolve to. */
static void *
real_function(const Executable *exe, void *value, const char *name, const char *version)
{
	void	   *found = value;

	if (!inside(exe, found))
		return found;			/* bound already, or replaced by another module */
	found = look_up_default(exe, name, version);
	if (found == NULL || inside(exe, found))
	{
		void	   *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);

		found = libc ? look_up(libc, name, version) : NULL;
		if (libc)
			dlclose(libc);
	}
	return found && !inside(exe, found) ? found : NULL;
}

static char problem[160];

/* The first is reported: those that follow mostly have the same cause. */
static void
note_problem(const char *what)
{
	if (problem[0] == '\0')
		snprintf(problem, sizeof(problem), "the kernel refused to make the server's call slots "
				 "%s (mprotect: %s)", what, strerror(errno));
}

const char *
call_slots_problem(void)
{
	return problem[0] ? problem : NULL;
}

static bool
write_slot(const Executable *exe, void **slot, void *value)
{
	uintptr_t	page_size = (uintptr_t) sysconf(_SC_PAGESIZE);
	uintptr_t	page = (uintptr_t) slot & ~(page_size - 1);
	bool		closed = page >= exe->relro_start && page < exe->relro_end;

	if (closed && mprotect((void *) page, page_size, PROT_READ | PROT_WRITE) != 0)
	{
		note_problem("writable");
		return false;
	}
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (closed && mprotect((void *) page, page_size, PROT_READ) != 0)
		note_problem("read-only again");
	return true;
}

/* Call visit for each slot of each entry. */
typedef void (*slot_visitor) (const Executable *exe, CallSlot *entry, void **slot,
							  size_t symbol);

static void
walk_slots(CallSlot *entries, size_t n, slot_visitor visit)
{
	Executable	exe = {0};

	dl_iterate_phdr(describe_executable, &exe);
	if (exe.strtab == NULL || exe.symtab == NULL)
		return;
	for (int table = 0; table < 2; table++)
	{
		for (size_t i = 0; exe.rela[table] && i < exe.nrela[table]; i++)
		{
			const ElfW(Rela) *rel = &exe.rela[table][i];
			unsigned	type = ELF64_R_TYPE(rel->r_info);
			size_t		symbol = ELF64_R_SYM(rel->r_info);
			const char *name;

			if (type != RELOC_JUMP_SLOT && type != RELOC_GLOB_DAT)
				continue;
			name = exe.strtab + exe.symtab[symbol].st_name;
			for (size_t k = 0; k < n; k++)
				if (strcmp(entries[k].name, name) == 0)
					visit(&exe, &entries[k], (void **) (exe.base + rel->r_offset), symbol);
		}
	}
}

static void
install_slot(const Executable *exe, CallSlot *entry, void **slot, size_t symbol)
{
	void	   *real;

	if (*slot == entry->wrapper)
		return;
	real = real_function(exe, *slot, entry->name, symbol_version(exe, symbol));
	if (real == NULL)
		return;
	/* a second slot of the same name must not lose what the first chained to */
	if (*entry->real == NULL)
		*entry->real = real;
	if (write_slot(exe, slot, entry->wrapper))
		entry->slots++;
}

int
call_slots_replace(CallSlot *entries, size_t n)
{
	int			total = 0;

	walk_slots(entries, n, install_slot);
	for (size_t k = 0; k < n; k++)
		total += entries[k].slots;
	return total;
}

static int	verified;

static void
verify_slot(const Executable *exe, CallSlot *entry, void **slot, size_t symbol)
{
	(void) exe;
	(void) symbol;
	if (*slot == entry->wrapper)
		verified++;
}

int
call_slots_intact(const CallSlot *entries, size_t n)
{
	verified = 0;
	walk_slots((CallSlot *) entries, n, verify_slot);
	return verified;
}
