"""Arguments that another program's parser takes: `pgtare clock --compat` is pg_test_timing."""

from __future__ import annotations

from collections.abc import Sequence

_COMPAT = "--compat"


def is_meant(arguments: Sequence[str]) -> bool:
    """Whether these are for another program's parser."""
    return list(arguments[:1]) == ["clock"] and _COMPAT in arguments


def run(arguments: Sequence[str]) -> int:
    """Run as that program; its exit status."""
    from pgtare.observing.clock import pg_test_timing

    return pg_test_timing.main([argument for argument in arguments[1:] if argument != _COMPAT])
