"""What a fleet's weighing found, schema `pgtare.fleet.weigh/2`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

import pgtare
from pgtare.estimate.fleet.random_effects import FleetVerdict
from pgtare.kit.document import Document, Model, schema_name
from pgtare.kit.interval import Interval
from pgtare.weighing.verdict_names import Verdict
from pgtare.weighing.weigh.schema import ArmRole


class ServerArm(Model):
    """One arm on one server, by the estimators of `pgtare weigh`."""

    server: str = Field(description="name of the server")
    n: int = Field(description="transactions of the arm that entered")
    verdict: Verdict | None = Field(description="verdict on this server, by itself")
    because: str = Field(description="why, in words")
    us: Interval = Field(description="interval: the cost when left on, as `pgtare weigh` has it")
    pct: Interval = Field(description="the same as a percentage of the base's mean")
    log_ratio: float | None = Field(
        description="logarithm of the body with the instrument over that of the base"
    )
    log_ratio_se: float | None = Field(description="its standard error")
    effective_clusters: float = Field(
        description="effective number of clusters that the standard errors rest on"
    )
    left_out: str = Field(description="why it is not combined with others; empty if it is")


class FleetOutlier(Model):
    """A server unlike the rest of the fleet."""

    server: str = Field(description="name of the server")
    residual: float = Field(
        description="distance from what the other servers predict for it, in standard errors"
    )
    p_adjusted: float = Field(description="p-value after Holm's correction over all servers")
    labels: dict[str, str] = Field(
        description="labels that all outliers on its side have, and no other server"
    )


class FleetSubgroup(Model):
    """The servers with one value of a label, against the others that have the label."""

    label: str = Field(description="name of the label")
    value: str = Field(description="its value")
    servers: list[str] = Field(description="names of the servers that have it")
    mean: Interval = Field(description="interval: mean of these servers")
    difference: Interval = Field(description="interval: its difference from the others' mean")
    p: float | None = Field(description="p-value of no difference; `null` with too few servers")
    p_adjusted: float | None = Field(
        description="the same after Holm's correction over all labels and values"
    )


class FleetScale(Model):
    """One arm over all servers, in percent of the base's body."""

    mean: Interval = Field(description="interval: mean effect of the fleet's servers")
    prediction: Interval | None = Field(
        description="interval: the effect to expect on the next server; `null` with fewer than "
        "five servers"
    )
    tau: Interval = Field(
        description="interval: standard deviation of the servers' true effects, of log-ratios, "
        "times 100"
    )
    i2_pct: float | None = Field(
        description="I²: share of the spread of estimates that is due to true differences"
    )
    q: float | None = Field(description="Cochran's Q")
    q_p: float | None = Field(description="p-value of all servers having the same effect")
    outliers: list[FleetOutlier] = Field(description="servers unlike the rest, farthest first")
    subgroups: list[FleetSubgroup] = Field(description="servers by their labels")


class FleetArm(Model):
    """One arm over the servers of the fleet."""

    name: str = Field(description="name of the arm")
    role: ArmRole = Field(
        description="`instrument`, `control` (the base again) or `injected` (a known delay)"
    )
    k: int = Field(description="servers that are combined")
    verdict: FleetVerdict = Field(
        description="`cost`, `gain`, `equivalent` (by the prediction interval), `inconclusive`, "
        "`kinds` if the servers differ in kind, or `list` with fewer than five servers, of which "
        "nothing is claimed"
    )
    verdict_reason: str = Field(description="why")
    cost_pct: FleetScale = Field(
        description="in percent of the base's body, from log-ratios; the verdict is by these"
    )
    cost_us: Interval = Field(description="interval: mean in µs a transaction")
    servers: list[ServerArm] = Field(description="the arm on each server, by name")


class FleetServer(Model):
    """A server of the fleet."""

    name: str = Field(description="name of the server")
    labels: dict[str, str] = Field(description="its labels in the inventory")
    version: str = Field(description="version of PostgreSQL; empty if not known")
    base_us: float | None = Field(description="body of its base, in µs")
    margin_pct: float = Field(description="margin of equivalence of its own verdicts, in percent")
    transactions: int = Field(description="transactions that entered, of all arms")
    transactions_per_s: float | None = Field(
        description="transactions a second of the database that was weighed, during its trial"
    )
    whole_rate: bool = Field(
        description="whether those that took no part are in it; if not, it is a lower bound"
    )
    duration_s: float = Field(description="seconds measured")
    alarms: list[str] = Field(description="what must be read before its figures")


class FleetLeftOut(Model):
    """A server that is not in the figures."""

    server: str = Field(description="name of the server")
    reason: str = Field(description="why, in words")


class FleetWeighing(Document):
    """One study over many servers: estimates of each, combined by random effects."""

    schema_: Literal["pgtare.fleet.weigh/2"] = schema_name("pgtare.fleet.weigh/2")
    created: str = Field(description="when the last of the trials ended, ISO 8601")
    pgtare_version: str = Field(
        default=pgtare.__version__, description="version of pgtare that wrote it"
    )
    margin_pct: float = Field(description="margin of equivalence of the fleet, in percent")
    confidence: float = Field(description="level of the intervals, such as 0.95")
    servers: list[FleetServer] = Field(description="the servers with figures, by name")
    left_out: list[FleetLeftOut] = Field(description="servers without, and why")
    arms: list[FleetArm] = Field(description="the arms, by name; control and known delays last")
    warnings: list[str] = Field(description="what a reader must know, in plain sentences")
