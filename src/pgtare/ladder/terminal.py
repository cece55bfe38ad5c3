"""A study's result on the terminal: the answers, then a table a workload, then what spoke up."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgtare.ladder import tables, wording
from pgtare.ladder.progress import span
from pgtare.ladder.result import LadderResult, OnWorkload
from pgtare.report import verdicts

_GAP = 3


def render(result: LadderResult, console: Console) -> None:
    """Print a result; colours and width are the console's."""
    for style, sentence in wording.answers(result):
        _line(console, sentence, verdicts.STYLES.get(style, ""))
    for workload in result.workloads:
        if workload.floor:
            console.print()
            _workload(console, workload)
    console.print()
    for sentence in wording.together_sentences(result):
        _line(console, sentence)
    _line(
        console,
        f"{result.runs_done} of {result.runs_planned} runs in {span(result.spent_s)}, Holm over "
        f"{result.family} comparisons, margin ±{result.margin_pct:g} %, seed {result.seed}",
        "dim",
    )
    for caveat in wording.caveats(result):
        _line(console, f"- {caveat}", "yellow")


def _workload(console: Console, workload: OnWorkload) -> None:
    proven = "its waits as stated" if workload.proven else "its waits NOT as stated"
    _line(
        console,
        f"{wording.heading(workload)}: {wording.METRICS[workload.metric]}, "
        f"{wording.blocks(workload)}, {span(workload.spent_s)}, {proven}",
        "bold",
    )
    rows = tables.rows(workload)
    shown = box.ASCII if console.options.ascii_only else box.SIMPLE_HEAD
    table = Table(box=shown, pad_edge=False, show_edge=False, header_style="bold")
    columns = _fitting(rows, console.width)
    for i in columns:
        table.add_column(
            tables.HEADINGS[i], justify="left" if i in tables.LEFT else "right", no_wrap=i > 0,
            overflow="fold",
        )  # fmt: skip
    for row in rows:
        cells = [Text(row.cells[i]) for i in columns]
        cells[-1].stylize("" if row.floor else verdicts.STYLES.get(row.tone, ""))
        table.add_row(*cells, style="dim" if row.floor else "")
    console.print(table)


def _fitting(rows: list[tables.Row], width: int) -> list[int]:
    """The columns that fit, the least important left out first."""
    columns = list(range(len(tables.HEADINGS)))
    widths = [
        max(len(text) for text in (title, *(row.cells[i] for row in rows)))
        for i, title in enumerate(tables.HEADINGS)
    ]
    for i in tables.LEAST_IMPORTANT:
        if sum(widths[c] + _GAP for c in columns) <= width:
            break
        columns.remove(i)
    return columns


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False, soft_wrap=True)
