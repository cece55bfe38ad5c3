"""`pgtare weigh`: options that cannot be meant are refused before a server is asked."""

from __future__ import annotations

import pytest

from tests.commands import refused

#: Nothing listens here.
NOWHERE = ["--dsn", "host=/nowhere", "--outside", "track_io_timing"]


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("--at-most", "give a percentage over 0 and below 1000"),
        ("--budget", "give a percentage over 0 and below 1000"),
        ("--precision", "give a percentage"),
        ("--slice-ms", "the shortest and the longest slice"),
        ("--window", "--window and --period are for"),
        ("--rate", "--rate drives a load"),
    ],
)
def test_an_empty_option_is_not_taken_for_one_that_is_missing(option: str, wanted: str) -> None:
    assert wanted in refused("weigh", *NOWHERE, "track_functions", option, "")


@pytest.mark.parametrize("option", [["--arm"], []])
@pytest.mark.parametrize(
    "dsn",
    [
        "host=a password=hunter2",
        "a: password = hunter2",
        "host:5432 user=me password='hunter2'",
        "postgresql://joe:hunter2@db/app",
        "service=a sslpassword=hunter2",
    ],
)
def test_a_connection_string_at_the_wrong_place_is_not_repeated(
    option: list[str], dsn: str
) -> None:
    sentence = refused("weigh", *option, dsn, "--dsn", "host=/nowhere")
    assert "looks like a connection string: give it with --dsn" in sentence
    assert "hunter2" not in sentence


def test_a_wrong_choice_is_repeated_as_it_was_given() -> None:
    sentence = refused("weigh", "--load", "Value error, all")
    assert "Invalid value for '--load': 'Value error, all' is not one of 'select-only'" in sentence


@pytest.mark.parametrize("setting", ["search_path = app", "TimeZone = UTC"])
def test_what_clients_of_an_application_would_see_is_weighed_from_outside_only(
    setting: str,
) -> None:
    assert "with pgtare weigh --outside" in refused("weigh", "--arm", f"x: {setting}")
    sentence = refused("weigh", "--arm", f"x: {setting}", *NOWHERE, status=1)
    assert "cannot connect to the server" in sentence
