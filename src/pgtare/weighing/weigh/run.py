"""One weighing from end to end: server, load, trial, estimate, proof, result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from rich.console import Console

from pgtare.estimate.trial.analysis import live
from pgtare.estimate.trial.observations import Observations, finished
from pgtare.estimate.trial.results import Live
from pgtare.kit.numbers import counted
from pgtare.kit.window import Window
from pgtare.postgres import own_session, pooler
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench, find_saturation
from pgtare.weighing import trials
from pgtare.weighing.trials import ModuleInfo, Status, Trials
from pgtare.weighing.weigh import plan as planning
from pgtare.weighing.weigh import recording
from pgtare.weighing.weigh.limit import reason_to_stop
from pgtare.weighing.weigh.measurement import Measurement, Weighing
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.progress import Display, Stages
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.schema import StoppedBy
from pgtare.weighing.weigh.target import (
    PURPOSE,
    WeighTarget,
    needs_of,
    open_target,
    require_installed,
)

#: The load runs this long before the trial: caches fill, connections settle.
WARM_UP_S = 2.0
#: A client that hangs, or whose network is cut, leaves no trial behind: the server may notice after
#: hours only.
_LEASE = recording.Lease(seconds=20.0, every_s=4.0)
#: Above this share of waiting for a processor, service times say more than what was done.
_WAITING = 0.05


#: Something that runs while the trial does, on the server of this session.
DuringTrial = Callable[["psycopg.Connection[Any]"], contextlib.AbstractContextManager[None]]


def alone(conn: psycopg.Connection[Any]) -> contextlib.AbstractContextManager[None]:
    """Nothing else runs during the trial."""
    return contextlib.nullcontext()


def weigh(
    request: Request,
    command: list[str],
    console: Console,
    confirm: Callable[[str], bool] = lambda question: False,
    during: DuringTrial = alone,
) -> Weighing:
    """Weigh. console: for progress. Raises UsageError and MeasurementError.

    What Ctrl-C or a server that goes away left is returned, marked partial.
    """
    stages = Stages(console)
    with own_session.answered(), open_target(request, stages.say, confirm) as target:
        return _Run(request, target, command, console, stages, during).run()


def dry_run(request: Request) -> list[str]:
    """The plan; looks at the server, changes nothing there."""
    design = planning.design_of(request)
    plan = WeighPlan(request, design, trials.Population(None), 0, ())
    if request.dsn is None:
        return planning.describe(plan, None)
    with own_session.connect(request.dsn) as conn:
        pooler.require_one_session(conn, request.dsn, PURPOSE)
        if request.load is None or request.load.scripts:
            Trials(conn).require_module(*needs_of(request.chosen))
            planning.check_server(conn, request)
            planning.try_settings(conn, design.arms)
            plan = planning.make_plan(conn, request)
        else:
            require_installed(conn, request)
        return planning.describe(plan, planning.transaction_rate(conn))


@dataclass
class _Run:
    request: Request
    target: WeighTarget
    command: list[str]
    console: Console
    stages: Stages
    during: DuringTrial
    saturation: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Weighing:
        with own_session.connect(
            self.target.dsn, pooler.Connection, **own_session.NOTICES_VANISHED
        ) as conn:
            if not pooler.is_pooled(conn):  # it waits while a load warms up or is measured
                conn.execute("SET idle_session_timeout = 0")
            module = Trials(conn)
            info = module.require_module(*needs_of(self.request.chosen))
            found = _previous_trial(module.status())
            planning.check_server(conn, self.request, self.target.provides)
            planning.try_settings(conn, planning.arms_of(self.request))
            with self._load() as load:
                plan = planning.make_plan(
                    conn, self.request, load.application_name if load else None
                )
                plan = replace(plan, warnings=(*plan.warnings, *found))
                if load is None:
                    there = plan.sessions_there
                    self.stages.say(
                        f"weighing on database {plan.population.database}, where {there} "
                        f"{'session that fits is' if there == 1 else 'sessions that fit are'} "
                        "connected"
                    )
                if plan.too_short:
                    self.stages.say(plan.too_short)
                return self._measure(module, info, plan, load)

    @contextlib.contextmanager
    def _load(self) -> Iterator[PgbenchLoad | None]:
        spec = self.request.load
        if spec is None:
            yield None
            return
        pgbench = find_pgbench(self.target.binaries)
        spec = self._with_headroom(spec)
        with PgbenchLoad(pgbench, self.target.dsn, spec) as load:
            self.stages.say(f"warming up with {_name(spec)}, {counted(spec.clients, 'client')}")
            load.wait_ready()
            time.sleep(WARM_UP_S)
            load.check()
            yield load

    def _with_headroom(self, spec: LoadSpec) -> LoadSpec:
        if self.request.headroom is None:
            return spec
        self.stages.say("finding the saturation rate")
        saturation = find_saturation(find_pgbench(self.target.binaries), self.target.dsn, spec)
        self.saturation = saturation.describe()
        return replace(spec, rate=saturation.rate(self.request.headroom))

    def _measure(
        self, module: Trials, info: ModuleInfo, plan: WeighPlan, load: PgbenchLoad | None
    ) -> Weighing:
        request = self.request
        measurement = Measurement(module, info, plan, self.target.kind)
        # the sessions' processes, if the server is known to be on this machine
        ours = request.dsn is None
        pids = planning.sessions_there(module.conn, plan.population) if ours else []
        with (
            self.during(module.conn),
            Display(self.console, request.duration_s, planning.nobody(plan)) as display,
            Window(pids, read=lambda: None) as window,
        ):
            decided: list[Live] = []

            def look(seconds: float, data: Observations) -> StoppedBy | None:
                now = live(data, plan.design, limits=request.decides)
                display.look(now)
                reason = reason_to_stop(request, now, seconds)
                decided[:] = [now] if reason == "decision" else []
                return reason

            got = recording.record(
                module,
                plan.design,
                plan.population,
                request.duration_s,
                cpu=request.cpu,
                load=load,
                look=look,
                tick=display.count,
                lease=_LEASE,
            )
        description = self._describe_load(load)
        measurement.end(got, load.stop if load is not None else lambda: None)
        self.stages.say(f"estimating from {len(finished(got.observations)):,} transactions")
        return measurement.weighing(
            description,
            self.command,
            warnings=_waiting(window.run_delay_ns),
            steal_pct=window.steal_pct,
            decided=decided[0] if decided else None,
        )

    def _describe_load(self, load: PgbenchLoad | None) -> dict[str, Any]:
        if load is None:
            return {"kind": "none", "application": self.request.application}
        description = load.describe()
        if self.request.headroom is not None:
            description["headroom"] = {"share": self.request.headroom, **self.saturation}
        return description


def _name(spec: LoadSpec) -> str:
    return ", ".join(s.path.name for s in spec.scripts) if spec.scripts else spec.builtin


def _previous_trial(status: Status) -> list[str]:
    if status.end_reason in ("owner gone", "lease expired"):
        return [
            f"The trial before this one, begun {status.started:%Y-%m-%d %H:%M:%S %Z}, lost its "
            "client and was ended by the server; its sessions got their settings back."
        ]
    return []


def _waiting(run_delay_ns: tuple[int, int]) -> tuple[str, ...]:
    ran, waited = run_delay_ns
    if ran <= 0 or waited <= _WAITING * (ran + waited):
        return ()
    return (
        f"The sessions waited for a processor {100 * waited / (ran + waited):.0f} % of the time "
        "in which they could have run: what of that falls between a request and its answer is in "
        "a cost; read the CPU column too.",
    )
