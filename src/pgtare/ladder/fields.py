"""The tables of docs/ladder-json.md: `python -m pgtare.ladder.fields` prints them."""

from __future__ import annotations

from typing import Any

from pgtare.ladder.result import LadderResult

#: The models in the order in which the document nests them, and how each table is headed.
HEADINGS = {
    "LadderResult": "The document",
    "OnWorkload": "An element of `workloads`",
    "Compared": "An element of `compared`, and `floor`",
    "Effect": "`effect`",
    "OverLayouts": "`over_layouts`",
    "Beside": "An element of `beside`",
    "Rung": "An element of `rungs`",
    "Dropped": "An element of `dropped`",
    "Wait": "An element of `waits`",
    "SideBySide": "An element of `side_by_side`",
    "Way": "An element of `ways`",
    "Together": "An element of `together`",
}


def models() -> dict[str, Any]:
    """Every model of the schema by its name."""
    schema = LadderResult.model_json_schema(by_alias=True)
    return {"LadderResult": schema, **schema["$defs"]}


def tables() -> str:
    """A heading and a table for each model."""
    found, told = models(), []
    for name, heading in HEADINGS.items():
        told += [f"## {heading}", "", "| field | meaning |", "|---|---|"]
        told += [
            f"| `{field}` | {about.get('description', '')} |"
            for field, about in found[name]["properties"].items()
        ]
        told.append("")
    return "\n".join(told)


if __name__ == "__main__":
    print(tables(), end="")
