"""A study's result on the terminal: the answers, then a table a workload, then what spoke up."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgtare.kit import numbers
from pgtare.weighing import verdict_names
from pgtare.weighing.ladder import answers, caveats, tables, wording
from pgtare.weighing.ladder.progress import span
from pgtare.weighing.ladder.result import LadderResult, OnWorkload

_GAP = 3


def render(result: LadderResult, console: Console) -> None:
    """Print a result; colours and width are the console's."""
    for style, sentence in answers.found(result):
        _line(console, sentence, verdict_names.STYLES.get(style, ""))
    for sentence in [*answers.terms(result), answers.variants(result)]:
        _line(console, sentence, "dim")
    for workload in result.workloads:
        if workload.floor:
            console.print()
            _workload(console, workload, result.alpha)
    console.print()
    for sentence in answers.seen(result):
        _line(console, sentence)
    _line(
        console,
        f"{result.runs_done} of {result.runs_planned} runs in {span(result.spent_s)}, Holm over "
        f"{numbers.counted(result.family, 'comparison')}, margin ±{result.margin_pct:g} %, "
        f"seed {result.seed}",
        "dim",
    )
    for caveat in caveats.of_runs(result):
        _line(console, f"- {caveat}", "yellow")


def _workload(console: Console, workload: OnWorkload, alpha: float) -> None:
    proven = "its waits as stated" if workload.proven else "its waits NOT as stated"
    _line(
        console,
        f"{wording.heading(workload)}: {wording.METRICS[workload.metric].name}, "
        f"{wording.blocks(workload)}, {span(workload.spent_s)}, {proven}",
        "bold",
    )
    rows, headings = tables.rows(workload), tables.headings(alpha)
    lines = box.ASCII if console.options.ascii_only else box.SIMPLE_HEAD
    table = Table(box=lines, pad_edge=False, show_edge=False, header_style="bold")
    cells = [row.cells for row in rows]
    columns = _columns(headings, cells, tables.LEAST_IMPORTANT, console.width)
    for i in columns:
        table.add_column(
            headings[i],
            justify="left" if i in tables.LEFT else "right",
            no_wrap=i > 0,
            overflow="fold",
        )
    for row in rows:
        shown = [Text(row.cells[i]) for i in columns]
        shown[-1].stylize("" if row.floor else verdict_names.STYLES.get(row.tone, ""))
        table.add_row(*shown, style="dim" if row.floor else "")
    console.print(table)


def _columns(
    head: Sequence[str], body: Sequence[Sequence[str]], least: Sequence[int], width: int
) -> list[int]:
    """The columns that fit, the least important left out first."""
    columns = list(range(len(head)))
    widths = [
        max(len(text) for text in (title, *(row[i] for row in body)))
        for i, title in enumerate(head)
    ]
    for i in least:
        if sum(widths[c] + _GAP for c in columns) <= width:
            break
        columns.remove(i)
    return columns


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False, soft_wrap=True)
