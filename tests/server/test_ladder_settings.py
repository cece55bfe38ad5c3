"""A study's settings are tried on its servers before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.weighing.ladder import settings_check
from pgtare.weighing.ladder.directory import Directory
from pgtare.weighing.ladder.study_file import parse
from tests.commands import failed, in_process, refused

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

STUDY = """
title = "Settings"
[servers]
main = {server}
[protocol]
rounds = 6
run = "1s"
[analysis]
floor = "plain"
[[variant]]
name = "plain"
{plain}
[[variant]]
name = "timed"
preload = ["wait_event_timing"]
{timed}
[[comparison]]
arm = "timed"
base = "plain"
[[workload]]
name = "W1"
scale = 1
{workload}
"""
WHEEL = '{ source = "wheel" }'


def write(folder: Path, server: str = WHEEL, **parts: str) -> Path:
    study = folder / "study.toml"
    filled = {"plain": "", "timed": "", "workload": ""} | parts
    study.write_text(STUDY.format(server=server, **filled))
    return study


@pytest.mark.slow
def test_settings_that_servers_do_not_take_are_refused_by_name(
    tmp_path: Path, wheel: Binaries
) -> None:
    study = write(
        tmp_path,
        plain='settings = { "auto_explain.log_timing" = true, wrok_mem = "4MB" }\n'
        'runtime = { shared_buffers = "1GB", autovacuum_naptime = "0s" }',
        timed='settings = { block_size = 4096, wal_level = "full" }\n'
        'runtime = { "wait_event_timing.captre" = "stats" }',
        workload='settings = { random_page_cost = "cheap" }',
    )
    lines = refused("ladder", study, "--dry-run").splitlines()
    expected = {
        "variant plain: this server has no setting auto_explain.log_timing": "load the library",
        "variant plain: this server has no setting wrok_mem": "(did you mean work_mem?)",
        "variant plain: shared_buffers is fixed when the server starts": "put it into settings",
        'variant plain: 0 s is outside the valid range for parameter "autovacuum_naptime"': (
            "correct autovacuum_naptime in the study file"
        ),
        "variant timed: block_size is fixed when PostgreSQL is built": "remove it",
        'variant timed: invalid value for parameter "wal_level": "full"': (
            "Available values: minimal, replica, logical"
        ),
        "variant timed: this server has no setting wait_event_timing.captre": (
            "check the name (did you mean wait_event_timing.capture"
        ),
        'workload W1: invalid value for parameter "random_page_cost"': "correct random_page_cost",
    }
    for what, next_step in expected.items():
        (line,) = [line for line in lines if what in line]
        assert next_step in line
    assert len(lines) == len(expected)

    again = refused("ladder", study, "--out", tmp_path / "out")  # nor is it begun
    assert again.splitlines() == lines
    assert not Directory(tmp_path / "out").begun


def test_settings_of_libraries_are_known_however_they_are_loaded(
    tmp_path: Path, wheel: Binaries
) -> None:
    study = write(
        tmp_path,
        plain='settings = { session_preload_libraries = "auto_explain" }\n'
        'runtime = { "auto_explain.log_timing" = false, "plpgsql.check_asserts" = false }',
        timed='runtime = { "wait_event_timing.capture" = "stats", log_destination = "stderr" }',
        workload='settings = { "wait_event_timing.hooks" = true, wal_level = "logical" }',
    )
    done = in_process("ladder", study, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "timed against plain" in done.stdout


@pytest.mark.debian
def test_what_an_installation_lacks_is_reported(tmp_path: Path, debian15: Binaries) -> None:
    server = f'{{ pg_config = "{debian15.pg_config}" }}'

    def check(library: str, scale: int = 1) -> None:
        plain = f'preload = ["wait_event_timing", "{library}"]'
        text = write(tmp_path, server, plain=plain).read_text()
        text = text.replace("scale = 1", f"scale = {scale}")
        settings_check.check_installations(parse(text, "study.toml"))

    check("pg_stat_statements")
    with pytest.raises(UsageError, match=r"'pg_stat_statments'.*did you mean pg_stat_statements"):
        check("pg_stat_statments")
    with pytest.raises(UsageError, match="lower the scales, or let PGTARE_DIR name a larger disk"):
        check("pg_stat_statements", scale=21_474)


@pytest.mark.slow
@pytest.mark.debian
def test_an_installed_server_is_asked_as_well(tmp_path: Path, debian15: Binaries) -> None:
    server = f'{{ pg_config = "{debian15.pg_config}" }}'
    study = write(tmp_path, server, plain="settings = { io_method = 'sync' }")  # new in 18
    assert "variant plain: this server has no setting io_method" in refused(
        "ladder", study, "--dry-run"
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param(
            "SELECT version()",
            "the query of the figure x gives 'PostgreSQL 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "SELECT 'NaN'::float",
            "the query of the figure x gives nan, which is no number",
            marks=pytest.mark.slow,
        ),
        ("SELECT 1 FROM nowhere", 'the figure x cannot be read: relation "nowhere" does not'),
    ],
)
def test_a_query_that_gives_no_number_ends_a_study_before_it_is_run(
    tmp_path: Path, wheel: Binaries, query: str, expected: str
) -> None:
    figure = f'[[workload.figure]]\nname = "x"\nunit = "1/s"\nquery = "{query}"'
    study, out = write(tmp_path, workload=figure), tmp_path / "out"
    message = failed(in_process("ladder", study, "--out", out), 1)
    assert "the variant plain cannot start: " in message
    assert expected in message
    assert not Directory(out).runs()
