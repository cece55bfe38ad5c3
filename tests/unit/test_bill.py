"""The bill adds up: lines to servers, these to the whole, and all of it to what weigh reported."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from pgtare.estimate.interval_sums import Bounds, dependent_sum, independent_sum
from pgtare.keeping.spool.agent_cost import agent_cost
from pgtare.keeping.spool.tables import rows
from pgtare.keeping.spool.writer import Spool
from pgtare.weighing.bill import overlap as bill_overlap
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.report import wording
from pgtare.weighing.weigh.schema import WeighResult
from tests.commands import in_process, refused
from tests.fleet_data import OFF, SECONDS, SETTINGS, MadeServer, write_fleet, write_server
from tests.json_documents import documents
from tests.unit.spool_rows import START, UNLIMITED

SERVERS = [
    MadeServer("db1", (1.08, 1.01), settings=SETTINGS["pg_stat_statements"]),
    MadeServer("db2", (1.04, 1.02), took_part_pct=25.0, settings=OFF),
    MadeServer("db3", (1.06, 1.0), took_part_pct=None),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, WeighResult]]:
    path = tmp_path_factory.mktemp("bill") / "monday"
    return path, write_fleet(path, SERVERS)


def bill(*arguments: object, status: int = 0) -> dict[str, Any]:
    done = in_process("bill", *arguments, "--json")
    assert done.returncode == status, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, documents()["pgtare.bill/1"].schema)
    return document


def per_second(server: MadeServer, result: WeighResult) -> float:
    """Transactions of the whole server: those that took part, and the share that they were."""
    seen = sum(arm.n + arm.excluded for arm in result.arms) + result.design.lost
    return seen / SECONDS / ((server.took_part_pct or 100.0) / 100)


def test_it_adds_up_to_what_weigh_reported(fleet: tuple[Path, dict[str, WeighResult]]) -> None:
    path, weighed = fleet
    found = bill(path)
    total = 0.0
    for server in SERVERS:
        result = weighed[server.name]
        of_server = 0.0
        for arm in result.arms:
            if arm.role != "instrument":
                continue
            assert arm.answer is not None
            (line,) = [
                one
                for one in found["lines"]
                if (one["server"], one["name"]) == (server.name, arm.name)
            ]
            assert line["cost_us"] == arm.answer.us.model_dump()
            assert line["verdict"] == arm.verdict
            cores = (arm.answer.us.estimate or 0.0) * per_second(server, result) / 1e6
            assert math.isclose(line["amount"]["cores"]["estimate"], cores, rel_tol=1e-12)
            of_server += cores
        (shown,) = [one for one in found["servers"] if one["server"] == server.name]
        assert math.isclose(shown["amount"]["cores"]["estimate"], of_server, rel_tol=1e-12)
        total += of_server
    assert math.isclose(found["total"]["cores"]["estimate"], total, rel_tol=1e-12)
    switched = sum(one["amount"]["cores"]["estimate"] for one in found["switch_off"])
    off = found["off_now"]["cores"]["estimate"]
    assert math.isclose(switched + off, total, rel_tol=1e-12)
    # intervals within a server are added, and servers are independent
    halves = []
    for server in found["servers"]:
        lines = [one for one in found["lines"] if one["server"] == server["server"]]
        width = sum(
            one["amount"]["cores"]["hi"] - one["amount"]["cores"]["estimate"] for one in lines
        )
        cores = server["amount"]["cores"]
        assert math.isclose(cores["hi"] - cores["estimate"], width, rel_tol=1e-9)
        halves.append(width)
    cores = found["total"]["cores"]
    root = math.sqrt(sum(width**2 for width in halves))
    assert math.isclose(cores["hi"] - cores["estimate"], root, rel_tol=1e-9)


def test_what_could_be_switched_off_and_rates_that_are_lower_bounds(
    fleet: tuple[Path, dict[str, WeighResult]],
) -> None:
    found = bill(fleet[0])
    now = {(one["server"], one["name"]): one["now"] for one in found["lines"]}
    assert now["db1", "pg_stat_statements"] == "on"
    assert now["db2", "pg_stat_statements"] == "off"
    assert now["db3", "pg_stat_statements"] == "unknown"
    first = found["switch_off"][0]
    assert first["name"] == "pg_stat_statements"
    assert first["servers"] == ["db1", "db3"]
    assert first["how"] == [
        "ALTER SYSTEM SET pg_stat_statements.track = 'none'; SELECT pg_reload_conf();"
    ]
    amounts = [one["amount"]["cores"]["estimate"] for one in found["switch_off"]]
    assert amounts == sorted(amounts, reverse=True)
    whole = {one["server"]: one["whole_rate"] for one in found["servers"]}
    assert whole == {"db1": True, "db2": True, "db3": False}
    assert any("lower bounds: db3" in note for note in found["notes"])
    assert any(
        "the one database that was weighed on a server (app)" in note for note in found["notes"]
    )


def test_money_is_cores_times_the_price(fleet: tuple[Path, dict[str, WeighResult]]) -> None:
    found = bill(fleet[0], "--core-month", "40", "--currency", "EUR")
    assert (found["core_month"], found["currency"]) == (40, "EUR")
    for one in (
        *found["lines"],
        *found["servers"],
        *found["switch_off"],
        {"amount": found["total"]},
    ):
        cores, money = one["amount"]["cores"], one["amount"]["money"]
        for end in ("estimate", "lo", "hi"):
            assert math.isclose(money[end], 40 * cores[end], rel_tol=1e-12)
    printed = in_process("bill", fleet[0], "--core-month", "40", "--currency", "EUR").stdout
    assert "EUR a month" in printed
    assert "What could be switched off, the most expensive first" in printed


def test_a_line_below_zero_is_not_shown_to_cost_anything(tmp_path: Path) -> None:
    write_server(MadeServer("db", (0.97, 1.05), settings=OFF), tmp_path / "db")
    lines = {one["name"]: one["amount"]["cores"] for one in bill(tmp_path / "db")["lines"]}
    below = sorted(name for name, cores in lines.items() if cores["lo"] < 0)
    assert any(lines[name]["estimate"] < 0 for name in below)
    assert len(below) < len(lines)
    printed = in_process("bill", tmp_path / "db").stdout
    (said,) = [line for line in printed.splitlines() if line.startswith("Not shown to cost")]
    assert said.count(" on db") == len(below)


def test_a_single_result_is_a_server(tmp_path: Path) -> None:
    write_server(SERVERS[0], tmp_path / "monday")
    found = bill(tmp_path / "monday")
    assert [one["server"] for one in found["servers"]] == ["monday"]
    assert "two results are of a server called monday" in refused(
        "bill", tmp_path / "monday", tmp_path / "monday"
    )


@pytest.mark.parametrize(("other", "twice"), [("71", True), ("72", False), (None, False)])
def test_a_database_that_was_weighed_twice_is_named(
    tmp_path: Path, other: str | None, twice: bool
) -> None:
    for day, identifier in (("monday", "71"), ("tuesday", other)):
        write_server(MadeServer("db", identifier=identifier), tmp_path / day)
    notes = bill(tmp_path / "monday", tmp_path / "tuesday")["notes"]
    said = [note for note in notes if "is in the sums 2 times for one database" in note]
    assert len(said) == (2 if twice else 0)
    assert all("of its server: monday, tuesday. Leave out" in note for note in said)


def change(path: Path, **changes: Any) -> None:
    """Change one arm of a kept result."""
    file = path / store.RESULT_FILE
    document = json.loads(file.read_text())
    for arm in document["arms"]:
        if arm["name"] in changes:
            arm |= changes[arm["name"]]
    file.write_text(json.dumps(document))


def refute(path: Path, name: str) -> None:
    """Let an instrument of a kept result be one that was not seen to run."""
    file = path / store.RESULT_FILE
    document = json.loads(file.read_text())
    for arm in document["arms"]:
        if arm["name"] == name:
            arm["answer"] |= {"verdict": "not_verified", "reasons": [{"kind": "no_proof"}]}
    file.write_text(json.dumps(document))


def test_what_is_not_verified_is_not_counted(tmp_path: Path) -> None:
    write_server(SERVERS[0], tmp_path / "m")
    refute(tmp_path / "m", "track_io_timing")
    found = bill(tmp_path / "m")
    assert [one["name"] for one in found["lines"]] == ["pg_stat_statements"]
    assert found["not_counted"] == [
        {
            "server": "m",
            "name": "track_io_timing",
            "reason": "not verified: it was not seen to run",
        }
    ]
    refute(tmp_path / "m", "pg_stat_statements")
    assert "there is nothing to add up" in refused("bill", tmp_path / "m", status=1)


def test_what_has_no_interval_is_not_counted(tmp_path: Path) -> None:
    """Otherwise a small server would make the whole sum unbounded."""
    write_fleet(tmp_path / "f", SERVERS[:2])
    file = tmp_path / "f" / "servers" / "db2" / store.RESULT_FILE
    document = json.loads(file.read_text())
    for arm in document["arms"]:
        if arm["role"] == "instrument":
            arm["answer"]["us"] |= {"lo": None, "hi": None}
    file.write_text(json.dumps(document))
    found = bill(tmp_path / "f")
    assert found["total"]["cores"]["lo"] > 0
    assert {one["server"] for one in found["lines"]} == {"db1"}
    assert {one["server"] for one in found["servers"]} == {"db1"}  # not db2 with a sum of 0
    assert {(one["server"], one["reason"]) for one in found["not_counted"]} == {
        ("db2", "too few transactions for an interval")
    }


def test_a_weighing_from_outside_knows_no_rate_of_yours(tmp_path: Path) -> None:
    write_server(SERVERS[0], tmp_path / "m")
    file = tmp_path / "m" / store.RESULT_FILE
    document = json.loads(file.read_text())
    document["design"]["outside"] = {
        "dropped": 3,
        "pause_us": 250.0,
        "waiting_us": 70.0,
        "disturbed_pct": 1.0,
        "failed_blocks": 0,
        "server_busy_pct": 12.0,
        "left_out": {},
    }
    file.write_text(json.dumps(document))
    said = refused("bill", tmp_path / "m", status=1)
    assert "weighed from outside" in said


def test_a_load_of_our_own_is_not_charged_as_yours(tmp_path: Path) -> None:
    """pgbench runs as fast as it can."""
    write_fleet(tmp_path / "f", SERVERS[:2])
    file = tmp_path / "f" / "servers" / "db2" / store.RESULT_FILE
    document = json.loads(file.read_text())
    document["load"] = {"kind": "pgbench", "script": "select-only", "clients": 4}
    file.write_text(json.dumps(document))
    found = bill(tmp_path / "f")
    assert {one["server"] for one in found["lines"]} == {"db1"}
    assert {(one["server"], one["reason"]) for one in found["not_counted"]} == {
        ("db2", "its load was pgtare's own, so the rate of your transactions is not known")
    }
    arms = document["arms"]
    document["arms"] = [arm for arm in arms if arm["role"] != "instrument"]
    file.write_text(json.dumps(document))
    assert bill(tmp_path / "f")["not_counted"] == [
        {"server": "db2", "name": "", "reason": "no instrument was weighed"}
    ]
    document |= {"load": {}, "arms": arms}  # a load that was not recorded
    file.write_text(json.dumps(document))
    assert {one["server"] for one in bill(tmp_path / "f")["lines"]} == {"db1", "db2"}


def test_settings_that_another_instrument_has_as_well_are_counted_once(tmp_path: Path) -> None:
    write_server(SERVERS[0], tmp_path / "m")
    both = {**OFF, "pg_stat_statements.track": "top", "track_io_timing": "on"}
    change(tmp_path / "m", pg_stat_statements={"settings": both})
    found = bill(tmp_path / "m")
    assert [one["name"] for one in found["lines"]] == ["pg_stat_statements"]
    (gone,) = found["not_counted"]
    assert gone["reason"] == "its settings are part of pg_stat_statements, which is counted"


def test_of_two_variants_the_one_that_is_on_is_counted(tmp_path: Path) -> None:
    write_server(SERVERS[0], tmp_path / "m")  # the server has track = top
    change(
        tmp_path / "m",
        track_io_timing={"settings": {**OFF, "pg_stat_statements.track": "all"}},
    )
    found = bill(tmp_path / "m")
    assert [one["name"] for one in found["lines"]] == ["pg_stat_statements"]
    (gone,) = found["not_counted"]
    assert "cannot both be on" in gone["reason"]


def test_an_instrument_gives_way_only_to_one_that_is_counted(
    fleet: tuple[Path, dict[str, WeighResult]],
) -> None:
    """track is part of both, which gives way to other: what track costs must stay on the bill."""
    result = fleet[1]["db3"]
    base, arm = result.arms[0], wording.of_role(result, "instrument")[0]
    settings = {
        "track": {"track_io_timing": "on"},
        "both": {"track_io_timing": "on", "pg_stat_statements.track": "all"},
        "other": {"pg_stat_statements.track": "top"},
    }
    arms = [
        arm.model_copy(update={"name": name, "settings": {**base.settings, **changed}})
        for name, changed in settings.items()
    ]
    result = result.model_copy(update={"arms": [base, *arms]})
    dearest_first = [arms[2], arms[1], arms[0]]
    assert bill_overlap.not_counted(dearest_first, result) == {
        "both": "it and other, which is counted, cannot both be on"
    }
    assert bill_overlap.not_counted(dearest_first[1:], result) == {
        "track": "its settings are part of both, which is counted"
    }


@pytest.mark.parametrize(
    ("track", "query_id", "state"),
    [
        ("top", "on", "on"),
        ("top", "auto", "on"),  # the defaults of a server that has the library
        ("none", "auto", "off"),
        ("all", "auto", "unknown"),
        ("top", "off", "off"),
        ("", "auto", "unknown"),
    ],
)
def test_query_ids_that_the_server_computes_as_needed(
    fleet: tuple[Path, dict[str, WeighResult]], track: str, query_id: str, state: str
) -> None:
    """Without a setting of a library there is nothing that needs them for certain."""
    result = fleet[1]["db3"]
    names = ["compute_query_id", "pg_stat_statements.track"][: 2 if track else 1]

    def settings(*values: str) -> dict[str, str]:
        return dict(zip(names, values, strict=False))

    base = result.arms[0].model_copy(update={"settings": settings("off", "none")})
    arm = result.arms[-1].model_copy(update={"settings": settings("on", "top")})
    now = {"settings": settings(query_id, track)}
    result = result.model_copy(update={"arms": [base, arm], "server": now})
    assert bill_overlap.state_now(arm, result) == state


def test_processor_time_in_place_of_service_time(tmp_path: Path) -> None:
    write_server(SERVERS[0], tmp_path / "m")
    assert "took no processor time" in refused("bill", tmp_path / "m", "--basis", "cpu", status=1)
    file = tmp_path / "m" / store.RESULT_FILE
    document = json.loads(file.read_text())
    for arm in document["arms"]:
        if arm["role"] == "instrument":
            arm["effect"]["cpu_us"] = {"estimate": 2.0, "lo": 1.5, "hi": 2.5}
    file.write_text(json.dumps(document))
    found = bill(tmp_path / "m", "--basis", "cpu")
    assert {one["cost_us"]["estimate"] for one in found["lines"]} == {2.0}


def test_a_damaged_server_is_left_out_by_name(tmp_path: Path) -> None:
    write_fleet(tmp_path / "f", SERVERS[:2])
    (tmp_path / "f" / "servers" / "db2" / store.RESULT_FILE).write_text("{")
    done = in_process("bill", tmp_path / "f", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert [one["server"] for one in document["servers"]] == ["db1"]
    assert document["not_counted"][0]["server"] == "db2"
    assert "db2 is left out" in done.stderr


def test_servers_of_the_fleet_without_data_are_named(tmp_path: Path) -> None:
    states = {"db8": ("waiting", ""), "db9": ("lost", "it no longer answers")}
    write_fleet(tmp_path / "f", SERVERS[:1], states)
    assert {one["server"]: one["reason"] for one in bill(tmp_path / "f")["not_counted"]} == {
        "db8": "waiting",
        "db9": "lost: it no longer answers",
    }


def spool_of(path: Path) -> Path:
    """The spool of an agent that takes 2 % of a core, and 0.5 s of looks an hour at db1."""
    with Spool.open(path, UNLIMITED) as spool:
        figures = [
            ("", "cpu", 0.2, "s"),
            ("", "memory", 5e7, "bytes"),
            ("db1", "look_waits", 0.1, "s"),
            ("db1", "look_sessions", 0.05, "s"),
            ("db7", "look_waits", 0.3, "s"),
        ]
        for tick in range(6):
            table = rows(
                "agent",
                {
                    "server": [server for server, *_ in figures],
                    "agent": ["a"] * len(figures),
                    "epoch": [0] * len(figures),
                    "ts": [START + timedelta(seconds=10 * tick)] * len(figures),
                    "covered_ns": [10**10] * len(figures),
                    "quality": ["exact"] * len(figures),
                    "kind": [kind for _, kind, _, _ in figures],
                    "value": [value for _, _, value, _ in figures],
                    "unit": [unit for *_, unit in figures],
                },
            )
            spool.commit({"agent": table}, {})
    return path


def test_the_agent_is_on_the_bill(
    fleet: tuple[Path, dict[str, WeighResult]], tmp_path: Path
) -> None:
    spool = spool_of(tmp_path / "spool")
    cost = agent_cost(spool)
    assert math.isclose(cost.process, 0.02)
    assert cost.looks == pytest.approx({"db1": 0.015, "db7": 0.03})
    without, found = bill(fleet[0]), bill(fleet[0], "--spool", spool)
    more = found["total"]["cores"]["estimate"] - without["total"]["cores"]["estimate"]
    assert more == pytest.approx(0.02 + 0.015 + 0.03)
    (process,) = [one for one in found["lines"] if one["kind"] == "agent"]
    assert process["amount"]["cores"] == pytest.approx({"estimate": 0.02, "lo": 0.02, "hi": 0.02})
    (agent,) = [one for one in found["switch_off"] if one["name"] == "agent"]
    assert agent["amount"]["cores"]["estimate"] == pytest.approx(0.065)
    assert agent["servers"] == ["db1", "db7"]
    printed = in_process("bill", fleet[0], "--spool", spool).stdout
    assert "cores on 4 servers" in printed.splitlines()[0]  # db7 is not weighed, and in the sum
    assert sum(one["amount"]["cores"]["estimate"] for one in found["servers"]) + 0.02 == (
        pytest.approx(found["total"]["cores"]["estimate"])
    )


@pytest.mark.parametrize(
    ("others", "looks_of"),
    [
        pytest.param([("db7", "71", False)], {"db1", "orders"}, id="one"),
        pytest.param([("db7", "72", False)], {"db1", "db7", "orders"}, id="another"),
        pytest.param([("db7", "71", True)], {"db1", "db7", "orders"}, id="its standby"),
        pytest.param(
            [("db7", "71", False), ("db1", "71", False)], {"db1", "orders"}, id="one has a namesake"
        ),
    ],
)
def test_a_server_with_two_names_is_known_by_its_identifier(
    tmp_path: Path, others: list[tuple[str, str, bool]], looks_of: set[str]
) -> None:
    write_fleet(tmp_path / "fleet", [MadeServer("db1"), MadeServer("orders", identifier="71")])
    path = spool_of(tmp_path / "spool")
    with Spool.open(path, UNLIMITED) as spool:
        for server, identifier, standby in others:
            described = {
                "server": [server],
                "agent": ["a"],
                "epoch": [0],
                "ts": [START],
                "covered_ns": [0],
                "quality": ["exact"],
                "labels": ["{}"],
                "system_identifier": [int(identifier)],
                "standby": [standby],
            }
            spool.commit({"servers": rows("servers", described)}, {})
    found = bill(tmp_path / "fleet", "--spool", path)
    assert {one["server"] for one in found["servers"]} == looks_of
    of_looks = {one["server"] for one in found["lines"] if one["kind"] == "looks"}
    assert of_looks == {"db1", "db7" if "db7" in looks_of else "orders"}
    assert any("orders (db7)" in note for note in found["notes"]) == ("db7" not in looks_of)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{tmp}/none",), "does not exist"),
        (("{tmp}",), "holds no result"),
        (("{fleet}", "--currency", "EUR"), "--core-month"),
        (("{fleet}", "--core-month", "-1"), "a price over 0"),
        (("{fleet}", "--core-month", "nan"), "a price over 0"),
        (("{fleet}", "--basis", "rows"), "basis"),
        (("{fleet}", "--spool", "{tmp}"), "spool"),
    ],
)
def test_bad_input_is_one_sentence(
    fleet: tuple[Path, dict[str, WeighResult]],
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    filled = [one.format(tmp=tmp_path, fleet=fleet[0]) for one in arguments]
    assert words in refused("bill", *filled)


def test_intervals_of_sums_hold() -> None:
    """95 % intervals by Student's t with few degrees of freedom, of six independent estimates."""
    rng = np.random.default_rng(1)
    trials, parts, df = 4_000, 6, 8
    t = 2.306
    scale = np.array([1.0, 2.0, 0.5, 3.0, 1.0, 0.2])
    se = scale * np.sqrt(rng.chisquare(df, (trials, parts)) / df)
    estimates = scale * rng.standard_normal((trials, parts))
    covered = {"independent": 0, "same": 0}
    same = scale * rng.standard_normal((trials, 1))
    for i in range(trials):
        apart = [Bounds(e, e - t * s, e + t * s) for e, s in zip(estimates[i], se[i], strict=True)]
        found = independent_sum(apart)
        covered["independent"] += found.lo <= 0 <= found.hi
        alike = [Bounds(e, e - t * s, e + t * s) for e, s in zip(same[i], se[i], strict=True)]
        found = dependent_sum(alike)
        covered["same"] += found.lo <= 0 <= found.hi
    # 0.95 less four standard errors
    assert covered["independent"] > 0.936 * trials
    assert covered["same"] > 0.936 * trials


def test_a_lopsided_interval_stays_lopsided() -> None:
    found = independent_sum([Bounds(1.0, 0.0, 4.0), Bounds(2.0, 2.0, 2.0)])
    assert found == Bounds(3.0, 2.0, 6.0)
    assert Bounds(1.0, 0.0, 4.0).times(-1) == Bounds(-1.0, -4.0, 0.0)
