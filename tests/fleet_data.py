"""Simulated fleets on disk: directories as `pgtare weigh --out` leaves them, with known truths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.weighing.fleet.state import (
    FLEET_FILE,
    FleetDesign,
    FleetServerState,
    FleetState,
    State,
)
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.result import estimated, estimated_design
from pgtare.weighing.weigh.schema import DesignInfo, WeighResult
from tests.unit import simulated_trial

INSTRUMENTS = ("pg_stat_statements", "track_io_timing")
SETTINGS = {
    "pg_stat_statements": {"pg_stat_statements.track": "top"},
    "track_io_timing": {"track_io_timing": "on"},
}
OFF = {"pg_stat_statements.track": "none", "track_io_timing": "off"}
SECONDS = 60.0
DESIGN = FleetDesign(
    instruments=["track_io_timing"],
    arms=[],
    inject_ns=[],
    seed=7,
    duration_s=60,
    canary_s=None,
    margin_pct=0.5,
    harm_pct=25,
    participation=1,
    application="*",
    role=None,
    allow=[],
    at_once=16,
    lease_s=15,
)


@dataclass(frozen=True)
class MadeServer:
    """One server. factors: how many times the base each instrument takes."""

    name: str
    factors: tuple[float, ...] = (1.05, 1.0)
    labels: Mapping[str, str] = field(default_factory=dict)
    version: int = 180_000
    units: int = 3_000
    sessions: int = 4
    took_part_pct: float | None = 50.0
    settings: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = INSTRUMENTS
    identifier: str | None = None


def simulated(server: MadeServer, seed: int = 1) -> tuple[Design, Observations]:
    """A trial of the server's instruments."""
    rng = np.random.default_rng((seed, *server.name.encode()))
    drawn = int(rng.integers(1, 1 << 32))
    bare = simulated_trial.design_of(len(server.names), drawn, control=True)
    base_us = [simulated_trial.lognormal(server.units, rng) for _ in range(server.sessions)]
    effects = {
        arm: simulated_trial.Effect(partial(np.multiply, factor))
        for arm, factor in enumerate(server.factors, start=2)
    }
    rows = simulated_trial.simulate(simulated_trial.old(base_us), bare, effects).observations
    rows["cpu_ns"] = -1
    settings = [{}, {}, *(SETTINGS.get(name, {}) for name in server.names)]
    arms = [
        replace(arm, name=name, settings={**OFF, **changed})
        for arm, name, changed in zip(
            bare.arms, ("base", "control", *server.names), settings, strict=True
        )
    ]
    return replace(bare, arms=tuple(arms)), rows


def result_of(
    server: MadeServer, design: Design, observations: Observations, margin: float = 0.005
) -> WeighResult:
    """What `pgtare weigh` would have said of it."""
    proofs = [
        Proof(state="active", evidence="seen") if arm.role == "instrument" else None
        for arm in design.arms
    ]
    proven = {arm.name: True for arm in design.arms if arm.role == "instrument"}
    found = analyse(observations, design, margin=margin, proven=proven)
    return WeighResult(
        created="2026-11-02T10:00:00+00:00",
        pgtare_version="1.0.0",
        command=["pgtare", "fleet", "weigh", *server.names],
        load={"kind": "none"},
        design=DesignInfo(
            seed=design.seed,
            unit=design.unit,
            block=list(design.block),
            duration_s=SECONDS,
            planned_s=SECONDS,
            **estimated_design(found, design),
            sessions=server.sessions,
            sessions_outside=0,
            participation=None,
            transactions_took_part_pct=server.took_part_pct,
            lost=0,
            stopped_by="time",
            partial=False,
        ),
        server={
            "version_num": server.version,
            "settings": dict(server.settings),
            "system_identifier": server.identifier,
            "standby": False,
            "database": "app",
        },
        machine={},
        **estimated(found, design, proofs),
        warnings=[],
    )


def write_server(server: MadeServer, directory: Path, seed: int = 1) -> WeighResult:
    """Make the directory of one server."""
    design, observations = simulated(server, seed)
    result = result_of(server, design, observations)
    store.save(directory, design, observations, result)
    return result


def write_fleet(
    prefix: Path,
    servers: Sequence[MadeServer],
    states: Mapping[str, tuple[State, str]] | None = None,
) -> dict[str, WeighResult]:
    """A fleet's directory. states: state and reason of servers that have no data."""
    (prefix / "servers").mkdir(parents=True)
    listed = [
        FleetServerState(name=one.name, labels=dict(one.labels), state="done") for one in servers
    ]
    for name, (how, reason) in (states or {}).items():
        listed.append(FleetServerState(name=name, labels={}, state=how, reason=reason))
    state = FleetState(command=["pgtare"], created="2026-01-01", design=DESIGN, servers=listed)
    (prefix / FLEET_FILE).write_text(state.to_json())
    return {one.name: write_server(one, prefix / "servers" / one.name) for one in servers}
