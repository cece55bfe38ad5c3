"""--json and --output: one document, on standard output or in a file, and nothing else with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.kit import files
from tests.commands import in_process, refused

DRY_RUN = ("weigh", "track_io_timing", "--dry-run")
STUDY = Path(__file__).parents[2] / "studies" / "wait_event_timing.toml"


def test_output_writes_the_document_and_the_table_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    plain = in_process("instruments")
    for options in ([], ["--json"]):
        done = in_process("instruments", "--output", path, *options)
        assert done.stdout == f"JSON: {path}\n" + plain.stdout
        assert path.read_text() == in_process("instruments", "--json").stdout


@pytest.mark.parametrize("command", [DRY_RUN, ("ladder", str(STUDY), "--dry-run")])
def test_a_plan_is_words(command: tuple[str, ...], tmp_path: Path) -> None:
    for option in ("--json", f"--output={tmp_path / 'p.json'}"):
        assert "--dry-run has no document: leave out --json" in refused(*command, option)


@pytest.mark.parametrize(
    ("command", "option", "bad", "message"),
    [
        (DRY_RUN, "--output", "/nowhere/w.json", "there is no directory /nowhere"),
        (DRY_RUN, "--output", "-", "cannot write -: name a file"),
        (("weigh", "track_io_timing"), "--output", "/sys/w.json", "/sys is not writable"),
        (("clock",), "--output", "/nowhere/c.json", "there is no directory /nowhere"),
        (("clock",), "--output", f"/tmp/{'x' * 300}", "File name too long"),  # noqa: S108
        (("weigh", "track_io_timing"), "--out", f"/tmp/{'x' * 300}", "File name too long"),  # noqa: S108
        (("instruments",), "--output", "/nowhere/i.json", "there is no directory /nowhere"),
        (("report", "/nowhere"), "--html", "/nowhere/r.html", "cannot write /nowhere/r.html"),
        (("doctor", "--dsn", "host=/nowhere"), "--output", "/nowhere/d", "cannot write"),
        (("waits", "top", "--dsn", "host=/nowhere"), "--output", "/nowhere/d", "cannot write"),
        (("trace", "profile", "/nowhere"), "--output", "/nowhere/d", "cannot write"),
        (("trace", "report", "/nowhere"), "--html", "/nowhere/d", "cannot write"),
        (("flame", "on", "--pid", "1"), "--output", "/nowhere/d", "cannot write"),
        (("weigh", "track_io_timing"), "--out", "/sys/d/e", "cannot make"),
        (("weigh", "track_io_timing"), "--out", "/etc/passwd/x", "there is no directory"),
        (("ladder", str(STUDY)), "--output", "/nowhere/d", "cannot write"),
        (("ladder", str(STUDY)), "--out", "/sys/d", "Operation not permitted"),
    ],
)
def test_a_target_is_refused_before_anything_is_measured(
    command: tuple[str, ...], option: str, bad: str, message: str
) -> None:
    done = in_process(*command, option, bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_device_is_a_target() -> None:
    files.check_target(Path("/dev/null"))


@pytest.mark.parametrize(
    ("words", "help_of"),
    [
        (("clock", "--json", "x.json"), "pgtare clock"),
        (("clock", "--jsno"), "pgtare clock"),
        (("clock", "--duration"), "pgtare clock"),
        (("waits", "topp"), "pgtare waits"),
        (("clok",), "pgtare"),
    ],
)
def test_a_misspelt_command_line_names_its_own_help(words: tuple[str, ...], help_of: str) -> None:
    done = in_process(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"See `{help_of} --help`." in done.stderr
    assert done.stderr.count("\n") == 1
