"""The protocols of the ladder, by the name that study files and results give them.

Every module of `protocols/` is imported, and each of its subclasses of `StudyProtocol` is one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from pgtare.weighing.ladder import protocols
from pgtare.weighing.ladder.protocol import StudyProtocol
from pgtare.weighing.ladder.protocols.rounds import Rounds

#: A workload's proof is a whole run, whichever protocol plays the workload.
WHOLE_RUNS = Rounds()


def _found() -> Iterator[StudyProtocol]:
    """One of each kind; rounds come first, as what is taken if nothing is said."""
    yield WHOLE_RUNS
    for info in sorted(pkgutil.iter_modules(protocols.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{protocols.__name__}.{info.name}")
        for kind in vars(module).values():
            if (
                isinstance(kind, type)
                and issubclass(kind, StudyProtocol)
                and kind.__module__ == module.__name__
                and kind is not Rounds
            ):
                yield kind()


PROTOCOLS: dict[str, StudyProtocol] = {protocol.name: protocol for protocol in _found()}
