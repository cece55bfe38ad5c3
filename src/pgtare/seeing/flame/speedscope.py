"""The file format of speedscope.app: stacks with weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pgtare
from pgtare.seeing.flame.profile import total
from pgtare.seeing.flame.samples import Stack


def document(name: str, profiles: Mapping[str, Mapping[Stack, int]]) -> dict[str, Any]:
    """One document with a profile for each name; weights are nanoseconds."""
    index: dict[str, int] = {}
    drawn = [
        {
            "type": "sampled",
            "name": title,
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": total(found),
            "samples": [[index.setdefault(f, len(index)) for f in stack] for stack in found],
            "weights": list(found.values()),
        }
        for title, found in profiles.items()
    ]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"pgtare {pgtare.__version__}",
        "name": name,
        "shared": {"frames": [{"name": frame} for frame in index]},
        "profiles": drawn,
    }
