"""Results on disk, all four kinds: complete or absent, and one sentence for what is wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pgtare.errors import DiskFull, MeasurementError, PgtareError, UsageError
from pgtare.kit.artefact import ArtefactKind, Staged
from tests.small_volume import fill, small_volume
from tests.unit.artefacts import KINDS, Made, clear

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
KIND = ArtefactKind("thing of `pgtare test`", "thing.json", "pgtare.thing/3")


@every_kind
def test_comes_back_and_is_not_overwritten(tmp_path: Path, kind: Made) -> None:
    kind.write(tmp_path / "r")
    before = kind.read(tmp_path / "r")
    if kind.what.startswith("study"):
        return  # it goes on
    with pytest.raises(UsageError, match=r"exists already|already holds"):
        kind.write(tmp_path / "r")
    assert kind.read(tmp_path / "r") == before
    assert os.listdir(tmp_path) == ["r"]


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, 47) for name in ("weigh", "trace")),  # the others are written as these are
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in KINDS),
    ],
)
def test_killed_at_any_call_it_is_complete_or_absent(tmp_path: Path, name: str, every: int) -> None:
    kind = KINDS[name]
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.artefacts", name, tmp_path, str(every)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps >= (2 if name == "trace" else 5)  # a trace is one file that grows
    whole = kind.read(tmp_path / str(steps) / "r")
    absent = 0
    for step in range(0, steps, every):
        place = tmp_path / str(step) / "r"
        try:
            found = kind.read(place)
        except UsageError:  # never damaged
            absent += 1
            kind.write(place)
            found = kind.read(place)
            assert os.listdir(place.parent) == ["r"], step
        if not kind.grows:
            assert found == whole, step
    assert absent > 0


@every_kind
def test_nothing_there(tmp_path: Path, kind: Made) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        kind.read(tmp_path / "nowhere")
    assert kind.what in clear(str(caught.value))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no") as caught:
        kind.read(tmp_path / "empty")
    assert kind.what in clear(str(caught.value))


@every_kind
@pytest.mark.parametrize("other", KINDS.values(), ids=list(KINDS))
def test_another_kind(tmp_path: Path, kind: Made, other: Made) -> None:
    if kind is other:
        return
    other.write(tmp_path / "r")
    with pytest.raises(UsageError, match="holds no") as caught:
        kind.read(tmp_path / "r")
    assert kind.what in clear(str(caught.value))


@every_kind
def test_a_later_version(tmp_path: Path, kind: Made) -> None:
    kind.write(tmp_path / "r")
    path = tmp_path / "r" / kind.document
    path.write_bytes(kind.later(path.read_bytes()))
    with pytest.raises(UsageError, match=r"version \d+ .* this pgtare reads version"):
        kind.read(tmp_path / "r")


@every_kind
@pytest.mark.parametrize("left", [0, 20, 0.5])
def test_a_truncated_document(tmp_path: Path, kind: Made, left: float) -> None:
    kind.write(tmp_path / "r")
    before = kind.read(tmp_path / "r")
    path = tmp_path / "r" / kind.document
    data = path.read_bytes()
    path.write_bytes(data[: int(left if left >= 1 else left * len(data))])
    if not kind.document and left:
        assert kind.read(tmp_path / "r") != before  # what is left of it
        return
    with pytest.raises(PgtareError, match=r"is damaged|is empty") as caught:
        kind.read(tmp_path / "r")
    assert path.name in clear(str(caught.value))


@every_kind
def test_a_full_disk(as_root: None, kind: Made) -> None:
    with small_volume("size=256k") as place:
        fill(place)
        with pytest.raises(DiskFull, match="free some space") as caught:
            kind.write(place / "r")
        assert "r" in clear(str(caught.value))
        if not kind.grows:
            assert str(place / "r") in str(caught.value)
            assert os.listdir(place) == ["others"]
        with pytest.raises(UsageError):
            kind.read(place / "r")


@every_kind
def test_a_volume_that_is_read_only(as_root: None, kind: Made) -> None:
    with (
        small_volume("size=256k,ro") as place,
        pytest.raises((UsageError, MeasurementError), match=r"Read-only"),
    ):
        kind.write(place / "r")


def test_a_place_that_cannot_be_renamed_over_is_refused_first(as_root: None) -> None:
    with small_volume("size=256k") as place, pytest.raises(UsageError, match="mount point"):
        Staged(place, KIND)


def test_what_somebody_writes_is_not_taken_for_a_left_over(tmp_path: Path) -> None:
    first = Staged(tmp_path / "r", KIND)
    (first.path / "part").touch()
    left_over = tmp_path / ".r.partial-killed"
    left_over.mkdir()
    second = Staged(tmp_path / "r", KIND)
    assert (first.path / "part").exists()
    assert not left_over.exists()
    second.discard()
    first.commit()
    assert os.listdir(tmp_path) == ["r"]


def test_a_rename_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    staged = Staged(tmp_path / "r", KIND)
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(MeasurementError, match="could not be written: Input/output error"):
        staged.commit()
    staged.discard()
    assert os.listdir(tmp_path) == []


def test_another_version_and_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    for schema, message in (
        ("pgtare.thing/2", "in version 2 of the format and this pgtare reads version 3"),
        ("pgtare.other/3", "its schema is 'pgtare.other/3'"),
        (None, "its schema is None"),
    ):
        path.write_text(f'{{"schema": {f"{chr(34)}{schema}{chr(34)}" if schema else "null"}}}')
        with pytest.raises(UsageError, match=message):
            KIND.open(tmp_path)
