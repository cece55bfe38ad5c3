"""A study's result as Markdown, for a mailing list."""

from __future__ import annotations

import shlex

from pgtare.weighing.ladder import answers, caveats, tables, wording
from pgtare.weighing.ladder.progress import span
from pgtare.weighing.ladder.result import LadderResult, OnWorkload


def render(result: LadderResult) -> str:
    """The whole report."""
    lines = [f"# {result.title}", ""]
    lines += [f"- {sentence}" for _, sentence in answers.found(result)]
    lines += [f"- {sentence}" for sentence in answers.terms(result)]
    lines += [f"- {answers.variants(result)}"]
    lines += [f"- {sentence}" for sentence in answers.seen(result)]
    for workload in result.workloads:
        lines += ["", *_workload(workload, result)]
    lines += ["", "## Caveats", ""]
    lines += [f"- {line}" for line in [*caveats.of_runs(result), *caveats.not_shown(result)]]
    lines += ["", "## How it was measured", "", *_how(result)]
    return "\n".join(lines) + "\n"


def _workload(workload: OnWorkload, result: LadderResult) -> list[str]:
    lines = [f"## {wording.heading(workload)}", ""]
    lines.append(
        f"{wording.METRICS[workload.metric]}, {wording.count(workload.clients, 'client')}"
        + (f" at {workload.rate_tps:,.0f} a second" if workload.rate_tps else "")
        + f", {wording.blocks(workload)} in {span(workload.spent_s)}."
    )
    lines += ["", *(f"- {line}" for line in workload.profile)]
    if workload.why_not:
        lines += ["", f"**These figures do not count: {workload.why_not}.**"]
    found, headings = tables.rows(workload), list(tables.headings(result.alpha))
    if found:
        lines += ["", *_table(headings, [list(row.cells) for row in found])]
    head, body = tables.other_metrics(workload, result.alpha)
    if body:
        lines += ["", *_table(head, body)]
    derived = [c for c in workload.compared if c.derivation]
    if derived:
        lines += ["", *(f"- {c.arm} − {c.base}: {c.derivation}." for c in derived)]
    return lines


def _how(result: LadderResult) -> list[str]:
    machine = result.machine
    return [
        *(f"- {line}" for line in caveats.protocols(result)),
        "- Log-ratios within rounds (by duet, their means over sets of rounds); exact sign flips, "
        f"intervals by inverting the same test; Holm over {result.family} declared comparisons at "
        f"α = {result.alpha:g}; equivalence by two one-sided tests at ±{result.margin_pct:g} %.",
        f"- {machine.get('cpu_model')}, {machine.get('cpus')} processors, "
        f"{machine.get('memory_gib')} GiB, {machine.get('host_os')}.",
        *(f"- Server {name}: {version}." for name, version in result.servers.items()),
        f"- {result.runs_done} runs in {span(result.spent_s)}, pgtare {result.pgtare_version}.",
        f"- `{shlex.join(result.command)} --seed {result.seed}`",
    ]


def _table(head: list[str], body: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + " --- |" * len(head), *(line(row) for row in body)]
