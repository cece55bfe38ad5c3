"""Where the sessions' time went between two looks: as counted, or as sampled."""

from __future__ import annotations

from pgtare.doctor.model import Waits, WaitShare
from pgtare.doctor.read import Look, Samples


def profile(first: Look, last: Look, samples: Samples) -> Waits | None:
    """The waits of sessions at work; None where other sessions cannot be seen."""
    if not samples.looks:
        return None
    on_cpu = samples.seen[""] / samples.looks
    exact = _counted(first, last)
    if exact is None:
        events = {e: n / samples.looks for e, n in samples.seen.items() if e}
    else:
        events = exact
    active = on_cpu + sum(events.values())
    return Waits(
        exact=exact is not None,
        samples=samples.looks,
        hits=samples.seen.total(),
        active=active,
        on_cpu=on_cpu,
        events=[
            WaitShare(event=event, active=n, share=n / active if active else None)
            for event, n in sorted(events.items(), key=lambda item: -item[1])
        ],
    )


def _counted(first: Look, last: Look) -> dict[str, float] | None:
    """Sessions that waited on average by event; None where that was not counted throughout."""
    before, after = first.waits, last.waits
    if before is None or after is None or before.reset != after.reset:
        return None
    ms = 1000 * (after.taken - before.taken).total_seconds()
    grown = {event: total - before.ms.get(event, 0.0) for event, total in after.ms.items()}
    return {event: spent / ms for event, spent in grown.items() if spent > 0}
