"""What is left of a module's file if the command is ended while it is being put in place."""

import os
from pathlib import Path

import pytest

from pgtare.postgres import modules


def test_a_signal_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source.so"
    source.write_bytes(b"library")
    target = tmp_path / "lib" / "tiny.so"

    def ended(_: int) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(os, "fsync", ended)
    with pytest.raises(SystemExit):
        modules._install_file(source, target, 0o755)
    assert list(target.parent.iterdir()) == []
