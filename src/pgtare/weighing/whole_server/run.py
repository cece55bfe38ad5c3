"""Weighs what no session can switch: plans windows, starts the guardian, puts everything back."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.estimate.trial.design import Arm, Design
from pgtare.kit import numbers
from pgtare.postgres import chosen_host
from pgtare.postgres.own_session import first_line
from pgtare.weighing.outside.recording import unwatched
from pgtare.weighing.outside.run import OutsideRun, Plan, driver, name_of_load, source_of
from pgtare.weighing.outside.session import control_session
from pgtare.weighing.switches import Switch
from pgtare.weighing.weigh.measurement import Weighing
from pgtare.weighing.weigh.progress import Stages
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.whole_server import configuration, restore_file
from pgtare.weighing.whole_server.changer import Changer, check_alone
from pgtare.weighing.whole_server.commands import printed_by
from pgtare.weighing.whole_server.configuration import Before
from pgtare.weighing.whole_server.guardian_client import SwitchGuard
from pgtare.weighing.whole_server.schedule import Schedule, block_s, blocks_in, least_s
from pgtare.weighing.whole_server.setting_values import setting_now
from pgtare.weighing.whole_server.watcher_time import WatcherTime

#: What was changed longer ago than this is not put back unasked, in s: a guardian tries as long.
_CERTAIN_S = 24 * 3600.0


def weigh(request: Request, command: list[str], console: Console) -> Weighing:
    """Weigh by windows. console: for progress. Raises UsageError, MeasurementError.

    What Ctrl-C or a server that goes away left is returned, marked partial. Everything that was
    switched is put back, whatever happens to this process.
    """
    assert request.dsn is not None
    stages = Stages(console)
    trouble: list[str] = []
    try:
        with control_session(request.dsn) as control:
            dsn = _pinned(request.dsn, control)
            ours = _put_back_left_over(dsn, control, stages)
            request = _as_they_are(control, request)
            plan, before = _plan_alone(control, request, ours)
            for line in _described(plan, before):
                stages.say(line)
            with (
                driver(control, dsn, plan) as loops,
                _guard(control, dsn, plan, before, stages, trouble) as guard,
            ):
                wires = [seat.wire.backend_pid for seat in loops.seats]
                ours = [control.info.backend_pid, guard.session, *wires]
                schedule = Schedule(
                    loops,
                    guard,
                    WatcherTime(control, ours),
                    plan.design,
                    request.switches,
                    request.window_s,
                    blocks_in(request.duration_s, request.switches, request.window_s),
                    random.Random(request.seed),
                )
                run = OutsideRun(
                    plan, {"": control}, loops, "running server", command, console, schedule
                )
                done = run.run()
    except psycopg.Error as ex:
        raise MeasurementError(f"the session was lost: {first_line(ex)}") from ex
    finally:
        for line in trouble:
            stages.say(line)
        if trouble and isinstance(sys.exception(), KeyboardInterrupt):
            raise KeyboardInterrupt("interrupted; not everything is as it was before, see above")
    if trouble:
        assert done.result.windows is not None
        done.result.windows.put_back = False
        said = [f"Not everything is as it was before: {line}." for line in trouble]
        done.result.warnings += said
    return done


def dry_run(request: Request) -> list[str]:
    """What would be done; looks at the server, changes nothing there."""
    assert request.dsn is not None
    with control_session(request.dsn) as control:
        check_alone(control)
        _refuse_left_over(control)
        request = _as_they_are(control, request)
        plan, before = _plan_alone(control, request)
        source_of([control], plan, random.Random(request.seed))
        return list(_described(plan, before))


def _plan_alone(
    control: psycopg.Connection[Any], request: Request, ours: Sequence[int] = ()
) -> tuple[Plan, list[Before | None]]:
    """`make_plan` of a server that no other weighing switches. Raises UsageError if one does.

    What another one has switched on looks like the server's own configuration. One that begins
    after the first check ends this one by the second, or by the check of our guardian.
    """
    check_alone(control, ours)
    try:
        return make_plan(control, request)
    except UsageError:
        check_alone(control, ours)
        raise


def make_plan(
    control: psycopg.Connection[Any], request: Request
) -> tuple[Plan, list[Before | None]]:
    """The design, and how each setting is before. Raises UsageError for what cannot be weighed."""
    before = [
        configuration.look(control, switch, request.allow) if switch.kind == "setting" else None
        for switch in request.switches
    ]
    arms = (
        Arm("base", "base"),
        Arm("control", "control"),
        *(Arm(switch.name, "instrument") for switch in request.switches),
    )
    block = tuple(range(len(arms)))
    design = Design(arms, block, request.seed, driven=True, grouping="windows")
    least = least_s(request.switches, request.window_s)
    if request.duration_s < least:
        raise UsageError(
            f"windows of {request.window_s:g} s take {numbers.seconds(least)} at least for an "
            f"answer: add --duration {-int(-least // 60)}m or more"
        )
    return Plan(request, design, {}, notes=unwatched({"": control})), before


def _as_they_are(control: psycopg.Connection[Any], request: Request) -> Request:
    """With whether what commands switch is on now, where the server shows that.

    Raises UsageError for a value that cannot be compared with what the server shows.
    """
    switches = []
    for switch in request.switches:
        if switch.kind == "commands" and switch.setting:
            of = f"--switch {switch.name}"
            now = setting_now(control, switch.setting, of)
            configuration.require_reload(now, of)
            configuration.require_value(now, switch.value, of)
            if not now.has(switch.value):
                raise UsageError(
                    f"{of}: {switch.value!r} is no value of {switch.setting}: write it as SHOW does"
                )
            shown = "" if configuration.is_secret(switch.setting) else now.shown
            switch = replace(switch, was_on=now.is_value(switch.value), shown=shown)
        switches.append(switch)
    return replace(request, switches=tuple(switches))


def _described(plan: Plan, before: Sequence[Before | None]) -> Iterator[str]:
    """What will be done, in words, before it is."""
    request = plan.request
    blocks = blocks_in(request.duration_s, request.switches, request.window_s)
    each = len(request.switches) + 2
    yield (
        f"{numbers.seconds(blocks * block_s(request.switches, request.window_s))}: "
        f"{blocks * each} windows of {request.window_s:g} s in random order. "
        f"{_names(request.switches)}: on for the whole server in {blocks} of them"
        f"{' each' if len(request.switches) > 1 else ''}, off in the others. One session of "
        f"pgtare's own runs {name_of_load(request)} all the time"
    )
    for switch, was in zip(request.switches, before, strict=True):
        if was is not None:
            yield (
                f"{switch.name}: {switch.setting} is {was.value} now, and {switch.value} for all "
                "sessions in its windows"
            )
        elif switch.kind == "process":
            yield f"{switch.name}, in its windows: {switch.on}"
        elif switch.setting:
            so = "so" if switch.was_on else "not so"
            shown = f" ({switch.off_value})" if switch.off_value else ""
            yield (
                f"{switch.name}: {switch.setting} = {switch.value}, which is {so} now{shown}, and "
                f"will be {so} again afterwards"
            )
    if left_on := [switch for switch in request.switches if switch.is_left_on]:
        yield (
            f"afterwards on again: {_names(left_on)}. Until then what it watches has gaps, and "
            "alerts may fire"
        )
    logging = [one for one in request.switches if one.setting.startswith(("log_", "pgaudit."))]
    if logging:
        yield (
            f"while {_names(logging)} is on, pgtare's own statements go to the log as well, "
            "often more of them than of the application's: what the server writes for them is in "
            "the figure"
        )
    yield from plan.notes
    for switch in request.switches:
        if switch.kind == "commands":
            yield f"{switch.name} on: {switch.on}\n{switch.name} off: {switch.off}"
    directory = restore_file.working_directory()
    if by_hand := restore_file.by_hand(request.switches, before, directory):
        yield "\n".join(["if everything fails, this puts it back:", *by_hand])


def _names(switches: Sequence[Switch]) -> str:
    return ", ".join(switch.name for switch in switches)


def _pinned(dsn: str, control: psycopg.Connection[Any]) -> str:
    """The same connection string, to this server alone, whatever it is by then."""
    return make_conninfo(dsn, **chosen_host.reached(control), target_session_attrs="any")


def _put_back_left_over(dsn: str, control: psycopg.Connection[Any], stages: Stages) -> list[int]:
    """Put back what a weighing that was killed has left, its guardian with it.

    Returns the sessions that did so: the server may show them a little longer.
    """
    sessions = []
    server = configuration.identity(control)
    for file in restore_file.left_over(server):
        if not configuration.is_same(file.server, server):
            stages.say(
                f"a weighing that was killed has left {file.path}. It was of a copy of this server "
                "or of this one, before it was restarted or its files got another owner: if it was "
                "this one, do what the file says; then remove the file"
            )
            continue
        left = [
            (switch, before, time.time() - changed)
            for switch, before, changed in zip(
                file.switches, file.before, file.changed, strict=True
            )
            if changed is not None
        ]
        if not left:
            file.remove()
            continue
        switches, befores, ages_s = zip(*left, strict=True)
        by_hand = restore_file.by_hand(switches, befores, file.directory)
        if not all(_is_ours(control, switch, age_s) for switch, _, age_s in left):
            raise MeasurementError(
                "\n".join(
                    [
                        f"a weighing that was killed changed {_names(switches)} "
                        f"{numbers.seconds(max(ages_s))} ago, and somebody may have decided about "
                        f"it since: do this if it is not as you want it, then remove {file.path}:",
                        *by_hand,
                    ]
                )
            )
        changer = Changer(
            dsn,
            switches,
            befores,
            touched=[True for _ in left],
            note=file.running,
            directory=file.directory,
        )
        try:
            sessions.append(changer.connect().info.backend_pid)
            check_alone(changer.connect(), sessions)
            stages.say("\n".join(["first, what a weighing that was killed has left:", *by_hand]))
            if not configuration.is_same(file.server, configuration.identity(changer.connect())):
                raise MeasurementError("another server answers at this address")
            is_done = True
            for done in changer.put_back():
                stages.say(f"left by a weighing that was killed: {done.text}")
                is_done = is_done and done.as_before
        except UsageError:
            raise
        except Exception as ex:
            if printed := printed_by(ex):
                stages.say(f"it printed: {printed}")
            raise MeasurementError(
                f"what a killed weighing has left cannot be put back ({ex}): do it by hand, as "
                f"{file.path} says, and remove that file"
            ) from ex
        finally:
            changer.close()
        if not is_done:
            stages.say(f"{file.path} is kept: if all is as you want it, remove it")
        elif not configuration.has_same_start(file.server, server):
            stages.say(
                f"{file.path} is kept: the server was started since, and may be a copy of the one "
                "that was changed. If there is no other one, remove it; else do what it says there"
            )
        else:
            file.remove()
    return sessions


def _refuse_left_over(control: psycopg.Connection[Any]) -> None:
    """Raise UsageError if what a killed weighing has left would be taken for the server's own."""
    server = configuration.identity(control)
    for file in restore_file.left_over(server):
        if configuration.is_same(file.server, server) and any(file.changed):
            raise UsageError(
                f"a weighing that was killed has left {file.path}, so what is there now is not "
                "what a weighing would begin with: it puts that back first. Begin one without "
                "--dry-run, or do what the file says and remove it"
            )


def _is_ours(control: psycopg.Connection[Any], switch: Switch, changed_s: float) -> bool:
    """Whether what was changed so many seconds ago is clearly not what somebody decided since."""
    return 0 <= changed_s <= _CERTAIN_S and (
        switch.kind != "setting"
        or configuration.is_ours(control, switch.setting, switch.value, changed_s)
    )


@contextmanager
def _guard(
    control: psycopg.Connection[Any],
    dsn: str,
    plan: Plan,
    before: Sequence[Before | None],
    stages: Stages,
    trouble: list[str],
) -> Iterator[SwitchGuard]:
    """trouble: what is not as it was at the end."""
    switches = plan.request.switches
    file = restore_file.make(configuration.identity(control), switches, before)
    try:
        guard = SwitchGuard(dsn, file, plan.request.window_s, stages.say)
    except BaseException:
        file.remove()  # nothing has been changed
        raise
    try:
        yield guard
    finally:
        try:
            done = guard.put_back()
        except PgtareError as ex:
            trouble.append(str(ex))
        else:
            for one in done:
                stages.say(one.text)
            trouble += [one.text for one in done if not one.as_before]
