"""`pgtare report`: where it writes the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import in_process
from tests.fleet_data import MadeServer, write_fleet


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A result of `pgtare weigh --out`, with its page."""
    write_fleet(tmp_path / "fleet", [MadeServer("one", units=300)])
    found = tmp_path / "fleet" / "servers" / "one"
    (found / "report.html").write_text("of the recording")
    return found


def test_another_margin_leaves_the_page_of_the_recording(result: Path) -> None:
    done = in_process("report", result, "--margin", "1%")
    assert done.returncode == 0, done.stderr
    assert (result / "report.html").read_text() == "of the recording"
    page = result / "report-margin-1pct.html"
    assert f"page: {page}" in done.stdout + done.stderr
    assert "</html>" in page.read_text()


def test_without_one_the_page_is_made_anew(result: Path) -> None:
    assert in_process("report", result).returncode == 0
    assert "</html>" in (result / "report.html").read_text()
    assert not list(result.glob("report-margin*"))


def test_the_table_is_printed_where_no_page_can_be_written(result: Path) -> None:
    """As of an archive that only root may write to."""
    (result / "report.html").unlink()
    (result / "report.html").mkdir()  # root may write to all that is writable
    (result / "report.html" / "kept").touch()
    done = in_process("report", result)
    assert done.returncode == 1
    assert "when left on" in done.stdout
    assert "--html FILE writes the page to another place" in done.stderr
