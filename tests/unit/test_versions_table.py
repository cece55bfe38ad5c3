"""What `make test-versions` sums up."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.versions.__main__ import Result, count, table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.server.test_a" name="test_one"/>
<testcase classname="tests.server.test_a" name="test_two"><skipped message="needs root"/></testcase>
<testcase classname="tests.server.test_a" name="test_three"><failure message="x"/></testcase>
<testcase classname="tests.server.test_b" name="test_four"><error message="y"/></testcase>
</testsuite></testsuites>"""


def test_tests_are_counted_with_the_reasons_of_those_skipped(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    result = Result(19, "19rc1")
    count(tmp_path / "report.xml", result)
    assert (result.passed, result.skipped, dict(result.reasons)) == (1, 1, {"needs root": 1})
    assert result.failed == ["test_a::test_three", "test_b::test_four"]
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table([result]))
    for wanted in ("19rc1", "1 × needs root", "FAILED test_a::test_three"):
        assert wanted in shown.get()
