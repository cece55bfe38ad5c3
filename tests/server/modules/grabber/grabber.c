/*-------------------------------------------------------------------------
 * grabber.c
 *		Another module that takes over calls of libc, as a neighbour in tests.
 *
 * It takes over epoll_wait, counts its calls, and chains to
 * what it found, as modules of this kind do.  Unlike a well-bred one it can
 * also put back what it found, whatever has been put on top of it since.
 *
 * It shares no code with the modules it is loaded with.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(grabber_calls);
PG_FUNCTION_INFO_V1(grabber_grab);
PG_FUNCTION_INFO_V1(grabber_release);

#ifdef __x86_64__
#define IS_CALL(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#else
#define IS_CALL(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#endif

static int	(*chained_epoll_wait) (int, struct epoll_event *, int, int);
static int64 calls;
static void **slot;				/* of epoll_wait */

static int
counting_epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
	calls++;
	return chained_epoll_wait(fd, events, n, timeout);
}

/* The first object is the executable. */
static int
find_slot(struct dl_phdr_info *info, size_t size, void *arg)
{
	ElfW(Addr) base = info->dlpi_addr;
	const ElfW(Dyn) *dyn = NULL;
	const char *strings = NULL;
	const ElfW(Sym) *symbols = NULL;
	const ElfW(Rela) *tables[2] = {NULL, NULL};
	size_t		lengths[2] = {0, 0};

	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dyn = (const ElfW(Dyn) *) (base + info->dlpi_phdr[i].p_vaddr);
	for (; dyn && dyn->d_tag != DT_NULL; dyn++)
	{
		ElfW(Addr) at = dyn->d_un.d_ptr;

		if (dyn->d_tag == DT_STRTAB)
			strings = (const char *) at;
		else if (dyn->d_tag == DT_SYMTAB)
			symbols = (const ElfW(Sym) *) at;
		else if (dyn->d_tag == DT_JMPREL)
			tables[0] = (const ElfW(Rela) *) at;
		else if (dyn->d_tag == DT_RELA)
			tables[1] = (const ElfW(Rela) *) at;
		else if (dyn->d_tag == DT_PLTRELSZ)
			lengths[0] = dyn->d_un.d_val / sizeof(ElfW(Rela));
		else if (dyn->d_tag == DT_RELASZ)
			lengths[1] = dyn->d_un.d_val / sizeof(ElfW(Rela));
	}
	for (int t = 0; t < 2; t++)
		for (size_t i = 0; tables[t] && i < lengths[t]; i++)
			if (IS_CALL(ELF64_R_TYPE(tables[t][i].r_info)) &&
				strcmp(strings + symbols[ELF64_R_SYM(tables[t][i].r_info)].st_name,
					   "epoll_wait") == 0)
				slot = (void **) (base + tables[t][i].r_offset);
	return 1;
}

static void
write_slot(void *value)
{
	uintptr_t	size = (uintptr_t) sysconf(_SC_PAGESIZE);
	void	   *page = (void *) ((uintptr_t) slot & ~(size - 1));

	/* left open, as careless modules do */
	if (mprotect(page, size, PROT_READ | PROT_WRITE) != 0)
		elog(ERROR, "cannot write to the table: %m");
	*slot = value;
}

static int
grab(void)
{
	Dl_info		found;

	if (slot == NULL)
		(void) dl_iterate_phdr(find_slot, NULL);
	if (slot == NULL || *slot == (void *) counting_epoll_wait)
		return 0;
	/* the executable's own stub of a call not yet made would only find libc again */
	if (dladdr(*slot, &found) && found.dli_fname && strstr(found.dli_fname, ".so"))
		chained_epoll_wait = *slot;
	else
		chained_epoll_wait = dlsym(RTLD_DEFAULT, "epoll_wait");
	write_slot((void *) counting_epoll_wait);
	return 1;
}

void		_PG_init(void);

void
_PG_init(void)
{
	(void) grab();
}

Datum
grabber_calls(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(calls);
}

Datum
grabber_grab(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(grab());
}

/* Put back what was found, and return 1 if nobody had come on top of us. */
Datum
grabber_release(PG_FUNCTION_ARGS)
{
	int			on_top = *slot == (void *) counting_epoll_wait;

	write_slot((void *) chained_epoll_wait);
	PG_RETURN_INT32(on_top);
}
