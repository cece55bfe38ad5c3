"""How many processors a process may use: by made-up control groups, read by the module's own C."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pgtare.postgres.build import source_dir

ALL = len(os.sched_getaffinity(0))
#: Of quotas: less than one processor, so that it decides whatever the machine has.
Usable = Callable[[Mapping[str, str]], float]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("processors") / "processors.so"
    source = source_dir() / "common" / "processors.c"
    subprocess.run(["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", built, source], check=True)
    found = ctypes.CDLL(str(built))
    found.processors_usable.restype = ctypes.c_double
    return found


@pytest.fixture
def usable(library: ctypes.CDLL, tmp_path: Path) -> Usable:
    """What is usable if these files are there."""

    def read(files: Mapping[str, str]) -> float:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return float(library.processors_usable(os.fsencode(tmp_path)))

    return read


VERSION_2 = {"proc/self/cgroup": "0::/system.slice/postgresql.service\n"}
VERSION_1 = {
    "proc/self/cgroup": "5:memory:/other\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/c\n0::/docker/abc\n"
}
GROUP_1 = "sys/fs/cgroup/cpu,cpuacct/docker/abc"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, ALL),
        (VERSION_2, ALL),
        ({**VERSION_2, "sys/fs/cgroup/system.slice/cpu.max": "max 100000\n"}, ALL),
        ({**VERSION_2, "sys/fs/cgroup/system.slice/cpu.max": "9000000 100000\n"}, min(90, ALL)),
        (
            {**VERSION_2, "sys/fs/cgroup/system.slice/postgresql.service/cpu.max": "50000 100000"},
            0.5,
        ),
        # the least of all groups above
        (
            {
                **VERSION_2,
                "sys/fs/cgroup/system.slice/postgresql.service/cpu.max": "50000 100000",
                "sys/fs/cgroup/system.slice/cpu.max": "25000 100000",
            },
            0.25,
        ),
        # a container sees its own group at the root, whatever its path is called
        ({**VERSION_2, "sys/fs/cgroup/cpu.max": "75000 100000"}, 0.75),
        ({**VERSION_1, f"{GROUP_1}/cpu.cfs_quota_us": "40000"}, ALL),
        (
            {
                **VERSION_1,
                f"{GROUP_1}/cpu.cfs_quota_us": "40000",
                f"{GROUP_1}/cpu.cfs_period_us": "80000",
            },
            0.5,
        ),
        (
            {
                **VERSION_1,
                f"{GROUP_1}/cpu.cfs_quota_us": "-1",
                f"{GROUP_1}/cpu.cfs_period_us": "80000",
            },
            ALL,
        ),
        (
            {
                **VERSION_1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "20000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "80000",
            },
            0.25,
        ),
        ({**VERSION_2, "sys/fs/cgroup/system.slice/cpu.max": "nonsense\n"}, ALL),
        ({"proc/self/cgroup": "nonsense\n0:\n::\n"}, ALL),
        ({"proc/self/cgroup": "0::/" + "x" * 9000}, ALL),
    ],
)
def test_the_least_of_affinity_and_quotas(
    usable: Usable, files: Mapping[str, str], wanted: float
) -> None:
    assert usable(files) == pytest.approx(wanted)


def test_affinity_is_that_of_the_process(usable: Usable) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable({}) == 1
    finally:
        os.sched_setaffinity(0, before)
