"""Files of results: whose they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgtare.kit import files

SOMEBODY = 12_345


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_by_sudo_belongs_to_who_ran_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    files.write_text(tmp_path / "roots", "")
    assert (tmp_path / "roots").stat().st_uid == 0
    monkeypatch.setenv("SUDO_UID", str(SOMEBODY))
    monkeypatch.setenv("SUDO_GID", str(SOMEBODY + 1))
    files.write_text(tmp_path / "theirs", "")
    found = (tmp_path / "theirs").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (SOMEBODY, SOMEBODY + 1, 0o600)
    files.hand_over(tmp_path)
    assert (tmp_path / "roots").stat().st_uid == tmp_path.stat().st_uid == SOMEBODY


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
