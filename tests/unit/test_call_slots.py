"""The server's call slots are found however its executable was compiled and linked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pgtare.postgres.build import source_dir

#: As the build farms of distributions, and others, compile and link a server.
BUILDS = {
    "plain": "-O2",
    "lazy": "-O2 -Wl,-z,lazy -Wl,-z,norelro",
    "lazy, relro": "-O2 -Wl,-z,lazy -Wl,-z,relro",
    "not PIE": "-O2 -fno-pie -no-pie -Wl,-z,lazy",
    "not PIE, its own stub is the address": "-O2 -fno-pie -no-pie -Wl,-z,lazy -DTAKE_ADDRESS",
    "hardened": "-O2 -fPIE -pie -Wl,-z,relro,-z,now -D_FORTIFY_SOURCE=3 -fstack-clash-protection"
    " -fstack-protector-strong -fcf-protection",
    "CET in the stubs": "-O2 -fcf-protection=full -Wl,-z,lazy -Wl,-z,ibtplt",
    "no stubs": "-O2 -fno-plt -fPIE -pie",
    "no stubs, lazy": "-O2 -fno-plt -fno-pie -no-pie -Wl,-z,lazy",
    "link time optimisation": "-O2 -flto",
    "link time optimisation, hardened": "-O2 -flto -fno-plt -fcf-protection -Wl,-z,now",
    "packed relocations": "-O2 -fPIE -pie -Wl,-z,pack-relative-relocs",
    "old hashes": "-O2 -Wl,--hash-style=sysv",
    "lld": "-O2 -fuse-ld=lld",
    "lld, hardened": "-O2 -fPIE -pie -fuse-ld=lld -Wl,-z,now -fcf-protection -D_FORTIFY_SOURCE=3",
    "lld, lazy": "-O2 -fuse-ld=lld -Wl,-z,lazy",
    "lld, relro in parts": "-O2 -fuse-ld=lld -Wl,-z,separate-loadable-segments,-z,now",
    "gold": "-O2 -fuse-ld=gold -Wl,-z,now",
    "gold, lazy": "-O2 -fuse-ld=gold -Wl,-z,lazy",
}
SERVER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
#ifdef TAKE_ADDRESS
ssize_t (*volatile taken) (int, void *, size_t) = read;
#endif
int main(int argc, char **argv)
{
	void *module = dlopen(argv[1], RTLD_NOW);
	int (*load) (void), (*intact) (void), (*calls) (void);
	int ends[2], bytes = 0, slots;
	volatile size_t one = 1;
	char buffer[8];

	if (module == NULL) { puts(dlerror()); return 1; }
	load = (int (*) (void)) dlsym(module, "load");
	intact = (int (*) (void)) dlsym(module, "intact");
	calls = (int (*) (void)) dlsym(module, "calls");
	if (pipe(ends) != 0 || write(ends[1], "12345", 5) != 5) return 1;
	/* whether the call was bound before the module is loaded */
	if (argc > 2) bytes += read(ends[0], buffer, one);
	slots = load();
	/* a slot that is bound lazily would be overwritten by the first */
	for (int i = 0; i < 3; i++) bytes += read(ends[0], buffer, one);
	printf("%d %d %d %d\n", slots > 0, intact() == slots, calls(), bytes);
	return 0;
}
"""
MODULE = r"""
#include "call_slots.h"
#include <unistd.h>
static int called;
static ssize_t (*real_read) (int, void *, size_t);
static ssize_t (*real_chk) (int, void *, size_t, size_t);
static ssize_t my_read(int fd, void *to, size_t n) { called++; return real_read(fd, to, n); }
static ssize_t my_chk(int fd, void *to, size_t n, size_t room)
{ called++; return real_chk(fd, to, n, room); }
static CallSlot entries[] = {
	{"read", my_read, (void **) &real_read, 0}, {"__read_chk", my_chk, (void **) &real_chk, 0}};
int load(void) { return call_slots_replace(entries, 2); }
int intact(void) { return call_slots_intact(entries, 2); }
int calls(void) { return called; }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that counts the calls of read by the slots' own code."""
    directory = tmp_path_factory.mktemp("module")
    (directory / "module.c").write_text(MODULE)
    common = source_dir() / "common"
    sources = [str(directory / "module.c"), str(common / "call_slots.c")]
    compiled(["-O2", "-shared", "-fPIC", "-fcf-protection", f"-I{common}", *sources, "-ldl"],
             directory / "module.so")  # fmt: skip
    return directory / "module.so"


def compiled(arguments: list[str], target: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    done = subprocess.run(
        ["gcc", *arguments, "-o", str(target)], capture_output=True, text=True, check=False
    )
    for missing in ("cannot find 'ld'", "unrecognized option", "unknown argument"):
        if done.returncode != 0 and missing in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[0])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("build", BUILDS)
def test_slots_are_found_and_stay(build: str, module: Path, tmp_path: Path) -> None:
    (tmp_path / "server.c").write_text(SERVER)
    options = ["-w", *BUILDS[build].split()]
    compiled([*options, str(tmp_path / "server.c"), "-ldl"], tmp_path / "server")
    for called in ([], ["called before"]):
        done = subprocess.run(
            [tmp_path / "server", module, *called], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"1 1 3 {4 if called else 3}\n", called
