"""What perf prints becomes events, and events become time off the processor."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgtare.observing.flame.events import Reader, Scheduler
from pgtare.observing.flame.frames import is_idle, own, plain
from pgtare.observing.flame.perf import Collector
from pgtare.observing.flame.recording import BLOCKED, RUNNABLE, Collected

TEXT = """\
postgres  7/7  10.000001000: sched:sched_switch: prev_comm=postgres prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
\tffffffff81 __schedule+0x10 ([kernel.kallsyms])
\tffffffff82 schedule ([kernel.kallsyms])
\t    85e96 do_wait (/lib/libc.so.6)
\t    45c02 LWLockAcquire.part.0+0xac (/usr/bin/postgres)
\t    47c78 [unknown] (/usr/bin/postgres)
\t    46fa5 PostgresMain (/usr/bin/postgres)
\t    155976 main (/usr/bin/postgres)
\tffffffffffffffff [unknown] ([unknown])

postgres 1 [001] 10.000002: PERF_RECORD_LOST lost 12
my app  9/9  10.000301000: sched:sched_waking: comm=postgres pid=7 prio=120 target_cpu=000
\tffffffff83 try_to_wake_up ([kernel.kallsyms])
\tffffffff84 __x64_sys_futex ([kernel.kallsyms])
\t    1234 sem_post;x (/lib/libc.so.6)

swapper  0/0  10.000351000: sched:sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=postgres next_pid=7 next_prio=120 ffffffff81 __schedule ([kernel.kallsyms])

postgres  7/7  10.000401000: sched:sched_switch: prev_comm=postgres prev_pid=7 prev_prio=120 prev_state=R+ ==> next_comm=x next_pid=3 next_prio=120
\tffffffff81 __schedule ([kernel.kallsyms])
\t    46fa5 PostgresMain (/usr/bin/postgres)

"""  # noqa: E501


def _read(wake: bool = False) -> tuple[Reader, Scheduler, Collected]:
    reader = Reader(lambda file, offset: f"{file.rpartition('/')[2]}+0x{offset:x}")
    collected = Collected()
    scheduler = Scheduler(lambda pid: pid == 7, collected, wake=wake)
    scheduler.begin(10_000_000_000, {})
    for event in reader.events(TEXT.splitlines(keepends=True)):
        scheduler.take(event)
    scheduler.end(10_000_501_000)
    return reader, scheduler, collected


def test_blocked_and_runnable_time_are_distinguished() -> None:
    reader, scheduler, collected = _read()
    samples = collected.samples()
    times = list(zip(samples.kind.tolist(), samples.weight_ns.tolist(), strict=True))
    assert times == [(BLOCKED, 300_000), (RUNNABLE, 50_000), (RUNNABLE, 100_000)]
    assert samples.stacks[0] == (
        "backend",
        "PostgresMain",
        "postgres+0x47c78",
        "LWLockAcquire",
        "do_wait",
        "schedule_[k]",
        "__schedule_[k]",
    )
    assert reader.lost == 12
    assert reader.unnamed == {"/usr/bin/postgres": 1}
    assert scheduler.unmatched == 0


def test_births_are_told_and_unwanted_events_only_counted() -> None:
    born: list[tuple[int, int, int]] = []
    reader = Reader(
        lambda file, offset: "?",
        forked=lambda task, pid, parent: born.append((task, pid, parent)),
        wanted=lambda task, program: program == "my app",
    )
    births = (
        "postgres     0/0         0.000000000: PERF_RECORD_COMM: postgres:5/5\n"
        "postgres     5/5        10.000000000: PERF_RECORD_FORK(7:8):(5:5)\n"
        "postgres     7/7        10.000000500: PERF_RECORD_EXIT(7:7):(5:5)\n"
    )
    found = list(reader.events((births + TEXT).splitlines(keepends=True)))
    assert born == [(8, 7, 5)]
    assert [event.comm for event in found] == ["my app"]
    assert (reader.events_read, reader.unreadable, reader.lost) == (4, 0, 12)


def test_a_stack_that_was_read_after_it_came_back_is_of_a_later_wait() -> None:
    back = TEXT[TEXT.index("swapper  0/0") : TEXT.index("postgres  7/7  10.000401")]
    for read_ns, waited in ((10_000_000_900, [351_000]), (10_000_400_000, [])):
        collected = Collected()
        scheduler = Scheduler(lambda pid: pid == 7, collected)
        scheduler.begin(10_000_000_000, {7: (read_ns, ("backend", "waiting throughout: x"))})
        for event in Reader(lambda file, offset: "?").events(back.splitlines(keepends=True)):
            scheduler.take(event)
        assert collected.samples().weight_ns.tolist() == waited
        assert scheduler.unmatched == (not waited)


@pytest.mark.parametrize("wanted", [(7,), (7, 1007)])
def test_a_wait_under_way_ends_though_the_kernels_number_is_learnt_later(
    wanted: tuple[int, ...],
) -> None:
    """In a container: only what leaves shows that process 7 is the kernel's 1007."""
    later = TEXT[TEXT.index("swapper  0/0") :]
    later = later.replace("next_pid=7", "next_pid=1007").replace("prev_pid=7", "prev_pid=1007")
    collected = Collected()
    scheduler = Scheduler(wanted.__contains__, collected)
    scheduler.begin(10_000_000_000, {7: (10_000_000_900, ("backend", "waiting throughout: x"))})
    for event in Reader(lambda file, offset: "?").events(later.splitlines(keepends=True)):
        scheduler.take(event)
    samples = collected.samples()
    assert samples.kind.tolist() == [BLOCKED]
    assert samples.pid.tolist() == [7]
    assert samples.weight_ns.tolist() == [351_000]


def test_who_woke_stands_on_top_of_what_waited() -> None:
    samples = _read(wake=True)[2].samples()
    assert samples.stacks[0][-4:] == (
        "woken by my app",
        "try_to_wake_up_[k]",
        "__x64_sys_futex_[k]",
        "sem_post:x",
    )


def test_an_interrupt_is_not_the_doing_of_whom_it_interrupted() -> None:
    text = TEXT.replace("ffffffff84 __x64_sys_futex", "ffffffff84 asm_common_interrupt")
    reader, collected = Reader(lambda file, offset: "?"), Collected()
    scheduler = Scheduler(lambda pid: pid == 7, collected, wake=True)
    for event in reader.events(text.splitlines(keepends=True)):
        scheduler.take(event)
    (stack,) = [s for s in collected.samples().stacks if "LWLockAcquire" in s and "?" in s][:1]
    assert "woken by interrupt" in stack
    assert not any("sem_post" in name for name in stack)


def test_who_comes_back_unseen_is_counted() -> None:
    scheduler = Scheduler(lambda pid: True, Collected())
    reader = Reader(lambda file, offset: "?")
    for event in list(reader.events(TEXT.splitlines(keepends=True)))[2:3]:
        scheduler.take(event)
    assert scheduler.unmatched == 1


def test_a_stack_begins_where_the_work_of_its_process_does() -> None:
    outer = ("main", "PostmasterMain", "ServerLoop")
    assert own((*outer, "PostgresMain", "f")) == ("backend", "PostgresMain", "f")
    assert own((*outer, "BackgroundWorkerMain", "ParallelWorkerMain", "g"))[0] == "parallel worker"
    assert own((*outer, "epoll_wait"))[:2] == ("postmaster", "ServerLoop")
    slots = (*outer, "postmaster_child_launch", "ReplSlotSyncWorkerMain", "WaitLatch")
    assert own(slots) == ("slotsync worker", "ReplSlotSyncWorkerMain", "WaitLatch")
    assert own(("f", "g")) == ("process", "f", "g")


def test_functions_are_called_as_their_authors_call_them() -> None:
    assert plain("LWLockAcquire.part.0") == "LWLockAcquire"
    assert plain("__GI___libc_write") == "write"
    assert plain("__GI_epoll_wait") == "epoll_wait"
    assert plain("clock_gettime@@GLIBC_2.17") == "clock_gettime"
    assert plain("__libc_start_main") == "__libc_start_main"
    assert plain(".text") == ".text"


def test_a_program_with_a_short_name_is_no_frame() -> None:
    """perf pads names with spaces; `cc1` could be read as an address."""
    lines = TEXT.replace("      my app", "         cc1").replace("my app  9/9", f"{'cc1':>16}  9/9")
    reader = Reader(lambda file, offset: "?")
    found = list(reader.events(lines.splitlines(keepends=True)))
    assert [event.comm for event in found] == ["postgres", "cc1", "swapper", "postgres"]
    assert all("/" not in name for event in found for name in event.stack)


def test_a_wait_is_cut_where_events_were_lost() -> None:
    """Who was away may have been back and away again: only what was seen counts."""
    collected = Collected()
    scheduler = Scheduler(lambda pid: pid == 7, collected)
    reader = Reader(lambda file, offset: "?", scheduler.gap)
    away = TEXT[: TEXT.index("postgres 1 [001]")]
    other = away.replace("prev_pid=7", "prev_pid=8").replace("7/7  10.000001", "8/8  10.000101")
    lost = "postgres 1 [001] 10.000202: PERF_RECORD_LOST lost 12\n"
    back = TEXT[TEXT.index("swapper  0/0") : TEXT.index("postgres  7/7  10.000401")]
    for event in reader.events((away + other + lost + back).splitlines(keepends=True)):
        scheduler.take(event)
    samples = collected.samples()
    assert samples.weight_ns.tolist() == [100_000]
    assert scheduler.unmatched == 1


@pytest.mark.parametrize("state", ["X", "Z"])
def test_an_exited_process_waits_for_nothing(state: str) -> None:
    exits = TEXT[: TEXT.index("postgres 1 [001]")].replace("prev_state=S", f"prev_state={state}")
    collected = Collected()
    scheduler = Scheduler(lambda pid: pid == 7, collected)
    for event in Reader(lambda file, offset: "?").events(exits.splitlines(keepends=True)):
        scheduler.take(event)
    scheduler.end(20_000_000_000)
    assert scheduler.switches == 1
    assert len(collected) == 0


def test_one_process_weights_several() -> None:
    collected = Collected()
    scheduler = Scheduler(lambda pid: pid == 7, collected, weights={7: 2.5})
    for event in Reader(lambda file, offset: "?").events(TEXT.splitlines(keepends=True) * 200):
        scheduler.take(event)
    blocked = collected.samples().of(BLOCKED).total_ns
    assert blocked == 2.5 * 200 * 300_000


def test_waits_for_something_to_do_are_idle() -> None:
    """Under labels, below what ended them, and where wait_event_timing's function is in between."""
    latch = ("walwriter", "WalWriterMain", "WaitLatch", "epoll_wait")
    flush = ("backend", "PostgresMain", "XLogFlush", "fdatasync")
    asleep = ("backend", "waiting throughout: idle")
    for idle in (
        ("backend", "PostgresMain", "pq_getbyte", "secure_read", "epoll_wait"),
        (*latch, "schedule_[k]"),
        (*latch[:-1], "wait_epoll_wait", "epoll_wait"),
        (latch[0], "wait: Activity/WalWriterMain", *latch[1:]),
        (*latch, "woken by interrupt", "hrtimer_wakeup_[k]"),
        (asleep[0], "wait: Client/ClientRead", asleep[1]),
        (asleep[0], f"{asleep[1]} in transaction (aborted)"),
    ):
        assert is_idle(idle), idle
    for busy in (
        flush,
        (*flush, "woken by backend", "secure_read"),
        ("walwriter", "WalWriterMain", "XLogBackgroundFlush", "fdatasync"),
        (*latch[:-1], "wait_something_else"),
    ):
        assert not is_idle(busy), busy


def test_replication_that_waits_for_something_to_do_is_idle() -> None:
    launched = ("main", "ServerLoop", "BackgroundWorkerMain")
    latch = ("WaitLatchOrSocket", "WaitEventSetWait", "epoll_wait")
    sender = ("PostgresMain", "exec_replication_command", "StartReplication", "WalSndLoop")
    logical = (*sender, "XLogSendLogical", "XLogReadRecord", "WalSndWaitForWal")
    stripped = ("PostgresMain", "exec_replication_command", "postgres+0x1", "postgres+0x2")
    summarizer = ("WalSummarizerMain", "SummarizeWAL", "XLogReadRecord", "ReadPageInternal")
    apply = (*launched, "ApplyWorkerMain", "run_apply_worker", "start_apply", "LogicalRepApplyLoop")
    parallel = (*launched, "ParallelApplyWorkerMain", "LogicalParallelApplyLoop")
    slots = ("ServerLoop", "ReplSlotSyncWorkerMain")
    for idle in (
        (*sender, "WalSndWait", *latch),
        (*stripped, *latch),
        (*summarizer, "summarizer_wait_for_wal", "WaitLatch", "epoll_wait"),
        (*apply, *latch),
        (*parallel, *latch),
        (*slots, "wait_for_slot_activity", *latch),
    ):
        assert is_idle(own(idle)), idle
    for busy in (
        (*logical, "WalSndWait", *latch),
        ("PostgresMain", "exec_simple_query", "SyncRepWaitForLSN", *latch),
        (*summarizer, "summarizer_read_local_xlog_page", "WALRead", "pread"),
        (*apply, "apply_dispatch", "LockAcquireExtended", "ProcSleep", *latch),
        (*slots, "libpqrcv_exec", *latch),
    ):
        assert not is_idle(own(busy)), busy


def test_what_perf_tells_before_it_is_ready_is_no_less() -> None:
    """Wherever it is cut."""
    wanted = [line + "\n" for line in TEXT.splitlines()]
    for cut in range(0, len(TEXT), 7):
        collector = Collector.__new__(Collector)
        collector._early = bytearray(TEXT[:cut].encode())
        rest = io.BytesIO(TEXT[cut:].encode())
        collector._script = cast(Any, SimpleNamespace(stdout=rest))
        assert list(collector.lines()) == wanted
