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
    ],
)
def test_passwords_are_not_kept(
    given: list[str], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pgtare", *given])
    assert command_line() == ["pgtare", *kept]
