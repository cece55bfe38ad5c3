"""A fleet estimated again: the numbers of each server, and gaps."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pgtare.weighing.fleet.reestimation import report
from pgtare.weighing.weigh import store
from tests.commands import in_process, refused
from tests.fleet_data import MadeServer, write_fleet
from tests.json_documents import documents

#: One server has three times the cost of the others, and the only spinning disk.
SLOW = MadeServer("db3", (1.30, 1.0), {"disk": "hdd", "site": "b"})
SERVERS = [
    *(
        MadeServer(f"db{i}", (1.05 + 0.005 * i, 1.0), {"disk": "ssd", "site": "ab"[i % 2]})
        for i in (0, 1, 2, 4, 5, 6)
    ),
    SLOW,
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "monday"
    write_fleet(path, SERVERS)
    return path


@pytest.fixture
def copy(fleet: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fleet, tmp_path / "copy"))


def arm(found: dict[str, Any], name: str = "pg_stat_statements") -> dict[str, Any]:
    (one,) = [one for one in found["arms"] if one["name"] == name]
    return dict(one)


def test_every_server_has_the_numbers_of_its_weighing(fleet: Path) -> None:
    found = report(fleet)
    assert [one.name for one in found.servers] == sorted(one.name for one in SERVERS)
    for kept in found.arms:
        for one in kept.servers:
            weighed = store.load_result(fleet / "servers" / one.server / store.RESULT_FILE)
            (same,) = [each for each in weighed.arms if each.name == kept.name]
            assert same.answer is not None
            assert (one.us, one.pct) == (same.answer.us, same.answer.pct)
            assert (one.verdict, one.n) == (same.verdict, same.n)


def test_the_unlike_server_is_named_with_what_only_it_has(fleet: Path) -> None:
    done = in_process("fleet", "report", fleet, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, documents()["pgtare.fleet.weigh/2"].schema)
    (outlier,) = arm(document)["cost_pct"]["outliers"]
    assert (outlier["server"], outlier["labels"]) == ("db3", {"disk": "hdd"})
    assert arm(document, "track_io_timing")["cost_pct"]["outliers"] == []
    assert {one["label"] for one in arm(document)["cost_pct"]["subgroups"]} == {"disk", "site"}
    assert document["left_out"] == []
    printed = in_process("fleet", "report", fleet).stdout
    assert "db3 is unlike the rest" in printed
    assert "Only it has disk = hdd." in printed


def drop_result(server: Path) -> None:
    (server / store.RESULT_FILE).unlink()


def cut_short(server: Path) -> None:
    path = server / store.OBSERVATIONS_FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def later_version(server: Path) -> None:
    path = server / store.RESULT_FILE
    path.write_text(path.read_text().replace("pgtare.weigh/2", "pgtare.weigh/9"))


def fewer_rows(server: Path) -> None:
    path = server / store.DESIGN_FILE
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"observations": document["observations"] + 1}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop_result, "incomplete: result.json is missing"),
        (cut_short, "is damaged: it cannot be read as columns of NumPy"),
        (later_version, "was written in version 9"),
        (fewer_rows, "holds .* observations where design.json counts"),
        (shutil.rmtree, "its data are not there"),
    ],
)
def test_a_damaged_server_is_left_out_by_name(
    copy: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(copy / "servers" / "db1")
    done = in_process("fleet", "report", copy, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (gone,) = document["left_out"]
    assert gone["server"] == "db1"
    assert re.search(words, gone["reason"]), gone
    assert "db1 is left out" in done.stderr
    assert arm(document)["k"] == len(SERVERS) - 1
    shutil.rmtree(copy / "servers" / "db1", ignore_errors=True)
    without = json.loads(in_process("fleet", "report", copy, "--json").stdout)
    assert without["arms"] == document["arms"]


def test_half_written_and_lost_servers_are_named(copy: Path) -> None:
    (copy / "servers" / ".db9.partial-x1").mkdir()
    path = copy / "fleet.json"
    document = json.loads(path.read_text())
    document["servers"].append(
        {"name": "db8", "labels": {}, "state": "lost", "reason": "no answer"}
    )
    path.write_text(json.dumps(document))
    gone = {one.server: one.reason for one in report(copy).left_out}
    assert set(gone) == {".db9.partial-x1", "db8"}
    assert gone["db8"] == "lost: no answer"
    assert "being written" in gone[".db9.partial-x1"]


def lose(copy: Path, name: str, *, observations: bool) -> None:
    """Write that a server was lost; observations: in the trial that is kept."""
    path = copy / "fleet.json"
    document = json.loads(path.read_text())
    for one in document["servers"]:
        if one["name"] == name:
            one |= {"state": "lost", "reason": "connection reset", "transactions": 4_321}
    path.write_text(json.dumps(document))
    if observations:
        path = copy / "servers" / name / store.RESULT_FILE
        document = json.loads(path.read_text())
        document["design"] |= {"stopped_by": "server", "partial": True}
        path.write_text(json.dumps(document))


@pytest.mark.slow
def test_the_trial_in_which_a_server_was_lost_is_not_in_the_estimate(copy: Path) -> None:
    lose(copy, "db1", observations=True)
    found = report(copy)
    (gone,) = found.left_out
    assert gone.server == "db1"
    assert gone.reason == (
        "lost after 4,321 transactions in all its trials: connection reset; the observations of "
        "its last trial are kept, and are not included in the estimate, as an instrument may have "
        "ended it"
    )
    assert f"- db1: {gone.reason}" in in_process("fleet", "report", copy).stdout
    assert found.warnings == []
    (copy / "fleet.json").unlink()
    unlabelled = report(copy)
    (gone,) = unlabelled.left_out
    assert re.match(r"its trial was ended by the server after [78],\d+ transactions;", gone.reason)
    shutil.rmtree(copy / "servers" / "db1")
    assert report(copy).arms == unlabelled.arms


def test_an_earlier_trial_of_a_lost_server_is_in_the_estimate(copy: Path) -> None:
    lose(copy, "db1", observations=False)
    found = report(copy)
    assert (found.left_out, len(found.servers)) == ([], len(SERVERS))
    (warning,) = found.warnings
    assert warning == (
        "db1: lost after 4,321 transactions in all its trials: connection reset; an earlier trial "
        "of it is kept, and included in the estimate."
    )
    shutil.rmtree(copy / "servers" / "db1")
    (gone,) = report(copy).left_out
    assert gone.reason.endswith("connection reset; none of its observations are kept")


def test_a_fleet_of_lost_servers_is_a_failure(tmp_path: Path) -> None:
    write_fleet(tmp_path / "f", SERVERS[:1])
    lose(tmp_path / "f", SERVERS[0].name, observations=True)
    said = refused("fleet", "report", tmp_path / "f", status=1)
    assert "no server has data that can be estimated: db0: lost after 4,321" in said


def test_a_server_that_was_stopped_has_a_warning(copy: Path) -> None:
    path = copy / "fleet.json"
    document = json.loads(path.read_text())
    document["servers"][0] |= {"state": "stopped", "reason": "harm on db6"}
    path.write_text(json.dumps(document))
    name = document["servers"][0]["name"]
    (warning,) = report(copy).warnings
    assert warning == f"{name}: stopped (harm on db6); the figures are of what it gave before."


def test_without_fleet_json_there_are_no_labels(copy: Path) -> None:
    before = report(copy)
    (copy / "fleet.json").unlink()
    found = report(copy)
    assert [one.cost_pct.mean for one in found.arms] == [one.cost_pct.mean for one in before.arms]
    assert all(not one.labels for one in found.servers)


def test_an_instrument_that_was_not_seen_to_run_is_not_combined(copy: Path) -> None:
    path = copy / "servers" / "db0" / store.RESULT_FILE
    document = json.loads(path.read_text())
    for one in document["arms"]:
        if one["name"] == "track_io_timing":
            one["proof"] = {"state": "missing", "evidence": "nothing was timed"}
    path.write_text(json.dumps(document))
    (found,) = [one for one in report(copy).arms if one.name == "track_io_timing"]
    assert found.k == len(SERVERS) - 1
    (gone,) = [one for one in found.servers if one.left_out]
    assert gone.server == "db0"
    assert gone.left_out.startswith("not verified")


def test_a_margin_of_its_own(fleet: Path) -> None:
    def verdict(margin: float) -> str:
        (found,) = [one for one in report(fleet, margin).arms if one.name == "track_io_timing"]
        return found.verdict

    assert verdict(0.05) == "equivalent"
    assert verdict(0.0001) != "equivalent"


def test_few_servers_are_a_list(tmp_path: Path) -> None:
    write_fleet(tmp_path / "f", SERVERS[:3])
    done = in_process("fleet", "report", tmp_path / "f")
    assert done.returncode == 0
    assert "3 servers are a list, not a sample" in done.stdout


def test_one_server_is_shown_by_itself(tmp_path: Path) -> None:
    write_fleet(tmp_path / "f", SERVERS[:1])
    done = in_process("fleet", "report", tmp_path / "f", "--html", tmp_path / "p.html")
    assert done.returncode == 0, done.stderr
    assert "one server is no sample" in done.stdout
    assert "forest-1" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{tmp}/none",), "there is no fleet weighing"),
        (("{tmp}",), "has no directory servers/"),
        (("{fleet}", "--margin", "1"), "percentage"),
        (("{fleet}", "--html", "{tmp}/none/p.html"), "there is no directory"),
    ],
)
def test_bad_input_is_one_sentence(
    fleet: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    filled = [one.format(tmp=tmp_path, fleet=fleet) for one in arguments]
    assert words in refused("fleet", "report", *filled)


def test_nothing_that_can_be_read_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "servers" / "db0").mkdir(parents=True)
    assert "no server has data" in refused("fleet", "report", tmp_path, status=1)


def test_names_steer_no_terminal(tmp_path: Path) -> None:
    write_fleet(tmp_path / "f", [MadeServer("db\x1b[31m0"), *SERVERS[:2]])
    done = in_process("fleet", "report", tmp_path / "f")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
