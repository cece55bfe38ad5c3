"""One trial on a server: what is read there before and after it, and the result of all that."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from pgtare.errors import MeasurementError
from pgtare.estimate.trial.analysis import analyse, live
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations, finished
from pgtare.estimate.trial.results import Live
from pgtare.weighing.instruments.counters import Snapshot, snapshot
from pgtare.weighing.instruments.proof import prove, proven
from pgtare.weighing.trials import ModuleInfo, Trials
from pgtare.weighing.weigh import participation, recording, result
from pgtare.weighing.weigh import plan as planning
from pgtare.weighing.weigh.limit import Ended, with_limits
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.schema import WeighResult

#: Sessions report most counters of activity with up to a second's delay.
_SETTLE_S = 1.2


@dataclass(frozen=True)
class Weighing:
    """A result with the observations and the design it came from."""

    result: WeighResult
    observations: Observations
    design: Design


class Measurement:
    """A trial of a plan, from the look before it to the result; for `with` of the caller's making.

    Made just before the trial begins: it reads the server. Then `end`, once, as soon as the trial
    has been recorded, and `weighing`, which needs no server. kind: what to call the server.
    """

    def __init__(self, module: Trials, info: ModuleInfo, plan: WeighPlan, kind: str) -> None:
        self.module, self.plan = module, plan
        self._server = result.describe_server(module.conn, info, kind, plan.design.setting_names)
        self._before = snapshot(module.conn, plan.request.chosen)
        self._counted_before = participation.count(module)
        #: How it went; sessions that took no part; the share that did, in percent; counters.
        self._ended: tuple[recording.TrialRecording, int, float | None, Snapshot] | None = None

    def end(
        self, got: recording.TrialRecording, stop_load: Callable[[], None] = lambda: None
    ) -> None:
        """Read the server once more, and stop the load. Raises MeasurementError without data.

        A server that goes away by now takes nothing of what was measured.
        """
        ended_s = time.monotonic()
        plan, chosen = self.plan, self.plan.request.chosen
        outside = 0
        with contextlib.suppress(psycopg.Error):
            if got.status is not None:
                there = len(planning.sessions_there(self.module.conn, plan.population))
                outside = max(0, there - got.status.sessions_now)
        stop_load()
        if not len(finished(got.observations)):
            raise MeasurementError(_nothing(plan, got, outside))
        took_part_pct = None
        with contextlib.suppress(psycopg.Error):
            if got.status is not None:
                time.sleep(_SETTLE_S)
                counted = participation.count(self.module)
                if plan.request.load is not None:  # it has stopped, and nothing was added since
                    counted = replace(counted, at_s=ended_s)
                took_part_pct = participation.share_pct(
                    self._counted_before, counted, got.status, got.duration_s
                )
        self._ended = got, outside, took_part_pct, snapshot(self.module.conn, chosen)

    def weighing(
        self,
        load: dict[str, Any],
        command: list[str],
        *,
        warnings: tuple[str, ...] = (),
        steal_pct: float | None = None,
        decided: Live | None = None,
    ) -> Weighing:
        """Estimate, and make the result.

        load: its description. decided: the look by which a limit was decided.
        """
        assert self._ended is not None
        got, outside, took_part_pct, counters = self._ended
        plan = replace(self.plan, warnings=(*self.plan.warnings, *warnings))
        design, request = plan.design, plan.request
        proofs = prove(design.arms, request.chosen, got.observations, self._before, counters)
        estimate = analyse(
            got.observations,
            design,
            margin=request.margin,
            proven=proven(design.arms, proofs),
            peeked=got.stopped_by == "interrupt" or request.decides,
            ended_early=got.trouble,
            decides=request.decides,
        )
        made = result.build(
            plan,
            got,
            estimate,
            proofs,
            load,
            self._server,
            outside,
            took_part_pct,
            command,
            steal_pct=steal_pct,
        )
        if request.decides:
            last, ended = live(got.observations, design), None
            if decided is not None:
                ended = Ended(decided, live(finished(got.observations), design))
            made = with_limits(made, request, last, ended)
        return Weighing(made, got.observations, design)


def _nothing(plan: WeighPlan, got: recording.TrialRecording, outside: int) -> str:
    if got.trouble:
        return f"nothing was measured: {got.trouble}"
    status = got.status
    if status and status.sessions_lacking_settings:
        return (
            "no session could take part: each lacks a setting of the trial; load the instrument's "
            "library in shared_preload_libraries, or reconnect"
        )
    if plan.population.participation < 1 and plan.sessions_there:
        return (
            f"{_nobody(plan.sessions_there)}, as each is drawn with a chance of "
            f"{100 * plan.population.participation:.0f} %: raise --participation"
        )
    if outside or plan.sessions_there:
        return (
            f"{_nobody(max(outside, plan.sessions_there))}: a session takes part once it has "
            "finished a transaction; if it connected before pgtare was loaded, reconnect it"
        )
    return (
        f"nothing was measured: no session of database {plan.population.database} with "
        f"application_name {plan.population.application} ran a transaction"
    )


def _nobody(sessions: int) -> str:
    return (
        "the only session did not take part"
        if sessions == 1
        else f"none of {sessions} sessions took part"
    )
