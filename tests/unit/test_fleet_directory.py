"""The directory of a fleet weighing: what is written, what is refused, what never is there."""

from __future__ import annotations

import contextlib
from pathlib import Path

import jsonschema
import pytest

from pgtare.errors import UsageError
from pgtare.postgres.inventory import InventoryServer
from pgtare.weighing.fleet.directory import FleetDirectory, servers_of
from pgtare.weighing.fleet.state import FleetState
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.measurement import Weighing
from tests.commands import read, refused
from tests.fleet_data import DESIGN
from tests.json_documents import documents
from tests.unit import sample_result

INVENTORY = {
    "a": InventoryServer(dsn="host=db1 password=secret", labels={"env": "prod"}, weight=2),
    "b": InventoryServer(dsn="host=db2"),
}


def made(path: Path) -> FleetDirectory:
    state = FleetState(
        command=["pgtare"],
        created="2026-01-01T00:00:00+00:00",
        design=DESIGN,
        servers=servers_of(INVENTORY),
    )
    return FleetDirectory.create(path, state)


def ended(how: str, blocks: int) -> Weighing:
    """A trial with this number of blocks; how: what ended it."""
    given = sample_result.sample(blocks=blocks)
    design = given.result.design.model_copy(
        update={"stopped_by": how, "partial": how in ("interrupt", "server")}
    )
    result = given.result.model_copy(update={"design": design})
    return Weighing(result, given.observations, given.design)


def test_a_directory_is_read_again(tmp_path: Path) -> None:
    directory = made(tmp_path / "x")
    directory.state.of("a").state = "done"
    directory.save()
    again = FleetDirectory.open(tmp_path / "x")
    assert again.state == directory.state
    assert again.state.of("a").labels == {"env": "prod"}
    jsonschema.validate(read(tmp_path / "x" / "fleet.json"), documents()["pgtare.fleet/1"].schema)


def test_what_a_server_gave_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a kill comes, the earlier or the later is there when it is opened again."""
    directory = made(tmp_path / "x")
    directory.release()
    earlier, later = (sample_result.sample(blocks=blocks) for blocks in (20, 30))
    directory.keep("a", Weighing(earlier.result, earlier.observations, earlier.design))
    real, calls = Path.rename, []

    def killed(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) > allowed:
            raise KeyboardInterrupt
        return real(self, target)

    for allowed in (0, 1, 2, 3):
        calls.clear()
        monkeypatch.setattr(Path, "rename", killed)
        with contextlib.suppress(KeyboardInterrupt):
            directory.keep("a", Weighing(later.result, later.observations, later.design))
        monkeypatch.setattr(Path, "rename", real)
        FleetDirectory.resume(tmp_path / "x").release()
        rows = len(store.load(tmp_path / "x" / "servers" / "a").observations)
        assert rows in (len(earlier.observations), len(later.observations)), allowed
    assert rows == len(later.observations)
    assert directory.kept() == ["a"]


def test_a_lost_trial_takes_no_place_of_one_that_can_be_estimated(tmp_path: Path) -> None:
    directory = made(tmp_path / "x")
    whole, lost = ended("time", 30), ended("server", 20)
    assert directory.keep("a", lost)
    assert (directory.kept(), directory.usable()) == (["a"], [])
    assert directory.keep("a", lost)
    assert directory.keep("a", whole)
    assert directory.usable() == ["a"]
    assert not directory.keep("a", lost)
    kept = store.load(tmp_path / "x" / "servers" / "a")
    assert len(kept.observations) == len(whole.observations)


@pytest.mark.parametrize(
    ("kept", "blocks", "replaced"),
    [("time", 30, False), ("interrupt", 20, False), ("interrupt", 10, True), ("server", 30, True)],
)
def test_an_interrupted_trial_takes_no_place_of_a_better_one(
    tmp_path: Path, kept: str, blocks: int, replaced: bool
) -> None:
    """A canary that was resumed sees less than what was interrupted before."""
    directory = made(tmp_path / "x")
    assert directory.keep("a", ended(kept, blocks))
    assert directory.keep("a", ended("interrupt", 20)) == replaced
    assert directory.keep("a", ended("time", 5))


def test_nothing_that_connects_is_written(tmp_path: Path) -> None:
    made(tmp_path / "x")
    text = (tmp_path / "x" / "fleet.json").read_text()
    assert "secret" not in text
    assert "db1" not in text


def test_one_process_at_a_time_goes_on(tmp_path: Path) -> None:
    directory = made(tmp_path / "x")
    with pytest.raises(UsageError, match="another pgtare is weighing into"):
        FleetDirectory.resume(tmp_path / "x")
    FleetDirectory.open(tmp_path / "x")  # looking is free
    directory.release()
    again = FleetDirectory.resume(tmp_path / "x")
    with pytest.raises(UsageError, match="wait for its end"):
        FleetDirectory.resume(tmp_path / "x")
    again.release()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fleet weigh track_io_timing --out x", "--inventory"),
        ("fleet weigh track_io_timing --inventory {}", "give either --out or --resume"),
        ("fleet weigh --inventory {} --out x --resume y", "give either --out or --resume"),
        ("fleet weigh track_io_timing --inventory {} --resume x", "leave out instruments"),
        ("fleet weigh --inventory {} --resume x --harm 5% -d 9s", "leave out --duration, --harm"),
        ("fleet weigh --inventory {} --resume x --at-once 16 --yes", "leave out --at-once"),
        ("fleet weigh --inventory {} --resume {}.nowhere", "does not exist"),
        ("fleet weigh --inventory {} --out x --yes", "there is nothing to weigh"),
        ("fleet weigh nonsense --inventory {} --out x", "nonsense"),
        ("fleet weigh track_io_timing --inventory {} --out x --harm 0", "--harm"),
        ("fleet check --inventory {}.not", "cannot be read"),
        ("fleet doctor --inventory {} --interval 0.1s", "give 1s or more"),
    ],
)
def test_what_cannot_be_is_refused_at_once(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[servers.a]\ndsn = "host=127.0.0.1 port=1"\n')
    said = refused(line.replace("{}", str(path)))
    assert words in said
