"""How much a weighing from outside may add to the server's log, to be printed beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgtare.estimate.trial.design import Arm, Design
from pgtare.weighing.instruments.statement_logging import VERBOSE
from pgtare.weighing.outside.loops import MOST_TPS, REST

#: Lines that a statement has in the log at most, of parse, bind and execute, each with its text.
_LINES = 3
#: What else a line has, such as its prefix and parameters, in bytes.
_LINE_BYTES = 250
#: Statements that the server runs in a second at most, of the time in which it works for us.
_MOST_STATEMENTS = 100_000 / (1 + REST)
#: With more plans than this in the log, it matters how long they are.
_FEW_PLANS = 100


def described(
    design: Design,
    values: Sequence[Mapping[str, str]],
    text: str,
    duration_s: float,
    *,
    writes: bool,
) -> list[str]:
    """A sentence for each way in which a log grows.

    values: of each arm's settings, as pg_settings shows them. text: of one transaction's
    statements.
    """
    statements = text.count(";") + 1
    tps = min(MOST_TPS, _MOST_STATEMENTS / statements)
    unknown, known, mb = [], [], 0.0
    for number, (arm, found) in enumerate(zip(design.arms, values, strict=True)):
        transactions = tps * duration_s * design.block.count(number) / len(design.block)
        plans = _over(found, "auto_explain.log_min_duration", tps) / tps * transactions
        lines = _LINES * len(found.get("log_destination", "").split(","))
        each = lines * (_LINE_BYTES * statements + len(text.encode()))
        more_mb = _logged(found, tps, writes=writes) / tps * transactions * each / 1e6
        if _is_verbose(found) or plans > _FEW_PLANS:
            unknown.append(arm)
        elif more_mb >= 1:
            known.append(arm)
            mb += more_mb
    sentences = []
    servers = design.grouping == "sessions"
    if known:
        most = f"by up to {mb:,.0f} MB"
        whose = f"the log of {_servers(known)} grows {most}"
        sentences.append(whose if servers else f"its log grows {most}, for {_named(known)}")
    if unknown:
        whose = f"the log of {_servers(unknown)} grows"
        grows = whose if servers else f"its log grows for {_named(unknown)}"
        sentences.append(
            f"{grows}, by how much cannot be said beforehand: try a short --duration first"
        )
    return sentences


def _is_verbose(found: Mapping[str, str]) -> bool:
    # from PostgreSQL 19 on a type of process may have a level of its own
    listed = (each.strip().lower() for each in found.get("log_min_messages", "").split(","))
    levels = {kind: level for kind, _, level in (each.rpartition(":") for each in listed)}
    level = levels.get("backend", levels.get("", ""))
    return level.startswith("debug") or any(found.get(name) == "on" for name in VERBOSE)


def _logged(found: Mapping[str, str], tps: float, *, writes: bool) -> float:
    """How many of tps transactions a second may have their statements logged."""
    kinds = ("all", "mod", "ddl") if writes else ("all",)
    every = (
        found.get("log_statement") in kinds
        or found.get("log_duration") == "on"
        or found.get("pgaudit.log", "none") not in ("none", "")
    )
    sampled = float(found.get("log_statement_sample_rate", 1))
    return max(
        tps if every else 0.0,
        float(found.get("log_transaction_sample_rate", 0)) * tps,
        _over(found, "log_min_duration_statement", tps),
        sampled * _over(found, "log_min_duration_sample", tps),
    )


def _over(found: Mapping[str, str], name: str, tps: float) -> float:
    """How many of tps transactions a second may last longer than a setting's ms; 0 if it is -1."""
    least_ms = int(found.get(name, -1))
    if least_ms < 0:
        return 0.0
    return min(tps, 1000 / (1 + REST) / max(least_ms, 1e-3))


def _servers(arms: Sequence[Arm]) -> str:
    return ", ".join(arm.name for arm in arms if arm.role != "control")


def _named(arms: Sequence[Arm]) -> str:
    if any(arm.role == "base" for arm in arms):
        return "all arms, as this role's sessions log anyway"
    return ", ".join(arm.name for arm in arms)
