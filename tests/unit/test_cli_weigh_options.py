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
