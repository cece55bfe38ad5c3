"""Joins estimates, proofs and metadata to the result of a weighing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg

import pgtare
from pgtare import machine
from pgtare.design import Arm, Design
from pgtare.estimate.effective_clusters import FEW
from pgtare.estimate.inference import Estimate
from pgtare.estimate.results import ArmEstimate, TrialEstimate
from pgtare.estimate.results import Contention as ContentionEstimate
from pgtare.estimate.results import Effect as EffectEstimate
from pgtare.observations import Observations, UnitFlag
from pgtare.report import numbers, schema
from pgtare.server.recording import Recording
from pgtare.server.trials import ModuleInfo, Status
from pgtare.weigh.participation import Shares
from pgtare.weigh.plan import Plan

#: Above this share, losses, merged requests and the like are worth a sentence.
_WORTH_SAYING = 0.01
_STEAL_PCT = 2.0
#: Transactions that outlast their slice, in percent of their arm's.
_STRADDLED_PCT = 10.0
#: Settings that may hold secrets or commands never leave the server.
_PRIVATE = ("password", "conninfo", "command", "krb_", "ssl_passphrase")


def interval(e: Estimate) -> schema.Interval:
    """The estimate for the result; NaN becomes null."""
    return schema.Interval(estimate=_number(e.estimate), lo=_number(e.lo), hi=_number(e.hi))


def _number(x: float | None) -> float | None:
    return None if x is None or not math.isfinite(x) else float(x)


def _optional(e: Estimate | None) -> schema.Interval | None:
    return None if e is None else interval(e)


def _effect(e: EffectEstimate) -> schema.Effect:
    values = {f.name: _optional(getattr(e, f.name)) for f in dataclasses.fields(e)}
    return schema.Effect.model_validate(values)


def _arm(arm: ArmEstimate, design: Arm, proof: schema.Proof | None) -> schema.ArmResult:
    return schema.ArmResult(
        name=arm.name,
        role=arm.role,
        settings=design.settings,
        inject_ns=design.inject_ns,
        n=arm.n,
        excluded=arm.excluded,
        mean_us=_number(arm.mean_us),
        p50_us=_number(arm.p50_us),
        p99_us=_number(arm.p99_us),
        run_pairs=arm.run_pairs,
        aborted=arm.aborted,
        open=arm.open,
        longest_open_us=_number(arm.longest_open_us) if arm.open else None,
        threshold_us=_number(arm.threshold_us),
        effect=_effect(arm.effect) if arm.effect else None,
        outlasts=arm.outlasts,
        tail_rate_ratio=_optional(arm.tail_rate_ratio),
        p_value=_number(arm.p_value),
        p_total=_number(arm.p_total),
        p_aborted=_number(arm.p_aborted),
        p_randomisation=_number(arm.p_randomisation),
        p_adjusted=_number(arm.p_adjusted),
        p_total_adjusted=_number(arm.p_total_adjusted),
        equivalence_us=_optional(arm.equivalence_us),
        at_most_us=_number(arm.at_most_us),
        at_most_pct=_number(arm.at_most_pct),
        tail_bounded=arm.tail_bounded,
        settles_pct=_number(arm.settles_pct),
        verdict=arm.verdict,
        verdict_reason=arm.verdict_reason,
        seconds_needed=_number(arm.seconds_needed),
        proof=proof,
    )


def estimated(
    estimate: TrialEstimate, design: Design, proofs: Sequence[schema.Proof | None]
) -> dict[str, Any]:
    """The fields of a result that come from the observations alone."""
    base, carry = estimate.baseline, estimate.carry_over
    return {
        "baseline": schema.Baseline(
            n=base.n,
            **{name: _number(getattr(base, name)) for name in schema.Baseline.model_fields
               if name != "n"},
        ),
        "carry_over": schema.CarryOver(
            lags=carry.lags, switch_us=_number(carry.switch_us),
            switch_throughput_pct=_number(carry.switch_throughput_pct),
        ),
        "arms": [
            _arm(a, design.arms[i], proofs[i]) for i, a in enumerate(estimate.arms)
        ],
        "by_backend": [
            schema.ByBackend(
                backend=b.backend, pid=b.pid, n=b.n,
                body_us={name: interval(e) for name, e in b.body_us.items()},
            )
            for b in estimate.by_backend
        ],
        "contention": _contention(estimate.contention) if estimate.contention else None,
    }  # fmt: skip


def _contention(found: ContentionEstimate) -> schema.Contention:
    values: dict[str, Any] = {name: getattr(found, name) for name in schema.Contention.model_fields}
    for name, value in values.items():
        if isinstance(value, Estimate):
            values[name] = interval(value)
        elif isinstance(value, float):
            values[name] = _number(value)
    return schema.Contention(**values)


def estimated_design(estimate: TrialEstimate, design: Design) -> dict[str, Any]:
    """The fields of a result's design that come with the estimate."""
    slices = None
    if design.slices:
        slices = schema.SliceInfo(
            kinds=list(design.slices.kinds), min_us=design.slices.min_us,
            max_us=design.slices.max_us, guard_us=design.slices.guard_us,
            straddled_pct=_number(estimate.straddled_pct),
        )  # fmt: skip
    runs = None
    if design.runs:
        runs = schema.RunInfo(**vars(design.runs), transactions=estimate.in_runs)
    return {
        "slices": slices,
        "runs": runs,
        "margin_pct": estimate.margin_pct, "confidence": estimate.confidence,
        "blocks": estimate.blocks, "blocks_discarded": estimate.blocks_discarded,
        "mde_us": _number(estimate.mde_us), "mde_pct": _number(estimate.mde_pct),
    }  # fmt: skip


def build(
    plan: Plan,
    recording: Recording,
    estimate: TrialEstimate,
    proofs: Sequence[schema.Proof | None],
    load: dict[str, Any],
    server: dict[str, Any],
    outside: int,
    shares: Shares,
    command: list[str],
) -> schema.WeighResult:
    """The result, ready to be shown and written.

    proofs: by arm, as in the design. outside: sessions of the population that did not take part.
    shares: of the database's sessions and transactions that did.
    """
    status = recording.status
    return schema.WeighResult(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pgtare_version=pgtare.__version__,
        command=command,
        load=load,
        design=schema.DesignInfo(
            seed=plan.design.seed,
            unit=plan.design.unit,
            block=list(plan.design.block),
            began=status.started.isoformat() if status and status.started else None,
            duration_s=recording.duration_s,
            planned_s=plan.request.duration_s,
            **estimated_design(estimate, plan.design),
            sessions=status.sessions if status else estimate.sessions,
            sessions_outside=outside,
            participation=plan.population.participation,
            sessions_took_part_pct=shares.sessions_pct,
            transactions_took_part_pct=shares.transactions_pct,
            lost=status.lost if status else 0,
            stopped_by=recording.stopped_by,
            partial=recording.stopped_by in ("interrupt", "server"),
        ),
        server=server,
        machine={**machine.describe(), "steal_pct": recording.steal_pct},
        **estimated(estimate, plan.design, proofs),
        warnings=[
            *plan.warnings,
            *_warnings(plan, recording, outside),
            *_lasting_warnings(estimate),
            *_slice_warnings(estimate),
            *_mix_warnings(estimate),
            *_cluster_warnings(estimate),
        ],
    )


def _warnings(plan: Plan, recording: Recording, outside: int) -> list[str]:
    found = []
    if recording.trouble:
        found.append(
            f"The trial ended early: {recording.trouble}. No verdict is drawn from what was "
            "measured before."
        )
    found += _data_warnings(recording.observations)
    if recording.status:
        found += _status_warnings(plan, recording.status)
    if outside and plan.population.participation == 1.0:
        found.append(
            f"{outside} sessions that fit the population did not take part (idle since the trial "
            "began, or connected before the module was there)."
        )
    if recording.steal_pct is not None and recording.steal_pct > _STEAL_PCT:
        found.append(
            f"Other guests took {recording.steal_pct:.1f} % of this machine's processor time; "
            "intervals allow for it, but are wider."
        )
    return found


def _status_warnings(plan: Plan, status: Status) -> list[str]:
    found = []
    if status.lost:
        total = status.lost + status.observations
        found.append(
            f"{status.lost} of {total} observations were lost because they were read too slowly."
        )
    if status.sessions_no_ring:
        found.append(f"{status.sessions_no_ring} sessions found no ring and stayed outside.")
    if status.sessions_lacking_settings:
        found.append(
            f"{status.sessions_lacking_settings} sessions lack a setting of the trial (a library "
            "not loaded there) and stayed outside."
        )
    if status.negative_clock:
        found.append(f"The clock stepped back {status.negative_clock} times; look at pgtare clock.")
    for arm in status.failed_arms:
        found.append(f"Arm {plan.design.arms[arm].name}: a session refused its settings.")
    return found


def _data_warnings(data: Observations) -> list[str]:
    if not len(data):
        return []
    flags = data["flags"]
    said = {
        UnitFlag.APP_CHANGED: "were left out, each with its block, as the application changed "
        "one of the settings meanwhile (SET, SET LOCAL, set_config, or a function's SET clause)",
        UnitFlag.NO_ARRIVAL: "began in the buffer (pipelined), so that their arrival is not exact",
        UnitFlag.COPY: "held a COPY; waiting for the client's data is not counted",
        UnitFlag.ABORTED: "ended in an error",
    }
    found = []
    for flag, text in said.items():
        share = float(np.mean((flags & flag) != 0))
        if share > _WORTH_SAYING:
            found.append(f"{100 * share:.1f} % of the transactions {text}.")
    return found


def _lasting_warnings(estimate: TrialEstimate) -> list[str]:
    """For arms whose effect outlasts the next transaction; by runs where there were enough."""
    return [
        f"{arm.name}: the effect lasts longer than the next transaction {_how_long(arm.effect)}."
        for arm in estimate.arms
        if arm.outlasts and arm.effect is not None
        if arm.role != "control" and arm.verdict != "not_verified"
    ]


def _how_long(effect: EffectEstimate) -> str:
    if effect.runs_us is not None and math.isfinite(effect.runs_us.lo):
        runs, body = interval(effect.runs_us), interval(effect.body_us)
        return (
            f"({numbers.estimate(runs)} µs {numbers.bounds(runs)} by runs). That is its cost when "
            f"left on: the column cost, {numbers.estimate(body)} µs, has only what falls on the "
            "transaction itself and on the next"
        )
    lag = interval(effect.second_lag_us)
    way = "more" if effect.second_lag_us.estimate > 0 else "less"
    return (
        f"({numbers.estimate(lag)} µs {numbers.bounds(lag)} on the one after it), so leaving "
        f"it on costs {way} than stated, by about that much or more"
    )


def _slice_warnings(estimate: TrialEstimate) -> list[str]:
    share = estimate.straddled_pct
    if share is None or share <= _STRADDLED_PCT:
        return []
    return [
        f"{share:.0f} % of the transactions of an arm outlasted their slice, and weigh on the next "
        "one: lengthen the slices (--slice-ms)."
    ]


def _mix_warnings(estimate: TrialEstimate) -> list[str]:
    found = estimate.contention
    if found is None or not found.total_less_own_us.hi < 0:
        return []
    return [
        f"The total of {found.name} is below its own effect: what it slows is slow already, so its "
        "slices hold fewer of the slow transactions. The total is of transactions as they come; "
        "the effect on the transaction itself is that at the base's mix."
    ]


def _cluster_warnings(estimate: TrialEstimate) -> list[str]:
    few = [
        arm
        for arm in estimate.arms
        if arm.effective_clusters is not None and 0 < arm.effective_clusters < FEW
    ]
    if not few or estimate.clusters < FEW:
        return []
    return [
        f"{arm.name}: its estimate rests on {arm.effective_clusters:.1f} effective clusters of "
        f"{estimate.clusters}: a few sessions or moments have nearly all of the variance. The "
        "interval allows for that."
        for arm in few
    ]


def describe_server(conn: psycopg.Connection[Any], info: ModuleInfo, kind: str) -> dict[str, Any]:
    """The server's version and the settings that differ from its defaults."""
    rows = conn.execute(
        "SELECT name, setting || coalesce(' ' || unit, '') FROM pg_settings"
        " WHERE source NOT IN ('default', 'override', 'client', 'session') ORDER BY name"
    ).fetchall()
    row = conn.execute("SELECT version()").fetchone()
    return {
        "kind": kind,
        "version": str(row[0]) if row else None,
        "version_num": conn.info.server_version,
        "database": conn.info.dbname,
        "module": dataclasses.asdict(info),
        "settings": {
            str(name): value
            for name, value in rows
            if not any(word in str(name) for word in _PRIVATE)
        },
    }
