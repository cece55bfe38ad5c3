"""`pgtare weigh --out`: a result is kept, whatever becomes of what is printed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgtare.cli import weigh


def test_it_is_written_before_anything_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(weigh.store, "save", lambda *_: kept.append("result"))
    monkeypatch.setattr(weigh, "write_page", lambda *_: kept.append("page"))
    monkeypatch.setattr(weigh, "render", gone)
    done = cast(Any, SimpleNamespace(design=None, observations=None, result=None))
    with pytest.raises(BrokenPipeError):
        weigh._deliver(done, cast(Any, SimpleNamespace(printed=False)), tmp_path, None, False)
    assert kept == ["result", "page"]
