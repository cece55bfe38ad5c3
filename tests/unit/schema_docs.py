"""What a schema and the page that explains it owe each other, for every kind of result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def documented(page: str) -> dict[str, set[str]]:
    """Heading -> fields in the first column of its table, in a page of the docs."""
    text = (DOCS / page).read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {
        heading: set(re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE))
        for heading, section in zip(parts[1::2], parts[2::2], strict=True)
    }


def models(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every model of a schema by its name, the document's own among them."""
    return {schema["title"]: schema, **schema["$defs"]}


def assert_documented(schema: dict[str, Any], page: str, headings: dict[str, str]) -> None:
    """The page describes exactly the fields of the schema; headings: model -> section."""
    found, sections = models(schema), documented(page)
    assert set(found) == set(headings)
    for name, model in found.items():
        assert sections[headings[name]] == set(model["properties"]), name


def silent_fields(schema: dict[str, Any]) -> list[str]:
    """Fields that do not say what they are."""
    return [
        f"{name}.{field}"
        for name, model in models(schema).items()
        for field, about in model["properties"].items()
        if not about.get("description")
    ]
