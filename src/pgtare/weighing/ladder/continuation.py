"""Whether a study goes on as it was begun: with the same programs, on the same processors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pgtare
from pgtare.errors import UsageError
from pgtare.kit import machine
from pgtare.weighing.ladder.records import StudyFacts

_MACHINE = {"cpu_model": "the processor", "cpus_usable": "the number of usable processors"}


def check(
    begun: StudyFacts, planned: StudyFacts, servers: Mapping[str, str], directory: Path
) -> None:
    """Compare what a study was begun with to what it would go on with.

    planned: the facts that this process goes by; servers: the versions found, by name. Raises
    UsageError that names what differs: runs of both would be counted as one study's.
    """
    if begun != planned:
        raise UsageError(f"{directory} holds a study that was begun just now: start again")
    here = machine.describe()
    compared = [
        ("pgtare", begun.pgtare_version, pgtare.__version__),
        *(
            (f"the server {name}", begun.servers.get(name), found)
            for name, found in servers.items()
        ),
        *((what, begun.machine.get(key), here[key]) for key, what in _MACHINE.items()),
    ]
    changes = [
        f"{what} was {was} and is {now}"
        for what, was, now in compared
        # an older study's facts are fewer
        if was is not None and was != now
    ]
    if changes:
        raise UsageError(
            f"the study in {directory} cannot go on as it was begun: {'; '.join(changes)}; go on "
            f"where that is as it was, or end it with `pgtare ladder report {directory} --close`"
        )
