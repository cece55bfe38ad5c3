"""Result directories: they come back as they went in, and are whole or not there."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.estimate.trial.design import MIXED, Design, Runs, Slices
from pgtare.estimate.trial.observations import empty
from pgtare.weighing.weigh import store
from tests.commands import refused
from tests.unit.sample_result import sample, save


@pytest.mark.parametrize("kind", ["usual", "runs", "slices", "mixed", "empty"])
def test_comes_back_as_it_went_in(tmp_path: Path, kind: str) -> None:
    drawn = sample(10)
    design, observations = drawn.design, drawn.observations
    if kind == "runs":
        design = dataclasses.replace(design, runs=Runs(1, 255))
    elif kind == "slices":
        slices = Slices((0, *range(len(design.arms))), 2_000, 9_000, 500)
        design = dataclasses.replace(design, slices=slices)
        observations["slice"] = np.arange(len(observations))
    elif kind == "mixed":
        design = Design(design.arms[:2], (0, 1), design.seed, Slices((0, 1, MIXED)))
        observations = observations[observations["arm"] < 2]
        drawn.result.arms = drawn.result.arms[:2]
    elif kind == "empty":
        observations = empty()
    store.save(tmp_path / "run", design, observations, drawn.result)
    found = store.load(tmp_path / "run")
    assert (found.design, found.result) == (design, drawn.result)
    assert found.observations.dtype == observations.dtype
    assert np.array_equal(found.observations, observations)


def test_other_tools_can_read_the_observations(tmp_path: Path) -> None:
    save(tmp_path / "run", 10)
    path = tmp_path / "run" / store.OBSERVATIONS_FILE
    expected = sample(10).observations
    with np.load(path) as columns:
        assert set(columns) == set(expected.dtype.names or ())
        assert np.array_equal(columns["service_ns"], expected["service_ns"])
    assert path.stat().st_size < expected.nbytes / 2


def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save(tmp_path / "run", 10)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    for name in store.FILES:
        assert stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) == 0o600


def test_refuses_a_directory_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother.txt").write_text("Dear")
    with pytest.raises(UsageError, match="not empty"):
        store.check_target(tmp_path / "letters")
    with pytest.raises(UsageError, match="not empty"):
        save(tmp_path / "letters", 10)
    assert os.listdir(tmp_path) == ["letters"]
    assert os.listdir(tmp_path / "letters") == ["to-mother.txt"]


def test_refuses_a_file_and_takes_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a directory"):
        save(tmp_path / "file", 10)
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", 10)
    store.load(tmp_path / "empty")


def test_ctrl_c_while_saving_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pgtare.kit.files.write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "run", 10)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_made_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for above in ("file", "deep"):
        with pytest.raises(UsageError, match=f"there is no directory .*{above}$"):
            store.check_target(tmp_path / above / "run")
    with pytest.raises(UsageError, match="cannot make /sys/run: /sys is not writable"):
        store.check_target(Path("/sys/run"))


@pytest.mark.parametrize("name", store.FILES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path / "run", 10)
    (tmp_path / "run" / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is missing|it lacks {name}"):
        store.load(tmp_path / "run")


@pytest.mark.parametrize("name", store.FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path / "run", 10)
    path = tmp_path / "run" / name
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-40], "empty": b"", "noise": b"\xff\x00" * 99}[damage])
    with pytest.raises(PgtareError, match=f"{name} is damaged") as caught:
        store.load(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_parts_of_different_trials_are_not_taken_for_one(tmp_path: Path) -> None:
    save(tmp_path / "run", 10)
    other = sample(5)
    store.save(tmp_path / "other", other.design, other.observations, other.result)
    os.replace(
        tmp_path / "other" / store.OBSERVATIONS_FILE, tmp_path / "run" / store.OBSERVATIONS_FILE
    )
    with pytest.raises(PgtareError, match=r"is damaged: observations\.npz holds"):
        store.load(tmp_path / "run")


def test_a_result_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "run", 10)
    path = tmp_path / "run" / store.RESULT_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"extra": 1}))
    with pytest.raises(PgtareError, match="extra"):
        store.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["it's", "run[1]", "a*b?", "naïve µs", "with space"])
def test_names_that_mean_something_to_others_are_only_names(tmp_path: Path, name: str) -> None:
    # "run[1]" as a pattern matches this one, which must not be read in its place.
    decoy = sample(5)
    store.save(tmp_path / "run1", decoy.design, decoy.observations, decoy.result)
    save(tmp_path / name, 10)
    assert len(store.load(tmp_path / name).observations) == len(sample(10).observations)


def earlier(directory: Path, name: str) -> None:
    """Make a result, one file of which is of the version before."""
    save(directory, 5)
    path = directory / name
    text = path.read_text()
    path.write_text(re.sub(r'/\d"', '/1"', text, count=1))
    assert path.read_text() != text


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("report",), store.RESULT_FILE),
        (("report",), store.DESIGN_FILE),
        (("bill",), store.RESULT_FILE),
    ],
)
def test_an_earlier_recording_is_refused_in_one_sentence(
    tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    earlier(tmp_path / "run", name)
    before = sorted(os.listdir(tmp_path / "run"))
    ours = 3 if name == store.DESIGN_FILE else 2
    assert refused(*command, tmp_path / "run") == (
        f"pgtare: {tmp_path / 'run' / name} was written in version 1 of the format and this "
        f"pgtare reads version {ours}: read it by the pgtare that wrote it\n"
    )
    assert sorted(os.listdir(tmp_path / "run")) == before  # no page of it
