"""One estimate over all servers of a fleet, from what was found on each.

The result depends on the servers alone, not on the order in which they came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgtare.errors import MeasurementError
from pgtare.estimate.fleet.random_effects import FleetEstimate, combine
from pgtare.estimate.fleet.server_effect import ServerEffect
from pgtare.estimate.fleet.subgroups import subgroups
from pgtare.estimate.inference import Estimate
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.weighing.fleet import documents, raw_data
from pgtare.weighing.fleet.documents import FleetLeftOut
from pgtare.weighing.fleet.server_estimate import ArmFigures, ServerFigures
from pgtare.weighing.fleet.state import FleetServerState
from pgtare.weighing.weigh.schema import ArmRole, filled, interval, number

LEVEL = 0.95
#: A label that every server has, unless the inventory gives it another meaning.
VERSION_LABEL = "postgresql"
#: A server that `fleet.json` does not list.
_UNLISTED = FleetServerState(name="", labels={})
_ROLES: tuple[ArmRole, ...] = ("instrument", "injected", "control")


@dataclass(frozen=True)
class _Member:
    """An arm on one server."""

    server: str
    labels: Mapping[str, str]
    arm: ArmFigures

    def effect(self, percent: bool) -> ServerEffect:
        """percent: as a log-ratio; else in µs."""
        arm = self.arm
        estimate, se = (
            (arm.log_ratio, arm.log_ratio_se) if percent else (arm.us.estimate, arm.us.se)
        )
        return ServerEffect(self.server, estimate, se, arm.clusters, self.labels)


def combine_servers(
    figures: Sequence[ServerFigures],
    left_out: Sequence[FleetLeftOut],
    records: Mapping[str, FleetServerState],
    margin: float | None = None,
) -> documents.FleetWeighing:
    """The fleet's result.

    margin: of equivalence, as a share; None takes the smallest of the servers'. Raises
    MeasurementError if there is no server.
    """
    servers = sorted((one for one in figures if not one.lost), key=lambda one: one.name)
    lost = [
        FleetLeftOut(server=one.name, reason=_lost(one, records)) for one in figures if one.lost
    ]
    left_out = sorted([*left_out, *lost], key=lambda one: one.server)
    if not servers:
        raise MeasurementError(_none(left_out))
    share = margin if margin is not None else min(one.margin_pct for one in servers) / 100
    known = {one.name for one in servers} | {one.server for one in left_out}
    gone = [*left_out, *raw_data.without_data(records, known)]
    arms = [_arm(name, role, servers, records, share) for name, role in _names(servers)]
    return documents.FleetWeighing(
        created=max(one.created for one in servers),
        margin_pct=100 * share,
        confidence=LEVEL,
        servers=[_server(one, records.get(one.name, _UNLISTED)) for one in servers],
        left_out=sorted(gone, key=lambda one: one.server),
        arms=arms,
        warnings=_warnings(servers, records),
    )


def _lost(one: ServerFigures, records: Mapping[str, FleetServerState]) -> str:
    """Why a server is left out whose observations end with its loss.

    Its trial was not ended by chance alone: what ended it may be what is weighed.
    """
    record = records.get(one.name)
    if record is not None and record.state == "lost":
        said = record.words()
    else:
        counted = numbers.counted(one.transactions, "transaction")
        said = f"its trial was ended by the server after {counted}"
    return (
        f"{said}; the observations of its last trial are kept, and are not included in the "
        "estimate, as an instrument may have ended it"
    )


def _before(record: FleetServerState) -> str:
    """What to know of a server that did not end its weighing, and has figures."""
    if record.state == "lost":
        return f"{record.words()}; an earlier trial of it is kept, and included in the estimate"
    why = f" ({record.reason})" if record.reason else ""
    return f"{record.state}{why}; the figures are of what it gave before"


def _none(left_out: Sequence[FleetLeftOut]) -> str:
    first = left_out[0]
    more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    return f"no server has data that can be estimated: {first.server}: {first.reason}{more}"


def _names(servers: Sequence[ServerFigures]) -> list[tuple[str, ArmRole]]:
    """All arms: instruments by name, then known delays, then the control."""
    roles: dict[str, ArmRole] = {}
    for server in servers:
        for arm in server.arms:
            roles.setdefault(arm.name, arm.role)
    return sorted(roles.items(), key=lambda one: (_ROLES.index(one[1]), one[0]))


def _labels(server: ServerFigures, records: Mapping[str, FleetServerState]) -> dict[str, str]:
    """Those of the inventory, and the major version."""
    found = dict(records.get(server.name, _UNLISTED).labels)
    major = server.version.partition(".")[0]
    if major:
        found.setdefault(VERSION_LABEL, major)
    return found


def _arm(
    name: str,
    role: ArmRole,
    servers: Sequence[ServerFigures],
    records: Mapping[str, FleetServerState],
    margin: float,
) -> documents.FleetArm:
    members = [
        _Member(server.name, _labels(server, records), arm)
        for server in servers
        for arm in server.arms
        if arm.name == name
    ]
    usable = [member for member in members if not member.arm.unusable]
    ratios = [member.effect(percent=True) for member in usable]
    found = combine(ratios, level=LEVEL, margin=math.log1p(margin))
    in_us = [member.effect(percent=False) for member in usable]
    return documents.FleetArm(
        name=name,
        role=role,
        k=found.k,
        verdict=found.verdict,
        verdict_reason=found.reason,
        cost_pct=_scale(found, ratios),
        cost_us=interval(combine(in_us, level=LEVEL).mean),
        servers=[_server_arm(member) for member in members],
    )


def _scale(found: FleetEstimate, effects: Sequence[ServerEffect]) -> documents.FleetScale:
    labels = sorted({label for effect in effects for label in effect.labels})
    groups = subgroups(effects, *labels, level=LEVEL)
    values = {label: {one.value for one in groups if one.label == label} for label in labels}
    tau = found.tau2
    return documents.FleetScale(
        mean=_percent(found.mean),
        prediction=_percent(found.prediction) if found.prediction else None,
        tau=Interval(estimate=_root(tau.estimate), lo=_root(tau.lo), hi=_root(tau.hi)),
        i2_pct=number(100 * found.i2),
        q=number(found.q),
        q_p=number(found.q_p),
        outliers=[
            filled(documents.FleetOutlier, one, p_adjusted=one.p, labels=dict(one.labels))
            for one in found.outliers
        ],
        subgroups=[
            filled(
                documents.FleetSubgroup,
                one,
                servers=list(one.servers),
                mean=_percent(one.mean),
                difference=_percent(one.difference),
            )
            for one in groups
            if len(values[one.label]) > 1
        ],
    )


def _percent(found: Estimate) -> Interval:
    """Log-ratios as percentages."""
    values = (found.estimate, found.lo, found.hi)
    estimate, lo, hi = (number(100 * math.expm1(min(value, 700))) for value in values)
    return Interval(estimate=estimate, lo=lo, hi=hi)


def _root(value: float) -> float | None:
    return number(100 * math.sqrt(value)) if value >= 0 else None


def _server_arm(member: _Member) -> documents.ServerArm:
    arm = member.arm
    return filled(
        documents.ServerArm,
        arm,
        server=member.server,
        effective_clusters=arm.clusters,
        left_out=arm.unusable,
    )


def _server(one: ServerFigures, record: FleetServerState) -> documents.FleetServer:
    return filled(documents.FleetServer, one, labels=dict(record.labels))


def _warnings(
    servers: Sequence[ServerFigures], records: Mapping[str, FleetServerState]
) -> list[str]:
    found = [f"{one.name}: {alarm}." for one in servers for alarm in one.alarms]
    for one in servers:
        record = records.get(one.name, _UNLISTED)
        if record.state in ("stopped", "lost", "running"):
            found.append(f"{one.name}: {_before(record)}.")
    versions = sorted({one.pgtare_version for one in servers})
    if len(versions) > 1:
        found.append(f"The servers were weighed by several versions of pgtare: {_list(versions)}.")
    margins = {one.margin_pct for one in servers}
    if len(margins) > 1:
        found.append("The servers were weighed with several margins of equivalence.")
    for name, _ in _names(servers):
        settings = {arm.settings for one in servers for arm in one.arms if arm.name == name}
        if len(settings) > 1:
            found.append(f"{name} has not the same settings on all servers.")
    if records:
        unknown = [one.name for one in servers if one.name not in records]
        if unknown:
            found.append(
                f"{numbers.counted(len(unknown), 'server')} not in the inventory, so without "
                f"labels: {_list(unknown)}."
            )
    return found


def _list(names: Sequence[str]) -> str:
    shown = names[:10]
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(shown) + more
