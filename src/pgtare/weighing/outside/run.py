"""One weighing from outside, from the first look at the server to the result."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import psycopg
from rich.console import Console

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial.analysis import analyse, live
from pgtare.estimate.trial.bursts import DISTURBED_MANY, DISTURBED_SOME, disturbed_pct
from pgtare.estimate.trial.design import BATCHES, LEAST_BATCHES, Design, Runs, block_layout
from pgtare.estimate.trial.results import TrialEstimate
from pgtare.kit import machine, numbers
from pgtare.postgres import own_session, pooler
from pgtare.weighing.instruments.counters import Snapshot, snapshot
from pgtare.weighing.instruments.proof import prove_driven, proven, refuted_by_errors
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.instruments.requirements import read_facts
from pgtare.weighing.outside import log_growth, servers, settings_probe
from pgtare.weighing.outside.loops import BLOCKS_OF_A_SESSION, MOST_TPS, Loops, Seat
from pgtare.weighing.outside.recording import OutsideRecording, record, unwatched, warm_up
from pgtare.weighing.outside.servers import FoundServer, ServerSessions
from pgtare.weighing.outside.session import (
    READ_ONLY_SETTING,
    control_session,
    driven_session,
    end,
    require_follows,
)
from pgtare.weighing.outside.transactions import (
    LOOK_UP,
    LookUps,
    ScriptTransactions,
    Source,
    Weighted,
)
from pgtare.weighing.outside.wire import Wire
from pgtare.weighing.weigh import outside_schema, schema
from pgtare.weighing.weigh import plan as planning
from pgtare.weighing.weigh.limit import reason_to_stop, with_limits
from pgtare.weighing.weigh.measurement import Weighing
from pgtare.weighing.weigh.progress import Display, Stages
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.result import describe_server, made
from pgtare.weighing.weigh.schema import StoppedBy
from pgtare.weighing.weigh.target import open_target

#: A session on each server, by its name; "" if there is only one.
Controls = Mapping[str, psycopg.Connection[Any]]


@dataclass(frozen=True)
class Plan:
    """What is decided before anything is measured.

    request: without the instruments that cannot be weighed here; left_out: these, and why.
    servers: those that are compared, if any. notes: what else is said beforehand.
    """

    request: Request
    design: Design
    left_out: Mapping[str, str]
    servers: tuple[FoundServer, ...] = ()
    notes: tuple[str, ...] = ()


def chosen_way(request: Request) -> Request:
    """The request, from outside if the server it names has no module to weigh its own traffic.

    Raises UsageError for options that need the module, MeasurementError if there is no server.
    """
    driven = request.sql is not None or request.writes
    if request.servers or request.switches:
        return replace(request, outside=True)
    if request.dsn is None and driven and not request.outside:
        raise UsageError(
            "--sql and --writes are for a weighing from outside: name the server with --dsn"
        )
    if request.outside or request.dsn is None:
        return request
    if not driven:
        if request.load is not None and not request.load.scripts:
            return request  # a database of our own there, which needs the module
        with own_session.answered(), own_session.connect(request.dsn) as conn:
            ((has_module,),) = pooler.rows(conn, _HAS_MODULE)
        # what only the module can do is asked for: then it is what is missing
        needs_module = request.inject_ns or request.unit != "run" or request.participation < 1
        if has_module or needs_module:
            return request
    return replace(request, outside=True)


_HAS_MODULE = """
SELECT pg_catalog.to_regnamespace('pgtare') IS NOT NULL
    OR pg_catalog.current_setting('pgtare.enabled', true) IS NOT NULL
"""


def weigh(
    request: Request,
    command: list[str],
    console: Console,
    confirm: Callable[[str], bool] = lambda question: False,
) -> Weighing:
    """Weigh from outside. console: for progress. Raises UsageError, MeasurementError.

    What Ctrl-C or a server that goes away left is returned, marked partial.
    """
    if request.servers:
        return _weigh(request, None, "running servers", command, console)
    if request.dsn is not None:
        return _weigh(request, request.dsn, "running server", command, console)
    with open_target(request, Stages(console).say, confirm) as target:
        return _weigh(request, target.dsn, target.kind, command, console)


def _weigh(
    request: Request, dsn: str | None, kind: str, command: list[str], console: Console
) -> Weighing:
    """dsn: of the server; None if several are compared."""
    stages = Stages(console)
    try:
        with _planned(request, dsn) as (controls, plan):
            for line in describe(plan):
                stages.say(line)
            opened = _drivers(controls, plan) if dsn is None else driver(controls[""], dsn, plan)
            with opened as loops:
                return OutsideRun(plan, controls, loops, kind, command, console).run()
    except psycopg.Error as ex:
        what = "a server refused" if dsn is None else "the session was lost"
        raise MeasurementError(f"{what}: {own_session.first_line(ex)}") from ex


@contextlib.contextmanager
def _planned(request: Request, dsn: str | None) -> Iterator[tuple[Controls, Plan]]:
    """A session on each server, and the plan."""
    with contextlib.ExitStack() as stack:
        if dsn is not None:
            control = stack.enter_context(control_session(dsn))
            yield {"": control}, make_plan(control, request)
            return
        controls = {}
        for server in request.servers:
            with servers.at(server):
                controls[server.name] = stack.enter_context(control_session(server.dsn))
        yield controls, make_comparison(controls, request)


def make_comparison(controls: Controls, request: Request) -> Plan:
    """What tells the servers apart, and the design."""
    each = list(controls.values())
    found = tuple(map(servers.look, request.servers, each))
    design = servers.design_of(request)
    by_arm = [each[number] for number in servers.by_arm(len(each))]
    return Plan(request, design, {}, found, _notes(request, design, by_arm, controls))


def _notes(
    request: Request, design: Design, by_arm: Sequence[psycopg.Connection[Any]], controls: Controls
) -> tuple[str, ...]:
    """What else is said beforehand. by_arm: a session on the server of each arm."""
    values = [
        settings_probe.in_force(conn, arm.settings)
        for conn, arm in zip(by_arm, design.arms, strict=True)
    ]
    logging = log_growth.described(
        design, values, _longest(request), request.duration_s, writes=request.writes
    )
    return (*logging, *unwatched(controls))


@contextlib.contextmanager
def _drivers(controls: Controls, plan: Plan) -> Iterator[Loops]:
    """Sessions on each server, one for each arm."""
    request, each = plan.request, list(controls.values())
    rng = random.Random(request.seed)
    source = source_of(each, plan, rng)
    settings = {} if request.writes else {READ_ONLY_SETTING: "on"}
    sessions = ServerSessions(request.servers, each, source, request.writes, rng)
    with contextlib.closing(sessions):
        began = time.monotonic()
        first = sessions.first()
        yield Loops(
            first,
            source,
            plan.design,
            [settings for _ in plan.design.arms],
            rng,
            anew=sessions.anew,
            anew_s=servers.epoch_s(request),
            connecting_s=time.monotonic() - began,
        )


def dry_run(request: Request) -> list[str]:
    """What would be done; looks at the servers, changes nothing there."""
    if request.dsn is None and not request.servers:
        raise UsageError("--dry-run from outside looks at a server: name it with --dsn")
    with _planned(request, request.dsn) as (controls, plan):
        source_of(list(controls.values()), plan, random.Random(request.seed))
        return [*describe(plan), *([] if plan.servers else planning.arms_lines(plan.design))]


def make_plan(control: psycopg.Connection[Any], request: Request) -> Plan:
    """What this role can weigh here. Raises UsageError if that is nothing."""
    facts = read_facts(control)
    chosen, left_out = [], {}
    for wanted in request.chosen:
        own_base = wanted if request.base == "off" else replace(wanted, base={})
        choice, lacks = settings_probe.weighable(control, own_base, facts)
        if lacks:
            left_out[choice.name] = "; ".join(str(lack) for lack in lacks)
        else:
            chosen.append(choice)
    lines = "".join(f"\n  {line}" for line in _said(left_out))
    if not chosen:
        raise UsageError(f"nothing of this can be weighed from outside:{lines}")
    if left_out and request.decides:
        raise UsageError(f"limits are for instruments that can all be weighed:{lines}")
    asked = replace(request, chosen=tuple(chosen))
    planning.refuse_unsafe(asked)
    arms = planning.arms_of(asked)
    design = Design(arms, block_layout(len(arms)), request.seed, driven=True)
    own = settings_probe.own_values(control, design.setting_names)
    if idle := settings_probe.idle(control, arms, own):
        raise UsageError("\n".join(idle))
    notes = _notes(asked, design, [control] * len(arms), {"": control})
    return Plan(asked, design, left_out, notes=notes)


def _said(left_out: Mapping[str, str]) -> list[str]:
    return [f"{name}: {why}" for name, why in left_out.items()]


def describe(plan: Plan) -> Iterator[str]:
    """What will be done, in words, before it is."""
    if plan.servers:
        yield from _of_servers(plan)
    else:
        yield (
            "weighing from outside: settings are switched in one session of our own, which runs "
            f"{name_of_load(plan.request)}; your application's sessions are not touched"
        )
        yield (
            "the server works for it at most a quarter of the time; a parallel plan on several "
            "processors"
        )
        if plan.request.writes:
            most = f"up to {MOST_TPS:,} transactions a second"
            yield f"they may write, {most}: what they do stays done"
    yield from plan.notes
    yield from (f"left out: {line}" for line in _said(plan.left_out))


def _of_servers(plan: Plan) -> Iterator[str]:
    first, *others = [f"{server.name} (PostgreSQL {server.version})" for server in plan.servers]
    yield (
        f"comparing {', '.join(others)} with {first}: sessions of our own on each in turn, "
        f"which run {name_of_load(plan.request)}; your application's sessions are not touched"
    )
    yield (
        "the servers together work for it at most a quarter of the time; a parallel plan on "
        "several processors"
    )
    yield (
        f"sessions count in {BATCHES} batches of the time, and {LEAST_BATCHES} are the fewest for "
        f"an answer: {numbers.seconds(LEAST_BATCHES * plan.design.batch_s)}"
    )
    for one, other in itertools.combinations(plan.servers, 2):
        if other.is_the_same(one):
            yield f"{other.name} and {one.name} are the same server"
    epoch_s = servers.epoch_s(plan.request)
    if epoch_s * LEAST_BATCHES > plan.request.duration_s:
        yield (
            f"too short for an answer: {LEAST_BATCHES} sessions are needed, of "
            f"{numbers.seconds(epoch_s)} each (--duration)"
        )


def name_of_load(request: Request) -> str:
    if request.sql is not None:
        return "the statements of --sql"
    if request.load is not None and request.load.scripts:
        return ", ".join(script.path.name for script in request.load.scripts)
    return LookUps.name


def source_of(
    controls: Sequence[psycopg.Connection[Any]], plan: Plan, rng: random.Random
) -> Source:
    """The transactions to be run. Raises UsageError for a script that cannot be."""
    request = plan.request
    weighed = {*plan.design.setting_names, *(switch.setting for switch in request.switches)}

    def of(text: str, name: str) -> Source:
        kinds = {"prepared": request.prepared, "writes": request.writes}
        return ScriptTransactions(text, name, rng, **kinds, weighed=weighed - {""})

    if request.sql is not None:
        return of(request.sql, "--sql")
    scripts = request.load.scripts if request.load is not None else ()
    if not scripts:
        return LookUps.of(controls, rng)
    sources = [of(_text(script.path), script.path.name) for script in scripts]
    return Weighted(sources, [script.weight for script in scripts], rng)


def _longest(request: Request) -> str:
    """The longest text that a transaction may have."""
    if request.sql is not None:
        return request.sql
    scripts = request.load.scripts if request.load is not None else ()
    return max((_text(script.path) for script in scripts), key=len, default=LOOK_UP)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as ex:
        raise UsageError(f"cannot read the script {path} as UTF-8 text: {ex}") from ex


@contextlib.contextmanager
def driver(control: psycopg.Connection[Any], dsn: str, plan: Plan) -> Iterator[Loops]:
    """One session in which all arms run. Raises UsageError if the server refuses a statement."""
    request = plan.request
    rng = random.Random(request.seed)
    source = source_of([control], plan, rng)
    weighed = {
        one.setting: f"{'--reload' if one.kind == 'setting' else '--switch'} {one.name}"
        for one in request.switches
        if one.setting
    }
    with driven_session(dsn, control, writes=request.writes, weighed=weighed) as conn:
        for name, switch in weighed.items():
            require_follows(conn, switch, name)
        own = settings_probe.own_values(conn, plan.design.setting_names)
        wire = Wire(conn, source.statements)
        answers = wire.prepare()
        if answers.error:
            raise UsageError(f"the server refuses a statement of {source.name}: {answers.error}")
        settings = settings_probe.filled(plan.design.arms, own)
        if not request.writes:
            settings = [{READ_ONLY_SETTING: "on", **each} for each in settings]
        try:
            seat = Seat(wire)
            switched = [switch.setting for switch in request.switches]
            anew = settings_probe.decides_plans(control, request.chosen, switched)
            yield Loops([seat] * len(settings), source, plan.design, settings, rng, plan_anew=anew)
        finally:
            if wire.pending:
                end(control, conn)


class Course(Protocol):
    """What leads a trial whose arms are switched for the whole server."""

    @property
    def seconds(self) -> float:
        """How long it takes."""

    def try_out(self, say: Callable[[str], None], pair_s: float) -> None:
        """Find out whether everything can be switched. pair_s: what two blocks of runs take."""

    def advance(self) -> bool:
        """Switch if it is time for it; False at the end."""

    def end(self) -> None:
        """Nothing more is measured."""

    def proofs(self, ran: Sequence[int]) -> list[Proof | None]:
        """The proof of each arm; ran: transactions of each arm."""

    def described(self, rows: npt.NDArray[Any]) -> outside_schema.WindowsInfo:
        """What is known when it is over. rows: of dtype RUN."""


@dataclass
class OutsideRun:
    """One trial, from the warm-up to the result."""

    plan: Plan
    controls: Controls
    loops: Loops
    kind: str
    command: list[str]
    console: Console
    course: Course | None = None
    _said_too_short: bool = False

    def __post_init__(self) -> None:
        self.request, self.stages = self.plan.request, Stages(self.console)
        self.control = next(iter(self.controls.values()))

    def run(self) -> Weighing:
        """Warm up, measure, estimate. Raises UsageError, MeasurementError."""
        seconds = self.request.duration_s
        self.stages.say("warming up")
        pair_s = warm_up(self.loops, seconds, self._say_if_too_short)
        if self.course is not None:
            self.course.try_out(self.stages.say, pair_s)
            seconds = self.course.seconds
        lengths = self.loops.lengths
        runs = Runs(lengths.shortest, lengths.longest)
        self.plan = replace(self.plan, design=replace(self.plan.design, runs=runs))
        self._say_if_too_short(pair_s)
        if self.plan.servers:
            # sessions are what counts, and each is to hold a few blocks
            self.loops.anew_s = max(self.loops.anew_s, BLOCKS_OF_A_SESSION * pair_s)
        design, names = self.plan.design, self.plan.design.setting_names
        server = describe_server(self.control, None, self.kind, names)
        before = snapshot(self.control, self.request.chosen)
        decides = self.request.decides
        with Display(self.console, seconds) as display:

            def look(so_far_s: float, rows: Any) -> StoppedBy | None:
                now = live(rows, design, limits=decides)
                if now.blocks >= design.least_blocks // 2:  # of fewer they are no use to anybody
                    display.look(now)
                held_up = disturbed_pct(rows, design) > DISTURBED_SOME
                return reason_to_stop(self.request, now, so_far_s, held_up=held_up)

            got = record(
                self.loops,
                self.controls,
                seconds if self.course is None else math.inf,
                look=look,
                tick=display.count,
                advance=self.course.advance if self.course is not None else lambda: True,
            )
        if self.course is not None:
            self.course.end()
        if got.error:
            self.stages.say(f"the server's latest error: {got.error}")
        if not len(got.rows):
            if got.stopped_by == "interrupt":
                raise KeyboardInterrupt
            raise MeasurementError(f"nothing was measured: {got.trouble or 'it ended too early'}")
        after = snapshot(self.control, self.request.chosen)
        self.stages.say(f"estimating from {got.transactions:,} transactions")
        proofs = self._proofs(got, before, after)
        estimate = analyse(
            got.rows,
            design,
            margin=self.request.margin,
            proven=proven(design.arms, proofs),
            peeked=got.stopped_by == "interrupt" or decides,
            ended_early=got.trouble,
            decides=decides,
        )
        result = self._result(got, estimate, proofs, server)
        if decides:
            result = with_limits(result, self.request, live(got.rows, design))
        return Weighing(result, got.rows, design)

    def _say_if_too_short(self, pair_s: float) -> None:
        """Say so once. pair_s: what two blocks take, one of each loop."""
        if self.course is not None or self._said_too_short:
            return
        loops, each_s = self.loops, pair_s
        why, what = "transactions are slow", "blocks of each kind"
        if self.plan.servers:
            anew_s = max(loops.anew_s, BLOCKS_OF_A_SESSION * pair_s)
            session_s = max(loops.session_s, anew_s)
            each_s, what = session_s + loops.connect_s, "sessions"
            if session_s > anew_s:
                why = f"connecting takes {numbers.seconds(loops.connect_s)} each time"
            elif anew_s == servers.epoch_s(self.request):
                return  # it was said before
        least = self.plan.design.least_blocks
        if each_s * least > self.request.duration_s:
            self.stages.say(
                f"{why}: {least} {what}, the fewest for an answer, take about "
                f"{numbers.seconds(each_s * least)} (--duration)"
            )
            self._said_too_short = True

    def _proofs(
        self, got: OutsideRecording, before: Snapshot, after: Snapshot
    ) -> list[Proof | None]:
        ran = np.bincount(got.rows["arm"], got.rows["transactions"], len(self.plan.design.arms))
        if self.course is not None:
            return self.course.proofs([int(n) for n in ran])
        if self.plan.servers:
            found = servers.proofs(self.plan.design, self.plan.servers, [int(n) for n in ran])
            return refuted_by_errors(self.plan.design, found, got.failed_arms)
        back: list[Mapping[str, str] | None] = []
        for arm, settings in zip(self.plan.design.arms, self.loops.settings, strict=True):
            try:
                back.append(settings_probe.read_back(self.control, arm, settings))
            except psycopg.Error:
                back.append(None)
        found = prove_driven(
            self.plan.design.arms, self.request.chosen, [int(n) for n in ran], back, before, after
        )
        return refuted_by_errors(self.plan.design, found, got.failed_arms)

    def _result(
        self,
        got: OutsideRecording,
        estimate: TrialEstimate,
        proofs: Sequence[Proof | None],
        server: dict[str, Any],
    ) -> schema.WeighResult:
        outside = outside_schema.OutsideInfo(
            dropped=self.loops.lengths.dropped,
            pause_us=schema.number(float(np.median(self.loops.pauses_us or [math.nan]))),
            waiting_us=schema.number(estimate.waiting_us),
            disturbed_pct=schema.number(estimate.disturbed_pct),
            failed_blocks=got.failed_blocks,
            server_busy_pct=100 * got.busy_s / max(got.duration_s, 1e-9),
            left_out=dict(self.plan.left_out),
            servers=servers.infos(self.plan.servers),
            session_s=self.loops.session_s if self.plan.servers else None,
            connect_s=self.loops.connect_s if self.plan.servers else None,
            windows=self.course.described(got.rows) if self.course is not None else None,
        )
        return made(
            estimate,
            self.plan.design,
            proofs,
            got.stopped_by,
            {
                "duration_s": got.duration_s,
                "planned_s": self.request.duration_s,
                "sessions": 1,
                "sessions_outside": 0,
                "participation": None,
                "lost": 0,
                "outside": outside,
            },
            command=self.command,
            load={"kind": "outside", "script": name_of_load(self.request), "clients": 1},
            server=server,
            machine=machine.describe(),
            warnings=[
                *_warnings(got, estimate, servers=bool(self.request.servers)),
                *(f"Left out: {line}." for line in _said(self.plan.left_out)),
            ],
        )


def _warnings(got: OutsideRecording, estimate: TrialEstimate, *, servers: bool) -> Iterator[str]:
    if got.trouble:
        yield f"It ended early: {got.trouble}. No verdict is drawn from what was measured before."
    if got.failed_blocks:
        yield (
            f"{got.failed_blocks} of {numbers.counted(got.blocks, 'block')} ended in an error, and "
            "were left out whole."
        )
    disturbed = estimate.disturbed_pct
    if disturbed is not None and disturbed > DISTURBED_SOME:
        whose, what, how = "the base's", "costs", "high"
        if servers:
            whose, what, how = "one server's", "differences", "wrong"
        none = "" if disturbed <= DISTURBED_MANY else "; nothing is called free of cost"
        yield (
            f"{disturbed:.0f} % of {whose} bursts took much longer than usual: {what} may read "
            f"{how}{none}. Weigh again when the server has less to do; if the script's own "
            "transactions differ so much, weigh the slow ones apart."
        )
