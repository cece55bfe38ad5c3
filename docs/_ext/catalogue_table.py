"""The catalogue of instruments as Markdown: a table, and what each number leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.instruments.model import Entry, Needs

_HEAD = ("instrument", "variants", "weighs", "base arm", "needs", "safe in production")


def table() -> Iterator[str]:
    """One row an entry; the first variant is the default."""
    rows = [_HEAD, ("---",) * len(_HEAD), *(_row(entry) for entry in load_catalogue().values())]
    for row in rows:
        yield f"| {' | '.join(row)} |"


def remarks() -> Iterator[str]:
    """Each remark once, with the instruments that it is of."""
    of: dict[str, list[str]] = {}
    for entry in load_catalogue().values():
        for remark in entry.remarks:
            of.setdefault(remark, []).append(f"`{entry.name}`")
    for remark, names in of.items():
        yield f"- {', '.join(names)}: {remark}"


def _row(entry: Entry) -> tuple[str, ...]:
    variants = [
        f"`{name}`" + (f" ({variant.description})" if variant.description else "")
        for name, variant in entry.variants.items()
    ]
    base = [f"`{name} = {value}`" for name, value in entry.base.items()]
    return tuple(
        text.replace("|", "\\|")
        for text in (
            f"`{entry.name}`",
            "<br>".join(variants),
            entry.description,
            "<br>".join(base) or "as it is",
            _needs(entry.needs),
            f"{'yes' if entry.safe_in_production else '**no**'}: {entry.reason}",
        )
    )


def _needs(needs: Needs) -> str:
    where = "shared or session preload" if needs.session_preload else "shared preload"
    parts = [f"{where} of `{library}`" for library in needs.preload]
    if needs.extension:
        parts.append(f"extension `{needs.extension}`")
    parts += [f"`{name}` above 0" for name in needs.start]
    if needs.min_version:
        parts.append(f"PostgreSQL {needs.min_version}+")
    if needs.max_version:
        parts.append(f"PostgreSQL up to {needs.max_version}")
    return "<br>".join(parts) or "nothing"
