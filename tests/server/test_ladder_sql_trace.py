"""The study of SQL traces on real servers, shortened: its plans, its variants, its proofs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.weighing.ladder import scripts, study_file
from pgtare.weighing.ladder.records import Run, Step
from pgtare.weighing.ladder.rounds import StepContext, play
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Server
from pgtare.weighing.ladder.study_servers import Bench, Serving
from tests.doctor_servers import STUDIES
from tests.servers import binaries_slowly_on_15, embedded

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Without what only a quiet machine passes.
OPEN = {"steal_at_most": 1.0, "other_load_at_most": 1.0}


def shortened(file: str, workload: str, variants: Sequence[str], binaries: Binaries) -> Study:
    found, _ = study_file.read(STUDIES / file)
    short = found.protocol.model_copy(update={"run": 1, "warm_up": 1})
    server = {"main": Server(pg_config=str(binaries.pg_config))}
    if embedded(binaries):
        server = {"main": Server(source="wheel")}
    left_out = {v.name for v in found.variant} - {*variants}
    return found.without(left_out).model_copy(
        update={
            "protocol": short,
            "servers": server,
            "gates": found.gates.model_copy(update=OPEN),
            "workload": (found.the_workload(workload),),
        }
    )


def plan_of(serving: Serving, query: str) -> str:
    with serving.connect() as conn:
        return "\n".join(row[0] for row in conn.execute(f"EXPLAIN (COSTS off) {query}".encode()))


JOIN = "SELECT s.id, i.name FROM cursor_shipments s JOIN cursor_items i ON i.id = s.item"


def played(study: Study, variant: str, bench: Bench, where: Path) -> Run:
    step = Step(id=variant, kind="run", workload="OLTP", variant=variant, round=1)
    return play(step, StepContext(study, bench, where, {})).run


@pytest.mark.slow
@binaries_slowly_on_15
def test_a_run_traces_if_its_variant_says_so(binaries: Binaries, tmp_path: Path) -> None:
    variants = ("off", "T-0-tsc", "T-1-monotonic")
    study = shortened("sql_trace.toml", "OLTP", variants, binaries)
    scripts.place(study, STUDIES, tmp_path)
    with Bench(study, tmp_path) as bench:
        runs = {variant: played(study, variant, bench, tmp_path) for variant in variants}
        assert not any(run.failed for run in runs.values())
        shown = "; ".join(runs["T-1-monotonic"].evidence)
        for counter in ("requests-with-waits", "records", "executions-with-row-sources"):
            assert f"{counter} grew by" in shown
        assert "row-sources grew" not in "; ".join(runs["T-0-tsc"].evidence)
        serving = bench.serve("off", study.workload[0])
        for table, key in (("orders", "customer"), ("readings", "meter"), ("shipments", "route")):
            plan = plan_of(serving, f"SELECT id, note FROM cursor_{table} WHERE {key} = 7")
            assert plan.startswith("Index Scan"), plan
            assert plan_of(serving, f"SELECT id, note FROM cursor_{table}").startswith("Seq Scan")
        assert plan_of(serving, f"{JOIN} WHERE s.route = 7").startswith("Nested Loop")
        assert plan_of(serving, JOIN).startswith("Hash Join")
    # a variant that says it traces, and does not
    lying = study.model_copy(
        update={
            "variant": tuple(
                v.model_copy(update={"runtime": {**v.runtime, "sql_trace.statement_rate": 0}})
                for v in study.variant
            )
        }
    )
    with Bench(lying, tmp_path) as bench:
        failed = played(lying, "T-1-monotonic", bench, tmp_path).failed
    assert any("requests-with-waits grew by" in reason for reason in failed), failed
    assert any("executions-with-row-sources grew" in reason for reason in failed)


@pytest.mark.slow
def test_a_recorder_writes_what_a_run_traces(wheel: Binaries, tmp_path: Path) -> None:
    study = shortened("sql_trace_writing.toml", "OLTP", ("off", "all", "written"), wheel)
    scripts.place(study, STUDIES, tmp_path)
    found = {}
    with Bench(study, tmp_path) as bench:
        for name in ("all", "written"):
            found[name] = played(study, name, bench, tmp_path)
            assert not found[name].failed
    assert found["written"].figures["records"] > 1000
    lost = {
        name: run.figures["records-lost"] / run.figures["records"] for name, run in found.items()
    }
    assert lost["all"] > 0  # nobody reads
    assert lost["written"] < lost["all"]
