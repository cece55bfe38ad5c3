"""What pgtare makes and removes below its directory: nothing that somebody else has put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.postgres import directories, leftovers, registry


def test_a_directory_with_somebodys_servers_is_refused(own_place: Path) -> None:
    theirs = own_place / "servers" / "web1" / "file"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    with pytest.raises(UsageError, match="has servers, which pgtare did not make: set PGTARE_DIR"):
        registry.sweep()
    assert list(leftovers.own_files()) == []
    assert theirs.exists()


def test_only_servers_of_pgtares_own_are_swept(own_place: Path) -> None:
    servers = registry.servers_directory()
    theirs = servers / "web1" / "file"
    theirs.parent.mkdir()
    theirs.touch()
    ours = servers / "0123456789ab"
    ours.mkdir()
    assert registry.sweep() == [ours]
    assert theirs.exists()
    (servers / "web1" / "file").unlink()
    (servers / "web1").rmdir()
    (own_place / "mine.c").touch()
    (left,) = leftovers.own_files()
    assert left.remove is not None
    with pytest.raises(PgtareError, match=r"mine\.c in it is not of pgtare"):
        left.remove()
    assert {path.name for path in own_place.iterdir()} == {"mine.c", directories.MARK}


def test_the_usual_place_needs_no_mark(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of an earlier version."""
    monkeypatch.delenv(directories.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setattr(directories, "_chosen", lambda: open_directory / "pgtare")
    (open_directory / "pgtare" / "servers").mkdir(parents=True)
    assert directories.existing() == open_directory / "pgtare"
    assert directories.place("modules") == open_directory / "pgtare" / "modules"


def test_the_directory_of_root_is_named_to_others(
    own_place: Path, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = open_directory / "root"
    monkeypatch.setattr(directories, "ROOT_DIRECTORY", roots)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    assert directories.of_others() == []
    (roots / "servers").mkdir(parents=True)
    (left,) = leftovers.own_files()
    assert left.what == f"{roots} of root"
    assert left.remove is not None
    with pytest.raises(PgtareError, match="run the command as root"):
        left.remove()
