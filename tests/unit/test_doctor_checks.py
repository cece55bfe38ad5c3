"""The doctor's arithmetic and patterns, without a server."""

from __future__ import annotations

import functools
import io
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from pgtare.observing.doctor import check_statements, churn, evictions, queries
from pgtare.observing.doctor import show as doctor_show
from pgtare.observing.doctor.collect import preload, read_texts
from pgtare.observing.doctor.examine import time_by_event
from pgtare.observing.doctor.model import Server, Statements, Waits
from pgtare.observing.doctor.observed import (
    ActivitySamples,
    CountedWaits,
    DoctorFacts,
    Extension,
    Look,
    StatementEntries,
    wait_profile,
)
from pgtare.observing.findings import limits
from pgtare.observing.findings import queries as queries_of_findings
from pgtare.observing.findings.finding_parts import spent
from pgtare.observing.findings.observation import ServerState, Slot
from pgtare.observing.findings.queries import Query
from pgtare.observing.findings.read import Unreadable
from pgtare.observing.findings.statement_texts import reset
from pgtare.postgres.wait_counters.model import Event
from tests.processor_time import least_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOCK = check_statements.LOCK_EVENT
LOCK_WAIT = Event("LWLock", "pg_stat_statements", False)
SERVER = Server(
    version="18.6", standby=False, started=NOW, database="app", role="monitor", sees_all=True
)
DOCS = Path(__file__).parents[2] / "docs" / "questions.md"


def texts(*lines: str, calls: int = 1) -> list[churn.StatementEntry]:
    return [churn.StatementEntry(10, 5, line, calls) for line in lines]


def only(found: list[churn.Family]) -> churn.Family:
    (family,) = found
    return family


def test_temporary_tables_are_reported_by_their_making() -> None:
    lines = ["CREATE TEMP TABLE work (a int)", *["SELECT a FROM work WHERE a = $1"] * 12]
    family = only(churn.families(texts(*lines)))
    assert (family.kind, family.members) == ("temporary tables", 12)


def test_families_are_shown_without_what_was_sent() -> None:
    """Of utility statements the table has the text as sent."""
    lines = [f"ALTER TABLE t{n} OWNER TO a /* for Alice */" for n in range(12)]
    lines += ["DO $$BEGIN PERFORM 'Alice'; END$$", "SELECT E'it\\'s Alice'"] * 12
    for family in churn.families(texts(*lines)):
        assert "Alice" not in family.pattern + family.example


def test_comments_are_read_once() -> None:
    """Those that are cut off, too, however many begins of comments are in them."""
    took = []
    for n in (20_000, 80_000):
        look = functools.partial(churn.families, texts("SELECT a " + "/* b " * (n // 5)))
        took.append(least_s(look))
        assert look() == []
    assert took[1] < 9 * took[0] + 0.05


def test_one_text_of_many_identities() -> None:
    family = only(churn.families(texts(*["SELECT a FROM orders WHERE a = $1"] * 12, calls=3)))
    assert family.kind == "tables made anew, or one text in many schemas"
    assert (family.members, family.calls) == (12, 36)


def test_lists_of_values() -> None:
    lines = [
        f"SELECT * FROM t WHERE a IN ({', '.join(f'${i + 1}' for i in range(n))})"
        for n in range(1, 14)
    ]
    found = churn.families(texts(*lines))
    assert found[0].kind == "lists of values"
    assert found[0].members >= 12
    rows = [
        f"INSERT INTO t VALUES {', '.join(['($1, $2)'] * n)}" for n in range(2, 14)
    ]  # as many rows as came together
    assert only(churn.families(texts(*rows))).kind == "lists of values"


def test_lists_longer_than_what_is_fetched() -> None:
    """Cut texts are alike, which does not make them one text of many tables."""
    for first in (2, 250):
        rows = [
            f"INSERT INTO t VALUES {', '.join(f'(${2 * i + 1}, ${2 * i + 2})' for i in range(n))}"
            for n in range(first, 300)
        ]
        cut = [text[: queries.TEXT_CHARACTERS] for text in rows]
        family = only(churn.families(texts(*cut)))
        assert (family.kind, family.members) == ("lists of values", 300 - first)
    long = "SELECT a FROM orders WHERE b = $1 AND " + "x" * queries.TEXT_CHARACTERS
    same = texts(*[long[: queries.TEXT_CHARACTERS]] * 12)
    assert only(churn.families(same)).kind.startswith("tables made anew")


def test_numbered_names() -> None:
    family = only(churn.families(texts(*[f"SELECT $1 FROM t{n}" for n in range(50)])))
    assert (family.kind, family.members) == ("numbered names", 50)
    assert family.pattern == "SELECT ? FROM t#"


def test_schemas() -> None:
    names = [f"{a}{b}" for a in "abcd" for b in "xyz"]
    lines = [f"SELECT total FROM {name}.orders WHERE id = $1" for name in names]
    assert only(churn.families(texts(*lines))).kind == "schemas"


def test_utility_statements_and_comments() -> None:
    lines = [f"SAVEPOINT sp_{n}" for n in range(20)]
    assert only(churn.families(texts(*lines))).kind == "utility statements"
    lines = [f"/* request {n} */ FETCH ALL FROM c" for n in range(20)]
    assert only(churn.families(texts(*lines))).kind == "utility statements"
    lines = [f"/* request {n} */ SELECT a FROM t" for n in range(20)]
    assert only(churn.families(texts(*lines))).kind == "comments"


@pytest.mark.parametrize(
    ("roles", "databases", "kind"),
    [
        (20, 1, "one role for each tenant"),
        (20, 20, "one role for each tenant"),
        (1, 20, "one database for each tenant"),
        (4, 1, None),
    ],
)
def test_tenants(roles: int, databases: int, kind: str | None) -> None:
    """Each runs the same statements, none of which fills the table by itself."""
    columns = "abcdefghijklmnopqrstuvwxyz"
    entries = [
        churn.StatementEntry(n % roles, n % databases, f"SELECT {column} FROM orders", 1)
        for column in columns
        for n in range(max(roles, databases))
    ]
    found = churn.families(entries)
    assert [(one.kind, one.members) for one in found] == ([(kind, 520)] if kind else [])


def test_unlike_statements_are_no_family() -> None:
    words = ("alpha", "beta", "gamma", "delta", "eps", "zeta", "eta", "theta", "iota", "kappa")
    lines = [f"SELECT {a} FROM {b}" for a in words[:5] for b in words[5:]]
    assert churn.families(texts(*lines)) == []


def test_every_kind_has_a_remedy() -> None:
    kinds = {"temporary tables", "utility statements", *(kind for kind, _ in churn._STEPS)}
    named = kinds - {"identical", "literals"} | {churn.ROLES, churn.DATABASES}
    assert named | {"tables made anew, or one text in many schemas"} == set(churn.REMEDIES)


def test_sweeps_of_sizes_between_those_measured() -> None:
    for size, us in evictions.MEASURED_US.items():
        assert evictions.sweep_s(size) == pytest.approx(us / 1e6)
    assert evictions.sweep_s(100) < evictions.sweep_s(200) < evictions.sweep_s(400)
    assert evictions.sweep_s(100_000) > 1.5 * evictions.sweep_s(50_000)
    assert (evictions.victims(100), evictions.victims(200), evictions.victims(5000)) == (
        10,
        10,
        250,
    )
    rate = evictions.ONE_PERCENT_EVICTED_S[1000]
    assert evictions.lost(1000, rate) == pytest.approx(0.01)
    assert evictions.lost(100, 1e6) == 1.0  # no share exceeds all


def test_the_figures_are_those_of_the_documentation() -> None:
    page = DOCS.read_text()
    for table, column in ((evictions.MEASURED_US, 2), (evictions.ONE_PERCENT_EVICTED_S, 7)):
        for size, value in table.items():
            rows = re.findall(rf"^\| {size:,} \|.*$", page, re.MULTILINE)
            cells = [row.strip("|").split("|") for row in rows]
            shown = [c[column].strip().replace(",", "") for c in cells if len(c) > column]
            assert f"{value:.0f}" in shown, (size, value, shown)


def entries(calls: dict[int, int], seconds: float = 0.0) -> StatementEntries:
    return StatementEntries(
        NOW + timedelta(seconds=seconds), {(1, 1, key): n for key, n in calls.items()}, 0
    )


def look(seconds: float = 0.0, waits: CountedWaits | None = None) -> Look:
    return Look(NOW + timedelta(seconds=seconds), 0, waits=waits)


def test_circulation_by_capture_and_recapture() -> None:
    # two random hundreds of 200 have about 50 in common
    first, last = entries(dict.fromkeys(range(100), 1)), entries(dict.fromkeys(range(50, 150), 1))
    assert evictions.circulating(first, last, ActivitySamples()) == pytest.approx(200, rel=0.02)
    apart = entries(dict.fromkeys(range(1000, 1100), 1))
    assert evictions.circulating(first, apart, ActivitySamples()) == math.inf
    many = ActivitySamples(statements={(1, 1, key) for key in range(400)})
    assert evictions.circulating(first, last, many) == 400


def test_sessions_of_one_look_are_no_independent_samples() -> None:
    """All sixteen stand still in one look of sixty: a share of 13 % that may as well be none."""
    stalled, steady = ActivitySamples(), ActivitySamples()
    for number in range(60):
        stalled.add({LOCK: 16} if number == 30 else {"": 2})
        steady.add({LOCK: 1, "": 5})
    once, often = (wait_profile(look(), look(3.0), samples) for samples in (stalled, steady))
    assert once is not None
    assert often is not None
    assert once.share(LOCK) == pytest.approx(16 / 134)
    assert once.least(LOCK) == 0.0
    assert often.least(LOCK) == pytest.approx(1 / 6)


def test_the_least_share_holds_the_truth() -> None:
    rng, above = np.random.default_rng(1), 0
    for _ in range(400):
        samples = ActivitySamples()
        for stalls in rng.random(60) < 0.2:
            samples.add({LOCK: 8} if stalls else {"": 4})
        above += (samples.least_share(LOCK) or 0.0) > 1.6 / (1.6 + 3.2)
    assert above <= 20  # 2.5 % of 400 is 10


def test_counted_waits_have_no_share_where_computing_was_hardly_sampled() -> None:
    """Beside no sample of computing a thousandth of a session would be all of the active time."""
    before = CountedWaits(NOW, {LOCK_WAIT: 0.0})
    after = CountedWaits(NOW + timedelta(seconds=3), {LOCK_WAIT: 3.0})
    found = wait_profile(look(waits=before), look(3.0, after), ActivitySamples(looks=60))
    assert found is not None
    assert found.exact
    assert found.share(LOCK) is None
    text = _printed(found)
    assert "counted by wait_event_timing" in text
    assert "%" not in text


def test_time_is_counted_for_as_long_as_the_samples_cover() -> None:
    """Else a server that answers slowly seems to have more sessions at work than it has."""
    before = CountedWaits(NOW, {LOCK_WAIT: 0.0}, captured_ms=0.0)
    after = CountedWaits(NOW + timedelta(seconds=6), {LOCK_WAIT: 12_000.0}, captured_ms=18_000.0)
    found = time_by_event(look(waits=before), look(6.0, after), 3.0)
    assert found == {LOCK_WAIT.label: pytest.approx(6.0), "CPU": pytest.approx(3.0)}
    # the time of sessions whose waits nobody counts would be taken for none
    some = replace(after, captured_ms=None)
    assert time_by_event(look(waits=before), look(6.0, some), 3.0) is None


def test_waits_that_were_reset_in_between_are_sampled() -> None:
    """Also if only those of one process were, which changes no time of a reset."""
    before = CountedWaits(NOW, {LOCK_WAIT: 0.0}, resets=2)
    for resets, exact in ((2, True), (4, False)):
        after = CountedWaits(NOW + timedelta(seconds=3), {LOCK_WAIT: 3.0}, resets)
        found = wait_profile(look(waits=before), look(3.0, after), ActivitySamples(looks=60))
        assert found is not None
        assert found.exact == exact


def test_sampled_figures_are_lower_bounds_and_have_no_share_from_few_samples() -> None:
    few, many = ActivitySamples(), ActivitySamples()
    for number in range(60):
        few.add({"Lock/tuple": 1} if number < 19 else {})
        many.add({"Lock/tuple": 2} if number < 55 else {"": 1})
    found = [wait_profile(look(), look(3.0), samples) for samples in (few, many)]
    assert found[0] is not None
    assert found[1] is not None
    texts = [_printed(one) for one in found]
    for text in texts:
        assert "Waits: at least" in text
        assert "(a lower bound from 60 samples of pg_stat_activity)" in text
    assert "too few samples" in texts[0]
    assert "%" not in texts[0]
    assert "at least 9" in texts[1]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "200 ms"), (0.51, "510 ms"), (0.0051, "5.1 ms"), (0.00044, "440 µs"), (90.0, "1.5 min")],
)
def test_lengths_of_time_have_no_exponent(seconds: float, words: str) -> None:
    assert spent(seconds) == words


def _printed(waits: Waits) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(*doctor_show._waits(waits), sep="\n")
    return captured.get()


@pytest.mark.parametrize(
    ("rate", "waited", "level", "sure"),
    [
        (2.3, None, "warning", "certain"),  # by the turnover of this server alone
        (20.0, None, "critical", "likely"),  # by what was lost elsewhere
        (20.0, 0.05, "critical", "likely"),  # the waits seen here make a warning
        (20.0, 0.2, "critical", "certain"),
    ],
)
def test_how_sure_depends_on_what_the_level_rests_on(
    rate: float, waited: float | None, level: str, sure: str
) -> None:
    found = Statements(
        schema_name="public",
        version="1.10",
        max=5000,
        entries=5000,
        deallocations_per_s=rate,
        evicted_per_s=250 * rate,
        sweep_ms=0.43,
        turnover_s=20 / rate,
        occupancy=0.00043 * rate,
        lost_share=evictions.lost(5000, 250 * rate),
        lock_share=waited,
        lock_share_lo=waited,
    )
    finding = check_statements._evictions(found, [], "top")
    assert finding is not None
    assert (finding.level, finding.sure) == (level, sure)


@pytest.mark.parametrize(
    ("places", "distinct", "size"),
    [
        (100, 128.0, 5_000),
        (1_000, 1_400.0, 10_000),
        (5_000, None, 20_000),
        (5_000, 20_000.0, 50_000),
        (5_000, 30_000.0, None),
        (5_000, math.inf, None),
    ],
)
def test_the_size_that_is_proposed_suffices(
    places: int, distinct: float | None, size: int | None
) -> None:
    found = Statements.model_construct(max=places, distinct=distinct, schema_name="public")
    first, *_ = check_statements._remedy(found, [], "top")
    wanted = f"ALTER SYSTEM SET pg_stat_statements.max = {size};" if size else "-- mend what churns"
    assert first.startswith(wanted)


def test_texts_are_left_alone_if_their_size_cannot_be_asked() -> None:
    asked: list[Query] = []

    class Slow:
        def rows(self, query: Query, *_: object) -> list[tuple[object, ...]]:
            asked.append(query)
            if query is queries_of_findings.TEXT_FILE:
                raise Unreadable("it took too long", slow=True)
            return []

    facts = DoctorFacts(
        server=SERVER,
        settings={},
        statements=Extension("public", "1.12"),
        waits=None,
        may_stat_file=True,
        clock=None,
    )
    found = read_texts(cast(Any, Slow()), facts)
    assert asked == [queries_of_findings.TEXT_FILE]
    assert (found.rows, [one.why for one in found.unseen]) == (None, ["it took too long"])


def test_libraries_that_are_loaded_stay_so_each_in_its_own_quotes() -> None:
    reason = preload({"shared_preload_libraries": 'auto_explain, "/opt/my lib"'}, {})
    assert "= 'auto_explain', '/opt/my lib', 'pg_stat_statements';" in reason
    assert "= 'pg_stat_statements';" in preload({"shared_preload_libraries": ""}, {})
    assert "SHOW" in preload({}, {})
    by_hand = preload(
        {"shared_preload_libraries": "a"}, {"shared_preload_libraries": "command line"}
    )
    assert "ALTER SYSTEM" not in by_hand
    assert "pg_stat_statements to -c shared_preload_libraries" in by_hand


def test_names_are_quoted_where_they_must_be() -> None:
    assert reset("public") == "SELECT pg_stat_statements_reset();"
    assert reset('a"B') == 'SELECT "a""B".pg_stat_statements_reset();'


def test_long_words_take_no_long_time() -> None:
    shorten = dict(churn._STEPS)["numbered names"]
    assert shorten('SELECT a1, bc, "t2x" FROM part_17b, 3d4, _5') == (
        'SELECT a#, bc, "#" FROM p#, 3d#, _#'
    )
    assert least_s(functools.partial(shorten, "a" * 30_000)) < 0.5


def test_what_began_on_another_day_says_which() -> None:
    began = NOW - timedelta(days=3)
    held = limits.check(ServerState(slots=(Slot("cdc", "logical", False, 0, "lost", None),)))
    one = next(held)
    for since, shown in ((NOW, "%H:%M:%S"), (began, "%m-%d %H:%M:%S")):
        table = doctor_show._table([one.model_copy(update={"since": since})], NOW)
        with io.StringIO() as said:
            Console(file=said, width=120).print(table)
            line = said.getvalue().splitlines()[1]
        assert line.split("CRITICAL")[0].strip() == since.astimezone().strftime(shown)
