"""Files of results: whose they are."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from pgtare.errors import DiskFull
from pgtare.kit import artefact, files

SOMEBODY = 12_345


@pytest.fixture
def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of SOMEBODY, who runs us by sudo."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, SOMEBODY, SOMEBODY + 1)
    monkeypatch.setenv("SUDO_UID", str(SOMEBODY))
    monkeypatch.setenv("SUDO_GID", str(SOMEBODY + 1))
    return home


KIND = artefact.ArtefactKind("thing", "thing.json", "thing/1")


def test_what_root_writes_by_sudo_belongs_to_who_ran_it(
    caller: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_text(caller / "theirs", "")
    found = (caller / "theirs").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (SOMEBODY, SOMEBODY + 1, 0o600)
    with artefact.new_directory(caller / "kept", KIND, "kept") as place:
        files.write_text(place / "thing.json", "{}")
    for path in (caller / "kept", caller / "kept" / "thing.json"):
        assert path.stat().st_uid == SOMEBODY
    monkeypatch.delenv("SUDO_UID")
    files.write_text(caller / "roots", "")
    assert (caller / "roots").stat().st_uid == 0


def test_nothing_is_given_away_where_the_caller_could_not_have_made_it(
    caller: Path, tmp_path: Path
) -> None:
    """A link of the caller's leads to /etc/cron.d, for example."""
    (tmp_path / "roots").mkdir()
    (caller / "link").symlink_to(tmp_path / "roots")
    files.write_text(caller / "link" / "file", "")
    with artefact.new_directory(caller / "link" / "kept", KIND, "kept") as place:
        files.write_text(place / "thing.json", "{}")
    for path in ("file", "kept", "kept/thing.json"):
        assert (tmp_path / "roots" / path).stat().st_uid == 0


def test_another_directory_under_the_name_of_ours_is_not_given_away(
    caller: Path, tmp_path: Path
) -> None:
    """Nor is a file of root's that was linked into it."""
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots" / "shadow").write_text("")
    staged = artefact.Staged(caller / "kept", KIND)
    (staged.path / "thing.json").write_text("{}")
    (staged.path / "shadow").hardlink_to(tmp_path / "roots" / "shadow")
    staged.path.rename(caller / "away")
    (tmp_path / "roots").rename(staged.path)
    staged.commit()
    assert (caller / "kept" / "shadow").stat().st_uid == 0
    assert (caller / "kept").stat().st_uid == 0
    assert (caller / "away" / "thing.json").stat().st_uid == SOMEBODY


def test_a_file_is_replaced_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    files.write_text(path, "old")
    files.write_text(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="the disk is full"):
        files.write_text(path, "newer")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """So would a device: under root /dev/null could be replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_text(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_limit_that_the_kernel_made_smaller_since_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr("pgtare.kit.files.resource.setrlimit", refused)
    assert files.raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
