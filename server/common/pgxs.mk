# What the makefiles of all modules do after their lists of files: PGXS, and two corrections of it.
PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
# no bitcode: the module has nothing to inline, and clang need not be there
override with_llvm = no
include $(PGXS)

# a server built by a newer compiler may hand us flags that this one rejects
override CFLAGS := $(filter-out -Wmissing-variable-declarations,$(CFLAGS))

# Calls are found by the names and versions of glibc's functions.
ifeq ($(filter clean distclean uninstall print-cc,$(MAKECMDGOALS)),)
ifeq ($(shell printf '\043include <features.h>\n' | $(CC) -E -dM - | grep -cw __GLIBC__),0)
$(error the server modules need glibc, and this compiler ($(CC)) builds for another C library, \
such as musl: use a PostgreSQL server that was built with glibc)
endif
endif

print-cc:
	@echo $(CC)
