"""Counting a plan's timed calls, and the costs that follow, on plans written by hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pgtare.errors import UsageError
from pgtare.seeing.clock import plan_text
from pgtare.seeing.clock.consequences import plan_timing
from pgtare.seeing.clock.explain_timing import Measured, Time, median
from pgtare.seeing.clock.node_calls import Calls, Range, count_calls
from pgtare.seeing.clock.plan import parse_plan, read_plan
from pgtare.seeing.clock.plan_source import as_reported
from pgtare.seeing.clock.predict import Clock, call_cost, explain_cost, io_cost, wait_cost
from pgtare.seeing.clock.schema import PlanTiming
from tests.terminal import printed
from tests.unit.sample_clock_report import sample

CLOCK = Clock(20)


def node(kind: str, rows: float, loops: float = 1, *plans: dict[str, Any], **more: Any) -> Any:
    """A node as EXPLAIN (ANALYZE, TIMING OFF) of 18 prints it."""
    found: dict[str, Any] = {
        "Node Type": kind,
        "Plan Rows": 10,
        "Plan Width": 40,
        "Actual Rows": float(rows),
        "Actual Loops": loops,
    }
    found |= {name.replace("_", " "): value for name, value in more.items()}
    return found | {"Plans": list(plans)} if plans else found


def estimate(kind: str, rows: int, *plans: dict[str, Any], **more: Any) -> Any:
    """A node without ANALYZE."""
    found = node(kind, 0, 0, *plans, **more) | {"Plan Rows": rows}
    return {name: value for name, value in found.items() if not name.startswith("Actual")}


def calls(plan: dict[str, Any]) -> list[Calls]:
    return count_calls(parse_plan([{"Plan": plan}]))


def likely(plan: dict[str, Any]) -> list[float]:
    return [found.calls.likely for found in calls(plan)]


# Each count holds one more call, with which a process ends the plan.


def test_a_node_is_called_once_more_than_it_returns_rows() -> None:
    assert likely(node("Seq Scan", 1000)) == [1002]


def test_a_table_or_bitmap_is_delivered_in_one_call() -> None:
    heap = node("Bitmap Heap Scan", 50, 1, node("Bitmap Index Scan", 50))
    assert likely(heap) == [52, 2]
    build = node("Hash", 70, 1, node("Seq Scan", 70))
    assert likely(node("Hash Join", 5, 1, node("Seq Scan", 90), build)) == [7, 92, 2, 72]


def test_the_inner_side_of_a_nested_loop() -> None:
    outer = node("Seq Scan", 100, Parent_Relationship="Outer")
    inner = node("Index Scan", 3, 100, Parent_Relationship="Inner")
    assert likely(node("Nested Loop", 300, 1, outer, inner, Join_Type="Inner"))[2] == 401
    # one that stops at the first match is not asked for another row
    single = node("Index Scan", 1, 100, Parent_Relationship="Inner")
    for more in ({"Join_Type": "Inner", "Inner_Unique": True}, {"Join_Type": "Semi"}):
        assert likely(node("Nested Loop", 100, 1, outer, single, **more))[2] == 101


def test_rounded_rows_become_a_range() -> None:
    # 15 prints whole rows: 0 may stand for a row in every second loop
    rounded = node("Index Scan", 0, 1000) | {"Actual Rows": 0}
    assert calls(rounded)[0].calls == Range(1001, 1001, 1501)
    # an inner join tells the sum itself, where nothing is filtered away
    inner = rounded | {"Parent Relationship": "Inner"}
    outer = node("Seq Scan", 1000, Parent_Relationship="Outer")
    join = node("Nested Loop", 400, 1, outer, inner, Join_Type="Inner")
    assert calls(join)[2].calls == Range.exactly(1401)


def test_a_limit_stops_its_input_but_not_what_a_sort_has_read() -> None:
    def limited(found: float) -> dict[str, Any]:
        scan = node("Seq Scan", 5000)
        sort = node("Sort", found, 1, scan, Plan_Rows=5000)
        return node("Limit", found, 1, sort, Plan_Rows=10)

    assert likely(limited(10)) == [12, 11, 5002]
    assert likely(limited(7)) == [9, 9, 5002]  # the input ran out
    # a limit that the planner does not expect to bite looks like one that never did
    unsure = node("Limit", 4, 1, node("Seq Scan", 4, Plan_Rows=4), Plan_Rows=4)
    assert calls(unsure)[1].calls == Range(5, 6, 6)


def test_what_never_ran_costs_nothing() -> None:
    never = calls(node("Append", 0, 1, node("Seq Scan", 0, 0)))[1]
    assert never.calls == Range.exactly(0)
    assert never.note == "never executed"


def test_memoize_below_a_unique_inner_side() -> None:
    look_up = node("Index Scan", 1, 40, Parent_Relationship="Outer")
    cache = node("Memoize", 1, 900, look_up, Parent_Relationship="Inner")
    outer = node("Seq Scan", 900, Parent_Relationship="Outer")
    join = node("Nested Loop", 900, 1, outer, cache, Join_Type="Inner", Inner_Unique=True)
    assert likely(join) == [902, 902, 901, 41]


def test_subplans_stop_or_not() -> None:
    def below(text: str) -> Range:
        sub = node("Seq Scan", 1, 50, Parent_Relationship="SubPlan", Subplan_Name="SubPlan 1")
        return calls(node("Seq Scan", 9, 1, sub, Filter=text))[1].calls

    stops = below("(EXISTS(SubPlan 1) OR (k = 1))")
    assert stops.likely == stops.lo == 51
    assert stops.hi < 52
    assert below("((SubPlan 1) = 3)").hi > 100
    assert below("(ANY (k = (hashed SubPlan 1).col1))").lo > 100


def test_parallel_processes_share_the_wall_time() -> None:
    scan = node("Seq Scan", 1000, 3, Parent_Relationship="Outer", Parallel_Aware=True)
    gather = node("Gather", 3000, 1, scan, Workers_Launched=2)
    cost = explain_cost(parse_plan([{"Plan": gather}]), CLOCK, 18)
    own, below = cost.nodes
    assert (own.calls.processes, below.calls.processes) == (1, 3)
    assert below.calls.calls == Range(3006 - 0.015, 3006, 3006 + 0.015)
    assert below.cpu_ms.likely == pytest.approx(3 * below.wall_ms.likely)
    assert cost.wall_ms.likely < cost.cpu_ms.likely


def test_estimates_stand_in_for_rows_and_say_so() -> None:
    inner = estimate("Index Scan", 2, Parent_Relationship="Inner")
    outer = estimate("Seq Scan", 100, Parent_Relationship="Outer")
    plan = parse_plan([{"Plan": estimate("Nested Loop", 200, outer, inner, Join_Type="Inner")}])
    assert [found.calls.likely for found in count_calls(plan)] == [202, 102, 301]
    cost = explain_cost(plan, CLOCK, 18)
    assert cost.as_json()["rows_and_loops"] == "estimated"
    assert "estimates" in cost.notes[0]
    assert cost.cost_pct is None


def test_estimates_of_limited_parallel_and_repeated_nodes() -> None:
    limit = estimate("Limit", 10, estimate("Seq Scan", 1000))
    assert likely(limit) == [12, 11]
    scan = estimate("Seq Scan", 1000, Parent_Relationship="Outer", Parallel_Aware=True)
    gather = calls(estimate("Gather", 2400, scan, Workers_Planned=2))[1]
    assert (gather.rows, gather.loops, gather.processes) == (2400, 3, 3)
    inner = estimate("Materialize", 5, estimate("Seq Scan", 5), Parent_Relationship="Inner")
    outer = estimate("Seq Scan", 100, Parent_Relationship="Outer")
    join = estimate("Nested Loop", 500, outer, inner, Join_Type="Inner")
    assert likely(join)[2:] == [601, 7]


def test_a_call_costs_two_readings_and_a_little() -> None:
    for major in (15, 16, 17, 18):
        cost = call_cost(CLOCK, major)
        assert 40 < cost.likely < 50
        assert cost.lo < 40 < cost.hi
    # ten times the clock, ten times the readings, the same little
    grown = call_cost(Clock(200), 18).likely - call_cost(CLOCK, 18).likely
    assert grown == pytest.approx(1.05 * 360)


def test_costs_add_up_and_are_set_against_the_execution() -> None:
    document = {
        "Plan": node("Aggregate", 1, 1, node("Seq Scan", 1_000_000), Strategy="Plain"),
        "Execution Time": 50.0,
        "Triggers": [{"Calls": 7}],
    }
    cost = explain_cost(parse_plan([document]), CLOCK, 18)
    assert cost.calls.likely == 1_000_005
    assert cost.wall_ms.likely == pytest.approx(1_000_012 * cost.call_ns.likely * 1e-6)
    assert cost.cost_pct is not None
    assert cost.cost_pct.likely == pytest.approx(2 * cost.wall_ms.likely)
    # what ran with TIMING holds the cost already
    document["Plan"]["Actual Total Time"] = 95.0
    document["Execution Time"] = 95.0
    timed = explain_cost(parse_plan([document]), CLOCK, 18)
    assert timed.bare_ms == pytest.approx(95 - timed.wall_ms.likely)
    json.dumps(timed.as_json(), allow_nan=False)


def test_a_sort_in_memory_may_stall_where_the_clock_waits_for_loads() -> None:
    def stalls(clock: Clock = CLOCK, **more: Any) -> Range:
        sort = {"Sort_Method": "quicksort", "Sort_Space_Type": "Memory", "Sort_Space_Used": 30_000}
        plan = parse_plan({"Plan": node("Sort", 300_000, **(sort | more))})
        return explain_cost(plan, clock, 18).nodes[0].stalls

    assert stalls() == Range(0, 300_000, 300_000)
    none = Range.exactly(0)
    assert stalls(Clock(9, "RDTSC", fenced=False)) == none
    assert stalls(Sort_Space_Type="Disk") == none
    assert stalls(Sort_Space_Used=500) == none
    assert stalls(Output=["r"], Plan_Width=8) == none


def test_a_large_hash_table_may_stall() -> None:
    def stalls(kb: int) -> float:
        build = node("Hash", 1000, Parent_Relationship="Inner", Peak_Memory_Usage=kb)
        outer = node("Seq Scan", 9000, Parent_Relationship="Outer")
        plan = parse_plan({"Plan": node("Hash Join", 9, 1, outer, build)})
        return explain_cost(plan, CLOCK, 18).nodes[0].stalls.hi

    assert stalls(9000) == 10_000
    assert stalls(900) == 0


def test_io_timing_reads_the_clock_by_block_or_by_vector() -> None:
    scan = node("Seq Scan", 9, Shared_Read_Blocks=1600, Parent_Relationship="Outer")
    plan = parse_plan(
        {"Plan": node("Sort", 9, 1, scan, Shared_Read_Blocks=1600, Temp_Written_Blocks=30)}
    )
    assert io_cost(CLOCK, 15, plan).ios == Range.exactly(1630)
    assert io_cost(CLOCK, 18, plan).ios == Range(130, 130, 1630)
    assert io_cost(CLOCK, 15).io_ns.lo == 40
    assert io_cost(CLOCK, 18).io_ns.hi >= 80
    assert io_cost(CLOCK, 18).plan_ms is None
    index = parse_plan({"Plan": node("Index Scan", 9, Shared_Read_Blocks=160)})
    assert io_cost(CLOCK, 18, index).ios == Range.exactly(160)


def test_a_captured_wait_costs_two_readings_and_its_folding() -> None:
    cost = wait_cost(Clock(8.15, "TSC"))
    assert cost["stats"].lo <= 23.5 <= cost["stats"].hi
    assert cost["trace"].lo <= 26.9 <= cost["trace"].hi


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("Seq Scan on t  (cost=0.00..1.00 rows=1 width=4)", "not JSON"),
        ("[]", "no plan"),
        ("{}", "no plan"),
        ("3", "no plan"),
        ('[{"Plan": {"Node Type": "Result"}}]', "COSTS OFF"),
        ('[{"Plan": {"Plan Rows": 3}}]', "without a type"),
        ('[{"Plan": {"Node Type": "Result", "Plan Rows": -1}}]', "-1"),
        ('[{"Plan": {"Node Type": "Result", "Plan Rows": NaN}}]', "nan"),
        ('[{"Plan": {"Node Type": "Result", "Plan Rows": 1, "Plans": [7]}}]', "that is none"),
        ('[{"Plan": {}}, {"Plan": {}}]', "2 plans"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_plan_is_reported(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_plan(path)


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read_plan(tmp_path / "image")


@pytest.mark.parametrize("read_ns", [0, -1, float("nan"), float("inf")])
def test_an_impossible_clock_is_refused(read_ns: float) -> None:
    with pytest.raises(UsageError, match="more than 0 ns"):
        Clock(read_ns)


def test_a_median_has_an_interval_by_signs() -> None:
    found = median([float(i) for i in range(1, 16)])
    assert (found.lo, found.estimate, found.hi) == (4, 8, 12)
    few = median([1.0, 2.0, 3.0])
    assert few.estimate == 2
    assert few.lo != few.lo


def predicted(document: dict[str, Any], major: int = 18) -> PlanTiming:
    """For a machine whose CLOCK_MONOTONIC takes 18 ns and whose RDTSC takes 8."""
    return plan_timing(sample(), parse_plan(document), major, "plan.json")


def test_the_view_names_cost_nodes_and_doubts() -> None:
    scan = node("Seq Scan", 1_000_000, Relation_Name="orders")
    document = {"Plan": node("Aggregate", 1, 1, scan, Strategy="Plain"), "Execution Time": 90.0}
    shown = printed(plan_text.view(predicted(document)), 300)
    assert "takes 41.8 ms [35.0 ms, 51.4 ms] longer than with TIMING OFF on PostgreSQL 18:" in shown
    assert (
        "1,000,005 timed calls of plan nodes, 41.8 ns [35.0, 51.4] each; that is 46 % of" in shown
    )
    assert "% of the 90.0 ms that the execution takes without." in shown
    assert "On PostgreSQL 19, by RDTSC, that would be 20.8 ms [15.0 ms, 28.4 ms]." in shown
    assert "track_io_timing takes 82.0 ns [36.0, 92.0] for each I/O." in shown
    assert "Seq Scan on orders" in shown
    guess = printed(plan_text.view(predicted({"Plan": estimate("Seq Scan", 9)})), 300)
    assert "by the planner's estimates" in guess
    assert "Note: rows and loops are the planner's estimates" in guess


def test_a_long_plan_is_cut_and_its_rest_summed_up() -> None:
    found = predicted({"Plan": node("Append", 40, 1, *[node("Seq Scan", 2)] * 20)})
    assert "16 more" in printed(plan_text.view(found, most=5), 160)
    assert len(list(plan_text.rows(found))) == 21


def test_the_table_of_nodes_fits_80_columns() -> None:
    scan = node("Seq Scan", 123_456_789, Relation_Name="a_table_with_quite_a_long_name")
    shown = printed(plan_text.view(predicted({"Plan": node("Hash Join", 5, 1, scan, scan)})), 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "123,456,791" in shown
    assert "…" not in shown


def test_postgresql_19_reads_the_counter_only_where_it_would_choose_it() -> None:
    document = {"Plan": node("Seq Scan", 1000)}
    assert (predicted(document).clock, predicted(document, 19).clock) == ("monotonic", "tsc")
    assert predicted(document, 19).postgresql19_wall_ms is None
    report = sample()
    report.diagnosis.postgres19.clock = "system"
    found = plan_timing(report, parse_plan(document), 19, "plan.json")
    assert (found.clock, found.postgresql19_wall_ms) == ("monotonic", None)
    report.clocks = [clock for clock in report.clocks if clock.name == "tsc"]
    with pytest.raises(UsageError, match="monotonic was not read"):
        plan_timing(report, parse_plan(document), 18, "plan.json")


def test_a_server_of_19_is_predicted_by_the_clock_that_it_was_seen_to_read() -> None:
    plan = parse_plan({"Plan": node("Seq Scan", 1000)})
    assert plan_timing(sample(), plan, 19, "q", by_counter=False).clock == "monotonic"
    report = sample()
    report.diagnosis.postgres19.clock = "system"
    found = plan_timing(report, plan, 19, "q", by_counter=True)
    assert (found.clock, found.notes) == ("tsc", [])
    report.clocks = [clock for clock in report.clocks if clock.name == "monotonic"]
    found = plan_timing(report, plan, 19, "q", by_counter=True)
    assert found.clock == "monotonic"
    assert "add --clock tsc" in found.notes[0]


def test_the_version_of_a_plan_is_seen_by_its_rows() -> None:
    assert parse_plan({"Plan": node("Seq Scan", 9)}).newest_major == 18
    assert parse_plan({"Plan": node("Seq Scan", 9) | {"Actual Rows": 9}}).newest_major == 17
    assert parse_plan({"Plan": estimate("Seq Scan", 9)}).newest_major == 18


def test_the_prediction_stands_beside_what_was_measured() -> None:
    document = {"Plan": node("Seq Scan", 998)}
    times = [Time(5.0, 4.0 + i / 1000) for i in range(9)]
    plan = parse_plan(document)
    measured = Measured(plan, 18, tuple(Time(t.wall_ms, 4.05) for t in times), tuple(times))
    found = predicted(document)
    found.measured = as_reported(measured)
    sentences = " ".join(plan_text.answers(found))
    assert "46.0 µs [43.0 µs, 49.0 µs] (95 % interval) of processor time longer" in sentences
    assert "median of 9 pairs of executions; the prediction" in sentences
    assert "the prediction is off by −9 %" in sentences
    nothing = Measured(plan, 18, tuple(times), tuple(times[::-1]))
    found.measured = as_reported(nothing)
    assert "too little, or too noisy" in " ".join(plan_text.answers(found))
    gather = parse_plan({"Plan": node("Gather", 1, 1, node("Seq Scan", 1))})
    assert dataclasses.replace(measured, plan=gather).by == "execution time"
