"""What is kept of the command: everything but passwords."""

import sys

import pytest

from pgtare.cli.command_line import command_line


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["weigh", "-d", "5", "--dsn", "dbname=app"], ["weigh", "-d", "5", "--dsn", "dbname=app"]),
        (["--dsn", "host=a password=secret"], ["--dsn", "password=(hidden) host=a"]),
        (
            ["--dsn=postgresql://joe:secret@db/app"],
            ["--dsn=user=joe password=(hidden) dbname=app host=db"],
        ),
        (["--dsn", "postgresql://joe@db/app"], ["--dsn", "postgresql://joe@db/app"]),
        (["--dsn", "sslpassword=secret"], ["--dsn", "sslpassword=(hidden)"]),
        (["--dsn", "postgresql://joe:s/e#c@db/app"], ["--dsn", "(hidden)"]),
        (["--dsn", "postgresql://joe:s@e@db/app"], ["--dsn", "(hidden)"]),
        (["--dsn", "password='open"], ["--dsn", "(hidden)"]),
        (["--dsn"], ["--dsn"]),
        (["--server", "a: host=a password=s"], ["--server", "a: password=(hidden) host=a"]),
        (
            ["--server=a: postgresql://joe:s@db/x?password=t"],
            ["--server=a: user=joe password=(hidden) dbname=x host=db"],
        ),
        (["--server=a:  password = 's t' host=b"], ["--server=a: password=(hidden) host=b"]),
        (["--dsn", "oauth_client_secret=s"], ["--dsn", "oauth_client_secret=(hidden)"]),
        (["--dsn", "scram_client_key=s"], ["--dsn", "scram_client_key=(hidden)"]),
        (["--dsn", "sslkey=/k dbname=a"], ["--dsn", "sslkey=/k dbname=a"]),
        (
            ["--reload", "x: archive_command = 'curl -u me:s'"],
            ["--reload", "x: archive_command = (hidden)"],
        ),
        (["--reload", "x: ext.api_key = 'k'"], ["--reload", "x: ext.api_key = (hidden)"]),
        (["--reload", "x: work_mem = 5MB"], ["--reload", "x: work_mem = 5MB"]),
        (["--server", "host=a password=s"], ["--server", "(hidden)"]),
        (
            ["--server", "b:\thost=a password=s application_name='x: y'"],
            ["--server", "b: password=(hidden) host=a application_name='x: y'"],
        ),
        (["--server=b:\nhost=a password=s: t"], ["--server=b: (hidden)"]),
        (["--switch", "x:\tPGPASSWORD=s psql: | b"], ["--switch", "x: (hidden)"]),
        (["--server", "new: host=a dbname=app"], ["--server", "new: host=a dbname=app"]),
    ],
)
def test_passwords_are_not_kept(
    given: list[str], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pgtare", *given])
    assert command_line() == ["pgtare", *kept]
