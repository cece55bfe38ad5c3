"""A study's result as one HTML file that needs nothing else."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pgtare.kit import files, numbers, page_frame
from pgtare.weighing.ladder import answers, caveats, tables, wording
from pgtare.weighing.ladder.charts import charts
from pgtare.weighing.ladder.progress import span
from pgtare.weighing.ladder.result import LadderResult, OnWorkload


def write_page(result: LadderResult, path: Path) -> None:
    """Write the page at `path`, replacing an older one only once the new one is complete."""
    files.write_text(path, page(result))


def page(result: LadderResult) -> str:
    """The page as a string."""
    drawn = charts(result)
    return page_frame.render(
        "pgtare.weighing.ladder",
        "ladder.html.j2",
        drawn,
        title=result.title,
        subtitle=f"{numbers.counted(len(result.workloads), 'workload')}, {result.runs_done} of "
        f"{result.runs_planned} runs in {span(result.spent_s)}, seed {result.seed}",
        about=result.about,
        answers=answers.found(result),
        terms=answers.terms(result),
        also=[answers.variants(result), *answers.seen(result)],
        caveats=caveats.of_runs(result),
        not_shown=caveats.not_shown(result),
        headings=tables.headings(result.alpha),
        workloads=[_workload(w, result) for w in result.workloads],
        command=f"{shlex.join(result.command)} --seed {result.seed}",
        raw=f"{result.directory}/runs: a JSON file a run, and its sampled latencies as .npz",
        variants=[_variant(v) for v in result.variants],
        metadata={
            "protocol": [
                ("layout", caveats.layout(result)),
                *_flat(result.protocol),
                ("floor", result.floor),
                ("alpha", f"{result.alpha:g}"),
                ("margin", f"{result.margin_pct:g} %"),
                ("family", str(result.family)),
            ],
            "servers": list(result.servers.items()),
            "machine": _flat(result.machine),
        },
        version=result.pgtare_version,
        created=result.created,
    )


def _workload(workload: OnWorkload, result: LadderResult) -> dict[str, Any]:
    details = {
        "Means over the rounds kept": tables.means(workload),
        "Other metrics, unadjusted": tables.other_metrics(workload, result.alpha),
        "The longest waits, in the run that proves the profile": tables.profile(workload),
    }
    return {
        "name": workload.name,
        "title": wording.heading(workload),
        "what": f"{wording.METRICS[workload.metric].name}, "
        + numbers.counted(workload.clients, "client")
        + (f" at {workload.rate_tps:,.0f} a second" if workload.rate_tps else "")
        + f"; {wording.blocks(workload)} count, in {span(workload.spent_s)}",
        "why_not": workload.why_not,
        "profile": workload.profile,
        "rows": tables.rows(workload),
        "tables": [(caption, head, body) for caption, (head, body) in details.items() if body],
    }


def _variant(variant: dict[str, Any]) -> tuple[str, str, list[str]]:
    settings = [f"{k} = {v}" for k, v in {**variant["settings"], **variant["runtime"]}.items()]
    if variant["preload"]:
        settings.insert(0, f"preload {', '.join(variant['preload'])}")
    return variant["name"], variant["title"], settings


def _flat(mapping: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (" ".join((key, *inner)), str(value))
        for key, nested in mapping.items()
        for inner, value in (
            [((k,), v) for k, v in nested.items()] if isinstance(nested, dict) else [((), nested)]
        )
    ]
