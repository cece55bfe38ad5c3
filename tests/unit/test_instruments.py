"""The catalogue of instruments, the arms made from it, and proof of activity."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import Design, block_layout
from pgtare.estimate.trial.observations import OBSERVATION, Observations
from pgtare.estimate.trial.observations import UnitFlag as F
from pgtare.weighing.instruments.arms import choose, combine, parse_arm
from pgtare.weighing.instruments.catalogue import Catalogue, load_catalogue, parse
from pgtare.weighing.instruments.counters import Reading, Snapshot
from pgtare.weighing.instruments.model import Chosen, FlagRule, SqlRule
from pgtare.weighing.instruments.proof import (
    ProofFinding,
    judge_counter,
    judge_flags,
    prove,
    refuted_by_errors,
)
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.instruments.requirements import ServerFacts, _facts, availability
from pgtare.weighing.weigh.limit import with_together

DOC = Path(__file__).parents[2] / "docs" / "instruments.md"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


# ------------------------------------------------------------------------------ catalogue


def test_every_shipped_entry_says_what_it_leaves_out_and_can_be_proved(
    catalogue: Catalogue,
) -> None:
    for entry in catalogue.values():
        assert entry.remarks, entry.name
        assert entry.base, entry.name
        for variant in entry.variants:
            assert Chosen.variant(entry, variant).rules, (entry.name, variant)


def test_what_shows_literals_or_spoils_statistics_is_not_called_safe(catalogue: Catalogue) -> None:
    unsafe = {name for name, entry in catalogue.items() if not entry.safe_in_production}
    logged = {"log_min_duration_statement", "log_statement", "log_duration", "pgaudit"}
    assert unsafe == logged | {
        "sql_trace",
        "sql_trace_waits",
        "sql_trace_recorder",
        "timing_clock_source",
    }


def test_a_bare_name_means_the_first_variant(catalogue: Catalogue) -> None:
    bare, named = catalogue.choose("auto_explain"), catalogue.choose("auto_explain/analyze")
    assert bare == named
    assert bare.name == "auto_explain"
    sampled = catalogue.choose("auto_explain/sampled")
    assert sampled.name == "auto_explain/sampled"
    assert sampled.settings["auto_explain.sample_rate"] == "0.01"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pg_stat_statments", "did you mean pg_stat_statements"),
        ("explain", "did you mean auto_explain"),
        ("auto_explain/sample", "has no variant 'sample' (did you mean sampled"),
        ("auto_explain/", "has no variant ''"),
        ("zzz", "there is no instrument 'zzz'; the catalogue has pg_stat_statements"),
    ],
)
def test_unknown_names_suggest_near_ones(catalogue: Catalogue, spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        catalogue.choose(spec)


GOOD = """\
# a comment
[jit]
description = "just-in-time compilation"
safe_in_production = true
reason = "writes nothing"
base = { jit = false }
needs = { min_version = 15 }

[jit.variants.on]
settings = { JIT = true, jit_above_cost = 10.5 }

[[jit.proof]]
flag = "EXECUTED"
share = 0.9
[[jit.proof]]
label = "a counter"
sql = '''
SELECT 1
'''
"""


def test_a_users_file_extends_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    catalogue = load_catalogue([path])
    jit = catalogue.choose("jit")
    assert len(catalogue) == len(load_catalogue()) + 1
    assert jit.base == {"jit": "off"}
    assert jit.settings == {"jit": "on", "jit_above_cost": "10.5"}


def test_a_users_entry_cannot_take_a_shipped_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace("jit]", "log_duration]").replace("jit.", "log_duration."))
    with pytest.raises(UsageError, match=r"mine\.toml: there is already .* 'log_duration'"):
        load_catalogue([path])


def test_a_missing_catalogue_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read catalogue .*none\.toml: No such file"):
        load_catalogue([tmp_path / "none.toml"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reason =", "raeson =", r"unknown key 'raeson' in jit \(did you mean reason\?"),
        ("share = 0.9", "shares = 0.9", r"unknown key 'shares' in jit.proof.1 \(did you"),
        ("share = 0.9", "share = 7", r"jit.proof.1.share: input should be less"),
        ('"EXECUTED"', '"EXECUTE"', r"jit.proof.1.flag: no evidence bit 'EXECUTE'"),
        ('label = "a', 'lable = "a', r"unknown key 'lable' in jit.proof.2 \(did you mean"),
        ('label = "a counter"\n', "", r"jit.proof.2.label is missing"),
        ("sql =", "sqll =", r"jit.proof.2: a proof rule needs"),
        ("min_version", "minversion", r"unknown key 'minversion' in jit.needs \(did you"),
        ("safe_in_production = true\n", "", r"jit.safe_in_production is missing"),
        ("JIT =", '"jit; DROP TABLE x" =', r".*'jit; DROP TABLE x' is not the name"),
        ("JIT =", "search_path =", r".*search_path cannot be part of an arm"),
        ("jit = false", "jit = [1]", r"jit.base: jit: a setting's value must be"),
        ("[jit.variants.on]", "[jit.variants.On]", r"jit: variant name 'On'"),
        ("[jit.variants.on]", "[jit.variant.on]", r"unknown key 'variant' in jit"),
        ("JIT = true, jit_above_cost = 10.5", "jit = false", r"jit: variant on sets"),
        ("base = { jit = false }", "base = { jit = false", r".*at line 6"),
        ("[jit]", "[jit", r".*at line 2"),
        ("[jit]", "x = 1\n[jit]", r"'x' must be a table"),
        ("needs", "name = 'x'\nneeds", r"unknown key 'name'; the name is \[jit\]"),
    ],
)
def test_a_mistake_is_reported_with_file_and_key(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=rf"mine\.toml: ({message})"):
        parse(GOOD.replace(old, new, 1), "mine.toml")


# ------------------------------------------------------------------------------ ad hoc arms


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("x: jit=off", {"jit": "off"}),
        ("x:work_mem = 64MB ,JIT=on", {"work_mem": "64MB", "jit": "on"}),
        ("x: a.b='it''s, fine', c=''", {"a.b": "it's, fine", "c": ""}),
        ("x: cost=-1.5", {"cost": "-1.5"}),
    ],
)
def test_an_ad_hoc_arm_is_read(spec: str, settings: dict[str, str]) -> None:
    arm = parse_arm(spec)
    assert (arm.name, arm.settings, arm.entry) == ("x", settings, None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("jit=off", "write 'name: setting=value"),
        ("x:", "it sets nothing"),
        ("x: ", "it sets nothing"),
        ("x: jit", "cannot read 'jit'"),
        ("x: jit=", "jit has no value"),
        ("x: jit=on,", "cannot read ''"),
        ("x: jit=on, JIT=off", "jit is given twice"),
        ("x: jit='on", "cannot read"),
        ("x: jit='on' off", "cannot read"),
        ("X: jit=on", "may hold only"),
        ("base: jit=on", "taken by the trial"),
        ("all_together: jit=on", "taken by the trial"),
        ("x: a;b=on", "is not the name of a setting"),
        ("x: role=postgres", "cannot be part of an arm"),
        ("x: application_name=x", "cannot be part of an arm"),
    ],
)
def test_a_bad_ad_hoc_arm_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_arm(spec)


def test_a_value_in_quotes_may_look_like_a_connection_string(catalogue: Catalogue) -> None:
    (arm,) = choose(catalogue, [], ["x: app.peer='host=db user=me', app.host=db"])
    assert arm.settings == {"app.peer": "host=db user=me", "app.host": "db"}


# ------------------------------------------------------------------------------ arms of a trial


def test_the_base_is_the_union_and_each_arm_overrides_it(catalogue: Catalogue) -> None:
    chosen = choose(catalogue, ["pg_stat_statements", "track_io_timing"], ["x: work_mem=64MB"])
    arms = combine(chosen, inject_ns=[2000])
    base = {
        "compute_query_id": "off",
        "pg_stat_statements.track": "none",
        "pg_stat_statements.track_planning": "off",
        "track_io_timing": "off",
    }
    assert [(a.name, a.role) for a in arms] == [
        ("base", "base"),
        ("control", "control"),
        ("pg_stat_statements", "instrument"),
        ("track_io_timing", "instrument"),
        ("x", "instrument"),
        ("injected", "injected"),
    ]
    assert arms[0].settings == arms[1].settings == arms[5].settings == base
    tracked = {"compute_query_id": "on", "pg_stat_statements.track": "top"}
    assert arms[2].settings == base | tracked
    assert arms[3].settings == base | {"track_io_timing": "on"}
    assert arms[4].settings == base | {"work_mem": "64MB"}
    assert arms[5].inject_ns == 2000
    Design(tuple(arms), block_layout(len(arms)), seed=1)


def test_all_shipped_instruments_but_those_that_need_query_ids_share_a_trial(
    catalogue: Catalogue,
) -> None:
    need_ids = ("pg_stat_statements_prepared", "pg_stat_kcache")
    names = [name for name in catalogue if name not in need_ids]
    assert len(combine(choose(catalogue, names))) == len(names) + 2


@pytest.mark.parametrize(
    ("names", "adhoc", "inject", "message"),
    [
        (
            ["compute_query_id", "pg_stat_statements_prepared"],
            [],
            [],
            "cannot share a trial: .* compute_query_id = off, that of the other .* = on",
        ),
        (["log_duration", "log_duration/on"], [], [], "two arms called 'log_duration'"),
        (["log_duration"], ["log_duration: jit=off"], [], "two arms called"),
        (["log_duration"], ["x: log_duration=FALSE"], [], "x would be the same as the base"),
        ([], [], [], "nothing to weigh"),
        ([], [], [0], "must be over 0 ns"),
        ([], [], [5, 5], "two arms called 'injected_5ns'"),
    ],
)
def test_contradictions_are_refused(
    catalogue: Catalogue, names: list[str], adhoc: list[str], inject: list[int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        combine(choose(catalogue, names, adhoc), inject)


# ------------------------------------------------------------------------------ availability


#: Extensions that do not come with PostgreSQL.
OF_OTHERS = ("pg_stat_kcache", "pg_qualstats")


def server(version_num: int = 180006, **changes: Any) -> ServerFacts:
    entries = load_catalogue().values()
    names = {name for entry in entries for name in entry.setting_names} | {"work_mem"}
    facts: dict[str, Any] = {
        "version_num": version_num,
        "preloaded": (
            "pgtare",
            "pg_stat_statements",
            "auto_explain",
            "wait_event_timing",
            "sql_trace",
            *OF_OTHERS,
            "pgaudit",
        ),
        "setting_names": frozenset(names | {"shared_buffers"}),
        "extensions": frozenset(
            {"plpgsql", "pg_stat_statements", "wait_event_timing", "sql_trace", *OF_OTHERS}
        ),
        "contexts": {"shared_buffers": "postmaster"},
        "available": frozenset({"pg_stat_statements", "pgaudit"}),
    }
    return ServerFacts(**(facts | changes))


def test_a_server_that_has_everything_lacks_nothing(catalogue: Catalogue) -> None:
    newest = server(190000)
    assert [availability(entry, newest) for entry in catalogue.values()] == [[]] * len(catalogue)


def test_a_library_whose_files_are_missing_is_to_be_installed_first(catalogue: Catalogue) -> None:
    """A server does not start with it, and the line would be in its configuration by then."""
    bare = server(preloaded=(), setting_names=frozenset({"compute_query_id"}))
    for name, installed in (("auto_explain", True), ("pgaudit", True), ("sql_trace", False)):
        remedies = [lack.remedy for lack in availability(catalogue[name], bare)]
        assert any("install them first" in remedy for remedy in remedies) != installed
        assert any(f"'{name}'" in remedy for remedy in remedies)


def test_what_is_missing_comes_with_the_line_that_mends_it(catalogue: Catalogue) -> None:
    bare = server(
        preloaded=("pgtare",),
        setting_names=frozenset({"compute_query_id"}),
        extensions=frozenset(),
    )
    missing = availability(catalogue["pg_stat_statements"], bare)
    assert [m.remedy for m in missing] == [
        "add pg_stat_statements to shared_preload_libraries (ALTER SYSTEM SET"
        " shared_preload_libraries = 'pgtare', 'pg_stat_statements';) and restart",
        "CREATE EXTENSION pg_stat_statements;",
    ]
    (missing_explain,) = availability(catalogue.choose("auto_explain/sampled"), bare)
    assert "shared_preload_libraries = 'pgtare', 'auto_explain';) and restart" in str(
        missing_explain
    )
    assert "session_preload_libraries" in missing_explain.remedy


def test_an_old_server_is_reported_first(catalogue: Catalogue) -> None:
    (missing,) = availability(catalogue["timing_clock_source"], server(180006))
    assert str(missing) == "timing_clock_source on PostgreSQL 18: needs PostgreSQL 19 or later"


def test_settings_that_are_not_there_or_cannot_be_switched_are_reported() -> None:
    assert availability(parse_arm("x: work_mem=1MB"), server()) == []
    (typo,) = availability(parse_arm("x: wrok_mem=1MB"), server())
    assert "no setting wrok_mem" in str(typo)
    assert "did you mean work_mem" in str(typo)
    (fixed,) = availability(parse_arm("x: shared_buffers=1GB"), server())
    assert "fixed when the server starts" in str(fixed)


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("session_preload_libraries", "superuser"),
        ("local_preload_libraries", "user"),
        ("log_connections", "superuser-backend"),
        ("ignore_system_indexes", "backend"),
    ],
)
def test_what_a_session_obeys_only_when_it_begins_is_no_arm(name: str, context: str) -> None:
    facts = server(setting_names=frozenset({name}), contexts={name: context})
    (missing,) = availability(parse_arm(f"x: {name}=on"), facts)
    assert missing.what == f"{name} is fixed when a session begins"
    assert f"options='-c {name}=" in missing.remedy


def test_facts_take_libraries_apart_and_survive_hidden_ones(catalogue: Catalogue) -> None:
    rows: list[tuple[str, str, str, str]] = [
        (
            "shared_preload_libraries",
            "postmaster",
            'pgtare, "$libdir/auto_explain", /x/y.so',
            "default",
        ),
        ("work_mem", "user", "4096", "default"),
    ]
    facts = _facts(150020, list(rows), [])
    assert facts.preloaded == ("pgtare", "$libdir/auto_explain", "/x/y.so")
    assert all(facts.loaded(name) for name in ("pgtare", "auto_explain", "y"))
    (missing, *_) = availability(catalogue["pg_stat_statements"], facts)
    kept = "shared_preload_libraries = 'pgtare', '$libdir/auto_explain', '/x/y.so', 'pg_stat"
    assert kept in missing.remedy  # without its path the server would not find y
    assert facts.start_only == {"shared_preload_libraries"}
    hidden = _facts(150020, [("auto_explain.log_analyze", "superuser", "off", "default")], [])
    assert hidden.preloaded is None
    assert hidden.loaded("auto_explain")
    assert not hidden.loaded("pg_stat_statements")


# ------------------------------------------------------------------------------ proof


def units(*groups: tuple[int, int, F]) -> Observations:
    """Observations from (how many, arm, flags)."""
    table = np.zeros(sum(n for n, _, _ in groups), dtype=OBSERVATION)
    at = 0
    for n, arm, flags in groups:
        table["arm"][at : at + n] = arm
        table["flags"][at : at + n] = int(flags)
        at += n
    return table


def snapshots(
    chosen: list[Chosen], grown: dict[str, float], major: int
) -> tuple[Snapshot, Snapshot]:
    """Before and after; each counter grows by what is given for a word of its statement, or 0."""
    sqls = [sql for c in chosen for r in c.rules if isinstance(r, SqlRule) for sql in r.statements]
    before = Snapshot(major, {sql: Reading(100.0) for sql in sqls})
    after = {
        sql: Reading(100.0 + sum(by for word, by in grown.items() if word in sql)) for sql in sqls
    }
    return before, Snapshot(major, after)


def proof_of(
    spec: str,
    base: list[tuple[int, F]],
    arm: list[tuple[int, F]],
    grown: dict[str, float] | None = None,
    major: int = 18,
) -> Proof:
    """The proof of one instrument from (how many, flags) in base and arm and counters' growth."""
    chosen = [parse_arm(spec)] if ":" in spec else choose(load_catalogue(), [spec])
    rows = units(*((n, 0, f) for n, f in base), *((n, 2, f) for n, f in arm), (10, 1, F(0)))
    found = prove(combine(chosen), chosen, rows, *snapshots(chosen, grown or {}, major))
    assert found[0] is None
    assert found[2] is not None
    return found[2]


X, T, Q, L = F.EXECUTED, F.TOTAL_TIMED, F.QUERY_ID, F.LOGGED
PLAIN = [(1000, X)]
TRACKED = [(995, X | T | Q), (5, X)]


def test_pg_stat_statements_is_active_with_flags_and_calls() -> None:
    proof = proof_of("pg_stat_statements", PLAIN, TRACKED, {"calls": 1200})
    assert proof.state == "active"
    said = "of 1,000 transactions that ran a plan, 995 (99.5 %) ran with whole-query timing"
    assert f"{said} (base: none); " in proof.evidence
    assert "calls counted by pg_stat_statements: +1,200" in proof.evidence


@pytest.mark.parametrize(
    ("base", "arm", "grown", "state", "evidence"),
    [
        (PLAIN, [(1000, X | T)], {"calls": 1200}, "missing", "0 (0 %) carried a query id"),
        (PLAIN, [(900, X | T | Q), (100, X)], {"calls": 1200}, "missing", "90 %"),
        (PLAIN, TRACKED, {"calls": 0}, "missing", "at least 900 expected"),
        (PLAIN, TRACKED, {"calls": 300}, "missing", "+300"),
        ([(900, X), (100, X | T)], TRACKED, {"calls": 1200}, "missing", "base arm is contaminated"),
        (PLAIN, TRACKED, {"calls": 9, "dealloc": 2}, "active", "not reliable (pg_stat_s"),
        (PLAIN, TRACKED, {"calls": -50}, "active", "it was reset during the trial"),
        (PLAIN, [(100, F(0))], {"calls": 0}, "idle", "no transaction of the arm ran a plan"),
        ([(100, F.UNDRAWN)], TRACKED, {"calls": 1200}, "missing", "base arm has no transactions"),
        (PLAIN, [], {"calls": 1200}, "missing", "the arm has no transactions"),
        (PLAIN, [(1000, X | T | Q | F.ABORTED)], {}, "missing", "the arm has no transactions"),
        (
            PLAIN,
            [(900, X | T | Q), (100, X | T | Q | F.APP_CHANGED)],
            {"calls": 1200},
            "missing",
            "not in force: in force in 900 of 1,000 transactions (100 changed by the application)",
        ),
        (
            [(900, X), (100, X | F.SWITCH_FAILED)],
            TRACKED,
            {"calls": 1200},
            "missing",
            "the base arm was not in force",
        ),
    ],
)
def test_pg_stat_statements_fails_closed(
    base: list[tuple[int, F]],
    arm: list[tuple[int, F]],
    grown: dict[str, float],
    state: str,
    evidence: str,
) -> None:
    proof = proof_of("pg_stat_statements", base, arm, grown)
    assert (proof.state, evidence in proof.evidence) == (state, True), proof


R, IO = F.BLOCKS_READ, F.IO_TIMED


@pytest.mark.parametrize(
    ("spec", "base", "arm", "grown", "state"),
    [
        ("pg_stat_statements/planning", PLAIN, TRACKED, {"plans": 5}, "active"),
        ("pg_stat_statements/planning", PLAIN, TRACKED, {"plans": 0}, "idle"),
        ("pg_stat_statements_prepared", [(99, X | Q)], [(99, X | Q | T)], {"calls": 99}, "active"),
        ("pg_stat_statements_prepared", [(99, X | Q)], [(99, X | Q)], {"calls": 0}, "missing"),
        ("compute_query_id", PLAIN, [(1000, X | Q)], {}, "active"),
        ("compute_query_id", [(1000, X | Q)], [(1000, X | Q)], {}, "missing"),
        ("compute_query_id", PLAIN, TRACKED, {}, "missing"),  # pg_stat_statements tracks too
        ("track_io_timing", [(900, X), (9, X | R)], [(900, X), (9, X | R | IO)], {}, "active"),
        ("track_io_timing", PLAIN, PLAIN, {}, "idle"),
        ("track_io_timing", [(30, X | R)], [(30, X | R)], {}, "missing"),
        ("track_io_timing", [(9, X | R)], [(1, X | R)], {}, "idle"),  # too few to tell
        ("track_io_timing", [(9, X | R | IO)], [(9, X | R | IO)], {}, "missing"),
        ("track_functions", PLAIN, PLAIN, {"calls": 1}, "active"),
        ("track_functions", PLAIN, PLAIN, {}, "idle"),
        ("auto_explain", PLAIN, [(1000, X | T | F.INSTRUMENTED)], {}, "active"),
        ("auto_explain", PLAIN, [(1000, X | T)], {}, "missing"),
        ("auto_explain/sampled", PLAIN, [(10, X | F.INSTRUMENTED), (990, X)], {}, "active"),
        ("auto_explain/sampled", PLAIN, [(2, X | F.INSTRUMENTED), (998, X)], {}, "active"),
        ("auto_explain/sampled", PLAIN, PLAIN, {}, "missing"),
        ("auto_explain/sampled", PLAIN, [(9, X | F.INSTRUMENTED), (9991, X)], {}, "missing"),
        ("auto_explain/sampled", PLAIN, [(1000, X | F.INSTRUMENTED)], {}, "missing"),
        (
            "auto_explain/sampled",
            [(996, X), (4, X | F.INSTRUMENTED)],
            [(10, X | F.INSTRUMENTED), (990, X)],
            {},
            "missing",
        ),
        ("log_min_duration_statement", PLAIN, [(1000, X | L)], {}, "active"),
        ("log_min_duration_statement", [(1000, X | L)], [(1000, X | L)], {}, "missing"),
        ("log_statement", PLAIN, [(500, L), (500, X)], {}, "missing"),
        ("log_duration", [(980, X), (20, X | L)], [(1000, X | L)], {}, "active"),
        ("log_lock_waits", PLAIN, [(3, X | L), (997, X)], {}, "active"),
        ("log_lock_waits", PLAIN, PLAIN, {}, "idle"),
        ("log_lock_waits", [(3, X | L), (997, X)], [(3, X | L), (997, X)], {}, "idle"),
    ],
)
def test_each_instrument_is_proved_both_ways(
    spec: str,
    base: list[tuple[int, F]],
    arm: list[tuple[int, F]],
    grown: dict[str, float],
    state: str,
) -> None:
    assert proof_of(spec, base, arm, grown).state == state


@pytest.mark.parametrize("major", [15, 17, 18])
@pytest.mark.parametrize(
    ("time_ms", "writes", "state"), [(0.5, 900, "active"), (0, 900, "missing"), (0, 3, "idle")]
)
def test_wal_timing_is_proved_by_the_views_of_the_version(
    major: int, time_ms: float, writes: float, state: str
) -> None:
    # 15 to 17 read pg_stat_wal, 18 pg_stat_io; only the statements of the version must count.
    old, new = {"wal_write_time": time_ms}, {"fsync_time": time_ms}
    work = {"SELECT wal_write FROM": writes} if major < 18 else {"sum(writes)": writes}
    grown = (old if major < 18 else new) | work
    proof = proof_of("track_wal_io_timing", PLAIN, PLAIN, grown, major)
    assert proof.state == state, proof


def test_an_ad_hoc_arm_is_idle_and_says_that_nothing_is_known() -> None:
    proof = proof_of("x: work_mem=1MB", PLAIN, [(99, X), (1, X | F.RELOADED)])
    assert proof.state == "idle"
    assert proof.evidence == (
        "in force in 99 of 100 transactions (1 met by a configuration reload) (values checked at"
        " each end)"
    )
    assert proof.unproven == "own"


def test_an_injected_arm_needs_no_proof_but_transactions() -> None:
    arms = combine([], [1000])
    nothing = Snapshot(18)
    both = units((5, 0, X), (5, 1, X), (5, 2, X))
    control, injected = prove(arms, [], both, nothing, nothing)[1:]
    assert control == Proof(state="active", evidence="same settings as base")
    assert injected is not None
    assert injected.state == "active"
    without = units((5, 0, X), (5, 1, X))
    states = [p and p.state for p in prove(arms, [], without, nothing, nothing)]
    assert states == [None, "active", "missing"]


def test_unreadable_counters_are_passed_over_only_beside_other_evidence() -> None:
    unreadable = Snapshot(18, {})
    rows = units((1000, 0, X), (1000, 1, X), (1000, 2, X | T | Q))
    for spec, state in (("pg_stat_statements", "active"), ("track_functions", "missing")):
        chosen = choose(load_catalogue(), [spec])
        found = prove(combine(chosen), chosen, rows, unreadable, unreadable)[2]
        assert found is not None
        assert found.state == state
        assert "not readable (it was not read)" in found.evidence


def test_unreadable_work_leaves_a_still_counter_unknown() -> None:
    rule = SqlRule(sql="a", label="time", work_sql="b")
    still = Snapshot(18, {"a": Reading(1.0)})
    arm = np.full(10, int(X), dtype=np.uint16)
    assert judge_counter(rule, arm, still, still).state == "unknown"


def test_a_unit_out_of_force_counts_against_the_arm() -> None:
    rule = FlagRule(flag="LOGGED", share=0.99)
    base = np.zeros(100, dtype=np.uint16)
    arm = np.full(100, int(F.LOGGED), dtype=np.uint16)
    found = judge_flags(rule, arm, base)
    assert found == ProofFinding("active", "all 100 transactions wrote to the log (base: none)")
    arm[:3] |= int(F.APP_CHANGED)
    found = judge_flags(rule, arm, base)
    assert found.state == "missing"
    assert "settings not in force in 3 of 100" in found.evidence


# ------------------------------------------------------------------------------ the page


def test_the_entry_and_arms_on_the_page_are_valid() -> None:
    page = DOC.read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert list(parse(example, "page")) == ["jit"]
    arms = re.findall(r"--arm '(.*?)'", page)
    assert len([parse_arm(arm) for arm in arms]) == 2


def test_an_arm_that_fails_transactions_is_not_verified() -> None:
    base = [(1995, F.EXECUTED), (5, F.ABORTED)]
    assert proof_of("hasty: statement_timeout=1", base, base).state == "idle"
    bad = proof_of("hasty: statement_timeout=1", base, [(1900, F.EXECUTED), (100, F.ABORTED)])
    assert bad.state == "missing"
    assert "5.0 % of its transactions ended in an error" in bad.evidence


@pytest.mark.parametrize(
    ("failed", "state"),
    [
        ([], "idle"),
        ([2] * 6, "idle"),  # one of 364 trials has such a difference by chance
        ([2] * 8, "missing"),
        ([0, 1, 2] * 20, "idle"),
        ([0, 1] * 20, "missing"),  # they fail where the arm does not
        ([0, 1] * 500 + [2] * 700, "missing"),
    ],
)
def test_an_arm_that_fails_other_blocks_than_the_base_is_not_verified(
    failed: list[int], state: str
) -> None:
    arms = tuple(combine([parse_arm("hasty: statement_timeout=1")]))
    idle = Proof(state="idle", evidence="")
    found = refuted_by_errors(Design(arms, (0, 1, 2), 1), [None, idle, idle], failed)
    assert found[:2] == [None, idle]
    proof = found[2]
    assert proof is not None
    assert proof.state == state


def test_all_together_need_not_be_without_what_one_must_be_without() -> None:
    """compute_query_id alone times no plan as a whole; pg_stat_statements beside it does."""
    entries = load_catalogue()
    chosen = [entries.choose(name) for name in ("compute_query_id", "pg_stat_statements")]
    alone = [rule for choice in chosen for rule in choice.rules if isinstance(rule, FlagRule)]
    assert any(rule.expect == "none" for rule in alone)
    together = with_together(chosen)[-1]
    left = [rule for rule in together.rules if isinstance(rule, FlagRule)]
    assert left
    assert not any(rule.expect == "none" for rule in left)
