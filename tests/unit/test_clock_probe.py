"""The C probe: nothing is lost, and faults of known size are found and counted exactly."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import MeasurementError
from pgtare.observing.clock import build, probe
from pgtare.observing.clock.clocks import Clock, of_machine
from pgtare.observing.clock.distribution import NS, Distribution
from pgtare.postgres.build import source_dir
from tests.unit.sample_clock_report import BY_NAME, even, needs_tsc, replay

pytestmark = pytest.mark.timeout(180)
MS = 2_600_000  # a millisecond of a counter at 2.6 GHz


def counted(recording: probe.ProbeRun) -> dict[int, int]:
    return dict(zip(recording.ticks.tolist(), recording.counts.tolist(), strict=True))


def test_a_faultless_clock_has_no_fault() -> None:
    found = replay(even(100_001))
    assert counted(found) == {25: 100_000}
    assert (found.differences, found.backward, found.still_longest) == (100_000, 0, 0)


def test_steps_back_by_a_tick_are_counted_in_ticks() -> None:
    # by one tick, which in whole ns is a difference of 0
    readings = even(10_001)
    at = np.array([10, 500, 501, 9_999])
    readings[at + 1] = readings[at] - np.uint64(1)
    found = replay(readings)
    by_ticks = counted(found)
    # reading 501 was moved before 502 was put one below it
    assert by_ticks[-1] == 4 - 1
    assert found.backward == sum(n for t, n in by_ticks.items() if t < 0)
    assert found.backward_largest == min(by_ticks)


@pytest.mark.parametrize("size", [-1, 1])
def test_every_step_of_one_tick_is_counted(size: int) -> None:
    deltas = np.full(200_000, 25, np.int64)
    deltas[::1000] = size
    readings = np.concatenate([[10**9], 10**9 + np.cumsum(deltas)]).astype(np.uint64)
    found = replay(readings)
    assert counted(found) == {size: 200, 25: 199_800}
    assert found.backward == (200 if size < 0 else 0)
    assert found.backward_largest == min(size, 0)


def test_a_millisecond_back_is_found_with_its_size_and_the_run_goes_on() -> None:
    readings = even(50_001, start=10**9)
    readings[20_000:] -= np.uint64(MS)
    readings[40_000:] -= np.uint64(2 * MS)
    found = replay(readings)
    assert counted(found) == {25 - 2 * MS: 1, 25 - MS: 1, 25: 49_998}
    assert (found.backward, found.backward_largest) == (2, 25 - 2 * MS)


def test_a_clock_that_stands_still_shows_how_long() -> None:
    deltas = np.full(10_000, 25, np.int64)
    deltas[100:107] = 0
    deltas[5_000:8_000] = 0
    found = replay(np.concatenate([[1], 1 + np.cumsum(deltas)]).astype(np.uint64))
    assert counted(found) == {0: 3_007, 25: 6_993}
    assert found.still_longest == 3_000


def test_a_counter_that_wraps_at_64_bits_does_not_step_back() -> None:
    readings = even(1_001, start=2**64 - 25 * 500)
    assert readings[-1] < readings[0]
    found = replay(readings)
    assert counted(found) == {25: 1_000}
    assert found.backward == 0


def test_a_counter_that_wraps_at_32_bits_steps_back_once() -> None:
    readings = even(1_001, start=2**32 - 25 * 500) % np.uint64(2**32)
    found = replay(readings)
    assert counted(found) == {25 - 2**32: 1, 25: 999}
    assert (found.backward, found.backward_largest) == (1, 25 - 2**32)


def test_large_differences_are_kept_exactly_and_none_is_dropped() -> None:
    # more different ones than the list holds at first, in no order, some of them again
    rng = np.random.default_rng(1)
    values = rng.permutation(np.arange(probe.DIRECT - 2, probe.DIRECT - 2 + 70_000))
    deltas = np.concatenate([values, values[:1000], [2**61, 2**62]]).astype(np.int64)
    found = replay(np.concatenate([[0], np.cumsum(deltas)]).astype(np.uint64))
    expected, times = np.unique(deltas, return_counts=True)
    assert counted(found) == dict(zip(expected.tolist(), times.tolist(), strict=True))
    assert [gap.ticks for gap in found.gaps[:2]] == [2**62, 2**61]
    assert len(found.gaps) == probe.KEPT


@pytest.mark.parametrize("clock", of_machine(probe.leaves()), ids=lambda clock: clock.name)
def test_every_clock_is_read_and_every_difference_counted(clock: Clock) -> None:
    # that one stands still shows only where two batches in a row keep the processor
    found = probe.record(clock, 0.3 if "coarse" in clock.name else 0.03, None)
    assert found.differences > 1_000
    assert found.differences == int(found.counts.sum())
    assert found.backward == 0
    if "coarse" in clock.name:  # does not move between the kernel's ticks, batch after batch
        assert found.still_longest > 5_000
    assert found.elapsed_ns > 25e6
    assert (np.diff(found.ticks) > 0).all()


def test_a_reading_costs_more_by_system_call_and_the_loop_adds_something() -> None:
    reads = {}
    for name in ("monotonic", "monotonic_syscall"):
        only, loop = probe.cost(BY_NAME[name], 30, 300)
        # the fastest of each, which other work on the processors does not move
        reads[name] = float(np.min(only))
        assert 0 < np.median(only) < 100_000
        # a batch of each kind in turn: half of the pairs ran on a processor of one speed
        assert np.median(loop / only) > 0.9
    assert reads["monotonic"] < reads["monotonic_syscall"]


def test_a_stop_in_the_middle_keeps_what_was_recorded() -> None:
    def interrupt(seconds: float) -> None:
        if seconds > 0.05:
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    found = probe.record(BY_NAME["monotonic"], 300, None, tick=interrupt)
    assert time.monotonic() - began < 100  # on a busy machine
    assert found.interrupted
    assert found.differences > 1000
    assert int(found.counts.sum()) == found.differences


def test_a_processor_that_is_not_there_is_named() -> None:
    with pytest.raises(MeasurementError, match="processor 1000000"):
        probe.record(BY_NAME["monotonic"], 0.01, 1_000_000)


two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


def compared(offset: int) -> probe.CorePair:
    """The first and second processor; a busy machine may need a second look."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for _ in range(10):
        try:
            found = probe.cores(
                first,
                second,
                counter=probe.counter_usable(),
                rounds=2000,
                limit_ns=10**9,
                offset=offset,
            )
        except MeasurementError as ex:  # not one reading came back
            if "too busy" not in str(ex):
                raise
            continue
        if found.rounds == 2000:
            return found
    pytest.skip("the processors are too busy")


@two
def test_processors_in_step_have_bounds_around_zero() -> None:
    found = compared(0)
    assert found.lower < 0 < found.upper
    assert found.backward == 0


@two
def test_a_comparison_ends_with_its_last_round_and_not_with_its_time_limit() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    began = time.monotonic()
    found = probe.cores(
        first, second, counter=probe.counter_usable(), rounds=5, limit_ns=300 * 10**9
    )
    assert found.rounds == 5
    assert time.monotonic() - began < 100  # on a busy machine


@two
@pytest.mark.parametrize("offset", [-1_000_000_000, 1_000_000_000])
def test_an_offset_of_a_processor_lies_within_its_bounds_and_every_step_is_counted(
    offset: int,
) -> None:
    # far more than any hand-over takes, so that each in one direction steps back
    found = compared(offset)
    assert found.lower < offset < found.upper
    assert found.upper - found.lower < 100_000
    assert found.backward == 2000
    assert found.backward_largest == pytest.approx(-abs(offset), rel=1e-3)


@needs_tsc
def test_two_hundred_short_calibrations_agree_with_a_long_one() -> None:
    def hz(first: probe.Pair, last: probe.Pair) -> float:
        return (last.ticks - first.ticks) * NS / (last.ns - first.ns)

    before = probe.pair()
    brackets = [probe.calibrate(1_900_000) for _ in range(200)]
    short = np.array([hz(first, last) for first, last in brackets])
    while (after := probe.pair()).ns - before.ns < NS:
        time.sleep(0.05)
    off_ppm = 1e6 * np.abs(short / hz(before, after) - 1)
    # Some machines let the counter advance in steps of 10 ns: a bracket can be off by one. A step
    # need not be a whole number of ticks (24 and 25 in turn): widths tell it, but for a gap of one.
    widths = np.unique([probe.pair().width for _ in range(50_000)])
    gaps = np.diff(widths)
    step = gaps[gaps > 1].min(initial=widths[0])
    step_ppm = 1e6 * step / hz(before, after) * NS / 1_900_000
    near_ppm = max(5, 1.2 * step_ppm)
    # on a busy machine a process may lose its processor within a bracket: then the bracket is wide
    wide = np.array([(a.width + b.width) / (b.ticks - a.ticks) for a, b in brackets])
    assert np.percentile(off_ppm, 90) <= near_ppm
    assert np.all(off_ppm <= near_ppm + 1e6 * wide)


def test_the_histogram_has_a_bucket_for_zero_and_powers_of_two() -> None:
    found = Distribution((-9, 0, 1, 2, 3, 4, 1023, 1024), (1, 5, 1, 2, 3, 4, 7, 8), NS).histogram()
    assert found[:4] == [(0, 5), (1, 1), (3, 5), (7, 4)]
    assert found[-2:] == [(1023, 7), (2047, 8)]


def test_conversion_is_exact_where_a_double_would_not_be() -> None:
    seen = Distribution((26, 2_600_000_000 * 86_400), (1, 1), 2_600_000_000)
    assert seen.whole_ns(26) == 10
    assert seen.whole_ns(2_600_000_000 * 86_400) == 86_400 * NS
    assert seen.whole_ns(25) == 9


def test_sources_that_changed_are_another_probe(tmp_path: Path) -> None:
    source = tmp_path / "clock" / "tiny.c"
    source.parent.mkdir()
    source.write_text("const char *probe_sources(void) { return PROBE_SOURCES; }\n")
    before = build.digest(tmp_path)
    library = tmp_path / build.LIBRARY
    build.compile_probe(tmp_path, library)
    found = ctypes.CDLL(str(library))
    found.probe_sources.restype = ctypes.c_char_p
    assert found.probe_sources() == before.encode()
    source.write_text(source.read_text() + "/* another */\n")
    assert probe._load(library, build.digest(tmp_path)) is None


def test_the_installed_probe_is_the_one_of_these_sources() -> None:
    wanted = build.digest(source_dir())
    assert probe.library().probe_sources() == wanted.encode()


def test_without_a_compiler_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.BuildError, match="install gcc"):
        build.compile_probe(source_dir(), tmp_path / build.LIBRARY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_compiler_of_two_words_is_taken_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"env {build.compiler()[0]}")  # as "ccache gcc"
    build.compile_probe(source_dir(), tmp_path / build.LIBRARY)
    assert ctypes.CDLL(str(tmp_path / build.LIBRARY)).probe_new


def test_what_does_not_compile_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "broken.c").write_text("this is not C\n")
    with pytest.raises(build.BuildError, match="could not be compiled"):
        build.compile_probe(tmp_path, tmp_path / build.LIBRARY)
    assert [path.name for path in tmp_path.iterdir()] == ["clock"]


@pytest.mark.slow
@pytest.mark.parametrize("cpu", [0, 1023, 1024, 5000])
def test_a_processor_beyond_the_thousandth_can_be_pinned_to(many: Path, cpu: int) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from pgtare.observing.clock import probe; print(probe.library().probe_pin({cpu}))",
        ],
        env={**os.environ, "LD_PRELOAD": str(many)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("0\n", f"pinned to {cpu}\n")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that imitates a kernel with more processors than a cpu_set_t holds."""
    library = tmp_path_factory.mktemp("many") / "many_processors.so"
    source = Path(__file__).with_name("many_processors.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library
