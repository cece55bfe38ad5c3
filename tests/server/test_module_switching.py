"""Switching between arms: only what differs is set, and the session's own value is an arm's too."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest

from pgtare.estimate.trial.design import Runs, Slices
from pgtare.estimate.trial.observations import UnitFlag
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.cluster import Cluster
from tests.module_sources import write_module
from tests.servers import weighable
from tests.sessions import bare_session, one, rows, setting
from tests.trials import MARKER, flagged, start, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: A setting that counts how often it is set.
COUNTING = r"""
#include "postgres.h"
#include "fmgr.h"
#include "utils/guc.h"
PG_MODULE_MAGIC;
void _PG_init(void);
static int value, times;
static void
assign_value(int newval, void *extra)
{
	times++;
}
void
_PG_init(void)
{
	DefineCustomIntVariable("counting.times", "", NULL, &times, 0, 0, PG_INT32_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("counting.value", "", NULL, &value, 0, 0, 1000,
							PGC_USERSET, 0, NULL, assign_value, NULL);
}
"""
#: The second and the third have one value of it, the first the session's own.
COUNTED: tuple[dict[str, str], ...] = (
    {},
    {"counting.value": "1"},
    {"counting.value": "1", MARKER: "1111kB"},
    {"counting.value": "2"},
)
#: In the base the session's own value.
ARMS: tuple[dict[str, str], ...] = ({}, {MARKER: "1111kB"}, {MARKER: "2222kB"})


@pytest.fixture(scope="module")
def counting_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_module(tmp_path_factory.mktemp("counting"), "counting", COUNTING)


@pytest.fixture(scope="module")
def counting(each_server: Binaries, counting_source: Path) -> Iterator[Cluster]:
    library = build_cached(each_server, "counting", counting_source).library
    with weighable(each_server, others=[library]) as cluster:
        yield cluster


@pytest.mark.parametrize("own", ["0", "1"])
def test_a_setting_is_set_where_the_next_arm_has_another_value_of_it(
    counting: Cluster, own: str
) -> None:
    """Not within a run, nor between arms with one value, the session's own or not."""
    values = [own, "1", "1", "2"]
    with bare_session(counting) as client:
        client.execute(f"SET counting.value = {own}")
        with trial(counting, COUNTED, runs=Runs(3, 6)) as running:
            client.execute("SELECT 1")
            seen = [
                rows(
                    client,
                    "SELECT current_setting('counting.value'),"
                    " current_setting('counting.times')::int",
                )[0]
                for _ in range(100)
            ]
            arms = running.observed(client, 100)["arm"]
    assert [value for value, _ in seen] == [values[arm] for arm in arms]
    anew = [values[a] != values[b] for a, b in zip(arms[1:], arms, strict=False)]
    assert list(np.diff([times for _, times in seen])) == anew
    assert 3 < sum(anew) < 30


def test_a_setting_is_not_set_again_within_a_slice(counting: Cluster) -> None:
    slices = Slices(kinds=(0, 1, 2, 3), min_us=5_000, max_us=9_000, guard_us=0)
    with trial(counting, COUNTED, slices=slices) as running, bare_session(counting) as client:
        times = [int(one(client, "SHOW counting.times")) for _ in range(500)]
        number = running.observed(client, 500)["slice"]
    again = np.diff(times)[np.diff(number) == 0]
    assert len(again) > 20
    assert not again.any()


def test_a_switch_within_a_run_costs_little(server: Cluster) -> None:
    """Next to one between arms with two dozen values, by medians."""
    with bare_session(server) as client:
        names = [
            name
            for (name,) in rows(
                client,
                "SELECT name FROM pg_settings WHERE name ~ '^(enable_|log_.*_stats)'"
                " AND vartype = 'bool' AND context IN ('user', 'superuser') ORDER BY 1 LIMIT 24",
            )
        ]
        arms: list[dict[str, str]] = [{}, dict.fromkeys(names, "off")]
        with trial(server, arms, runs=Runs(5, 5)) as running:
            for _ in range(401):
                client.execute("SELECT 1")
            found = running.observed(client, 400)
    begins = found["position"] == 0
    assert begins.sum() == 80
    assert 10 * np.median(found["switch_ns"][~begins]) < np.median(found["switch_ns"][begins])


def test_an_arm_gives_the_sessions_own_value_as_any_other(server: Cluster) -> None:
    with bare_session(server) as client, trial(server, ARMS):
        client.execute("SELECT 1")
        assert {setting(client) for _ in range(20)} == {
            (value, "interactive") for value in ("4MB", "1111kB", "2222kB")
        }


def test_every_setting_can_be_given_its_own_value(server: Cluster) -> None:
    query = "SELECT name, setting, source, reset_val FROM pg_settings ORDER BY name"
    with (
        bare_session(server, application_name="pgtare") as operator,
        bare_session(server) as client,
    ):
        left = [
            name
            for (name,) in rows(
                operator, "SELECT name FROM pg_settings WHERE context IN ('user', 'superuser')"
            )
        ]
        before = rows(client, query)
        tried = 0
        while left:
            chosen = left[:32]
            try:
                start(operator, settings=chosen, values=[None] * (2 * len(chosen)), duration=60.0)
            except psycopg.errors.InvalidParameterValue as ex:  # one that no arm can have
                found = re.search('"(.+)"', str(ex))
                assert found
                left.remove(found[1])
                continue
            client.execute("SELECT 1")
            during = rows(client, query)
            assert [row[1] for row in during] == [row[1] for row in before]
            assert {row[2] for row in during if row[0] in chosen} == {"interactive"}
            assert one(operator, "SELECT failed_arms FROM pgtare.trial_status()") == []
            operator.execute("SELECT pgtare.trial_stop()")
            del left[:32]
            tried += len(chosen)
        assert tried > 150
        assert rows(client, query) == before


@pytest.mark.parametrize(
    ("statements", "own"),
    [
        (["SET {0} = '3000kB'"], "3000kB"),
        (["SET {0} = '1111kB'"], "1111kB"),
        (["SET {0} = '3000kB'; SELECT 1"], "3000kB"),
        (["BEGIN", "SET LOCAL {0} = '3000kB'", "COMMIT"], "4MB"),
        (["BEGIN", "SET {0} = '3000kB'", "ROLLBACK"], "4MB"),
        (["BEGIN", "RESET {0}", "COMMIT"], "4MB"),
        (["RESET {0}"], "4MB"),
        (["RESET ALL"], "4MB"),
        (["DISCARD ALL"], "4MB"),
    ],
    ids=lambda value: ";".join(value) if isinstance(value, list) else "",
)
def test_the_arm_is_in_force_again_after_a_change_in_the_middle_of_a_run(
    server: Cluster, statements: list[str], own: str
) -> None:
    """And the session has what it set itself, in the base and after the trial."""
    counted = statements[0] not in ("RESET {0}", "RESET ALL", "DISCARD ALL")
    with bare_session(server) as client:
        with trial(server, ARMS, runs=Runs(9, 9)) as running:
            client.execute("SELECT 1")
            seen = []
            for _ in range(15):
                for statement in statements:
                    client.execute(statement.format(MARKER).encode())
                seen.append([one(client, f"SHOW {MARKER}") for _ in range(2)])
            found = running.observed(client, 15 * (2 + counted)).reshape(15, -1)
        assert setting(client) == (own, "default" if own == "4MB" else "session")
    values = [own, "1111kB", "2222kB"]
    assert seen == [[values[arm] for arm in arms[counted:]] for arms in found["arm"]]
    changed = found["flags"] & UnitFlag.APP_CHANGED != 0
    assert changed.tolist() == [[True] * counted + [False] * 2] * 15


@pytest.fixture
def file_value(server: Cluster) -> Iterator[None]:
    yield
    server.configure({MARKER: None})
    server.reload()


@pytest.mark.parametrize("own", [None, "3000kB"])
def test_a_value_that_is_reloaded_in_a_run_is_the_bases(
    server: Cluster, file_value: None, own: str | None
) -> None:
    """From the transaction after the reload on; not where the session has a value of its own."""
    query = (
        f"SELECT current_setting(name), reset_val || unit FROM pg_settings WHERE name = '{MARKER}'"
    )
    with bare_session(server) as client:
        if own:
            client.execute(f"SET {MARKER} = '{own}'")
        with trial(server, ARMS, runs=Runs(20, 20)) as running:
            client.execute("SELECT 1")
            seen = []
            for number in range(120):
                if number % 20 == 10:
                    server.configure({MARKER: f"{5000 + number}kB"})
                    server.reload()
                seen += rows(client, query)
            found = running.observed(client, 120)
        reloaded = flagged(found, UnitFlag.RELOADED)
        assert 0 < sum(reloaded) <= 6
        for (value, in_file), arm, unsure in zip(seen, found["arm"], reloaded, strict=True):
            base = own or in_file.replace("4096kB", "4MB")
            assert unsure or value == [base, "1111kB", "2222kB"][arm]
        assert setting(client) == ((own, "session") if own else ("5110kB", "configuration file"))
        client.execute(f"RESET {MARKER}")
        assert setting(client) == ("5110kB", "configuration file")
