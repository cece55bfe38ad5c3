"""Joins estimates, proofs and metadata to the result of a weighing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg

import pgtare
from pgtare.estimate.trial.answer import Answer
from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.results import ArmEstimate, TrialEstimate
from pgtare.kit import machine
from pgtare.postgres import pooler
from pgtare.postgres.private_settings import is_private
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.trials import ModuleInfo
from pgtare.weighing.weigh import schema
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.recording import TrialRecording
from pgtare.weighing.weigh.schema import StoppedBy
from pgtare.weighing.weigh.warnings import of_estimate, of_recording


def _arm(arm: ArmEstimate, design: Arm, proof: Proof | None) -> schema.ArmResult:
    return schema.filled(
        schema.ArmResult,
        arm,
        settings=design.settings,
        inject_ns=design.inject_ns,
        longest_open_us=schema.number(arm.longest_open_us) if arm.open else None,
        answer=_answer(arm.answer) if arm.answer else None,
        effect=schema.filled(schema.Effect, arm.effect) if arm.effect else None,
        proof=proof,
    )


def _answer(answer: Answer) -> schema.Answer:
    reasons = [schema.filled(schema.Reason, reason) for reason in answer.reasons]
    return schema.filled(schema.Answer, answer, reasons=reasons)


def estimated(
    estimate: TrialEstimate, design: Design, proofs: Sequence[Proof | None]
) -> dict[str, Any]:
    """The fields of a result that come from the observations alone."""
    found = estimate.contention
    return {
        "baseline": schema.filled(schema.Baseline, estimate.baseline),
        "switching": schema.filled(schema.Switching, estimate.switching),
        "arms": [_arm(a, design.arms[i], proofs[i]) for i, a in enumerate(estimate.arms)],
        "contention": schema.filled(schema.Contention, found) if found else None,
    }


def estimated_design(estimate: TrialEstimate, design: Design) -> dict[str, Any]:
    """The fields of a result's design that come with the estimate."""
    slices, straddled_pct = design.slices, schema.number(estimate.straddled_pct)
    return {
        "slices": slices and schema.filled(schema.SliceInfo, slices, straddled_pct=straddled_pct),
        "runs": schema.RunInfo(**vars(design.runs)),
        "margin_pct": estimate.margin_pct,
        "peeked": estimate.peeked,
        "blocks": estimate.blocks,
        "blocks_discarded": estimate.blocks_discarded,
        "first_share_pct": 100 * estimate.first_share,
        "covered_pct": 100 * estimate.covered,
        "mde_us": schema.number(estimate.mde_us),
        "mde_pct": schema.number(estimate.mde_pct),
    }


def made(
    estimate: TrialEstimate,
    design: Design,
    proofs: Sequence[Proof | None],
    stopped_by: StoppedBy,
    course: dict[str, Any],
    **others: Any,
) -> schema.WeighResult:
    """The result of a trial that has just ended, ready to be shown and written.

    course: the fields of its design that come neither with the estimate nor with the design;
    others: those of the result.
    """
    return schema.WeighResult(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        pgtare_version=pgtare.__version__,
        design=schema.DesignInfo(
            seed=design.seed,
            unit=design.unit,
            block=list(design.block),
            **estimated_design(estimate, design),
            stopped_by=stopped_by,
            partial=stopped_by in ("interrupt", "server"),
            **course,
        ),
        **estimated(estimate, design, proofs),
        **others,
    )


def build(
    plan: WeighPlan,
    recording: TrialRecording,
    estimate: TrialEstimate,
    proofs: Sequence[Proof | None],
    load: dict[str, Any],
    server: dict[str, Any],
    outside: int,
    took_part_pct: float | None,
    command: list[str],
    *,
    steal_pct: float | None = None,
) -> schema.WeighResult:
    """The result of a trial of the module.

    proofs: by arm, as in the design. outside: sessions of the population that did not take part.
    took_part_pct: of the database's transactions. steal_pct: of the processors' time, taken by
    other guests.
    """
    status = recording.status
    return made(
        estimate,
        plan.design,
        proofs,
        recording.stopped_by,
        {
            "started": status.started.isoformat() if status and status.started else None,
            "duration_s": recording.duration_s,
            "planned_s": plan.request.duration_s,
            "sessions": status.sessions if status else estimate.sessions,
            "sessions_outside": outside,
            "participation": plan.population.participation,
            "transactions_took_part_pct": took_part_pct,
            "lost": status.lost if status else 0,
        },
        command=command,
        load=load,
        server=server,
        machine={**machine.describe(), "steal_pct": steal_pct},
        warnings=[
            *plan.warnings,
            *of_recording(plan, recording, outside, steal_pct),
            *of_estimate(estimate),
        ],
    )


def system_identifier(conn: psycopg.Connection[Any]) -> str | None:
    """Of the server's data directory; None if the role may not read it."""
    ((may_read,),) = pooler.rows(
        conn,
        "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')",
    )
    if not may_read:
        return None
    query = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"
    return str(pooler.rows(conn, query)[0][0])


_SETTINGS = """
SELECT name, value || coalesce(' ' || unit, ''), vartype = 'string',
       source NOT IN ('default', 'override', 'client')
           AND (source <> 'session' OR value <> coalesce(boot_val, ''))
FROM (
    SELECT *, CASE source WHEN 'session' THEN coalesce(reset_val, '') ELSE setting END AS value
    FROM pg_catalog.pg_settings
) AS settings
ORDER BY name
"""


def own_settings(conn: psycopg.Connection[Any]) -> list[tuple[str, str, bool, bool]]:
    """Name, value, whether it is a text and whether it is configured, of all settings.

    Values are those that new sessions of this role have, whatever we have set in ours.
    """
    return pooler.rows(conn, _SETTINGS)


def describe_server(
    conn: psycopg.Connection[Any], info: ModuleInfo | None, kind: str, weighed: Sequence[str]
) -> dict[str, Any]:
    """The server's version and the settings that differ from its defaults.

    info: None if nothing of ours is in the server. weighed: settings of the trial, which are told
    in any case. The system identifier is None if the role may not read it.
    """
    ((version, standby, database),) = pooler.rows(
        conn, "SELECT version(), pg_is_in_recovery(), current_database()"
    )
    return {
        "kind": kind,
        "version": str(version),
        "version_num": conn.info.server_version,
        "system_identifier": system_identifier(conn),
        "standby": standby,
        "database": database,
        "module": dataclasses.asdict(info) if info else None,
        "settings": {
            str(name): value
            for name, value, is_text, configured in own_settings(conn)
            if (configured or name in weighed)
            and not is_private(str(name), is_text=is_text and name not in weighed)
        },
    }
