"""The counter's rate on a machine that was suspended, by the modules' own C and a made-up clock."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from pgtare.postgres.build import source_dir

#: While the machine is suspended CLOCK_MONOTONIC stands still; the others go on.
_SOURCE = """
#include <stdint.h>
#include <time.h>
#include <unistd.h>

typedef int64_t int64;
static int64 suspended_ns;

static int
made_up(clockid_t id, struct timespec *now)
{
	int			failed = clock_gettime(CLOCK_MONOTONIC, now);
	int64		ns = now->tv_sec * 1000000000 + now->tv_nsec;

	ns -= id == CLOCK_MONOTONIC ? suspended_ns : 0;
	now->tv_sec = ns / 1000000000;
	now->tv_nsec = ns % 1000000000;
	return failed;
}

#define clock_gettime made_up
#define pg_usleep usleep
#include "rate.h"

uint64_t
rate_around(int64 ns)
{
	RateBase	base = rate_base();

	usleep(20000);
	suspended_ns += ns;
	(void) rate_since(true, &base, 10000000);
	usleep(20000);
	return rate_since(true, &base, 10000000).hz;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("suspended_ms", [2, 20, 1000])
def test_a_suspension_is_no_part_of_the_rate(tmp_path: Path, suspended_ms: int) -> None:
    source, built = tmp_path / "rate.c", tmp_path / "rate.so"
    source.write_text(_SOURCE)
    subprocess.run(
        [
            *("cc", "-Wall", "-Werror", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC"),
            *("-I", source_dir() / "common", "-o", built, source),
        ],
        check=True,
    )
    around = ctypes.CDLL(str(built)).rate_around
    around.argtypes, around.restype = [ctypes.c_int64], ctypes.c_uint64
    assert around(suspended_ms * 1_000_000) == pytest.approx(around(0), rel=1e-3)
