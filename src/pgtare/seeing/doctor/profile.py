"""Where the sessions' time went between two looks: as counted, or as sampled."""

from __future__ import annotations

from pgtare.seeing.doctor.model import FEWEST_HITS, Waits, WaitShare
from pgtare.seeing.doctor.observed import ActivitySamples, CountedWaits, Look


def profile(first: Look, last: Look, samples: ActivitySamples) -> Waits | None:
    """The waits of sessions at work; None if other sessions cannot be seen."""
    if not samples.looks:
        return None
    on_cpu = samples.seen[""] / samples.looks
    hits = samples.seen.total()
    exact = _counted(first, last)
    rest = None if exact is None else _rest(first, last)
    known = rest is not None or hits >= FEWEST_HITS  # else counted waits would seem to be all
    if exact is None:
        events = {e: n / samples.looks for e, n in samples.seen.items() if e}
    else:
        events = exact
        # Sampled, it is too low: while our session looks, it keeps others from a processor.
        on_cpu = on_cpu if rest is None else rest
    active = on_cpu + sum(events.values())
    return Waits(
        exact=exact is not None,
        on_cpu_exact=rest is not None,
        samples=samples.looks,
        hits=hits,
        active=active,
        on_cpu=on_cpu,
        events=[
            WaitShare(
                event=event,
                active=n,
                share=n / active if active and known else None,
                share_lo=samples.least_share(event) if exact is None and known else None,
            )
            for event, n in sorted(events.items(), key=lambda item: -item[1])
        ],
    )


def _counted(first: Look, last: Look) -> dict[str, float] | None:
    """Sessions that waited on average by event; None if that was not counted throughout."""
    before, after = first.waits, last.waits
    if before is None or after is None or before.reset != after.reset:
        return None
    ms = _ms(before, after)
    grown = {event: total - before.ms.get(event, 0.0) for event, total in after.ms.items()}
    return {event: spent / ms for event, spent in grown.items() if spent > 0}


def _rest(first: Look, last: Look) -> float | None:
    """Sessions that did not wait, on average: on a processor, or ready for one.

    None if not all of their time was counted.
    """
    before, after = first.waits, last.waits
    if before is None or after is None or before.rest_ms is None or after.rest_ms is None:
        return None
    return max(0.0, after.rest_ms - before.rest_ms) / _ms(before, after)


def _ms(before: CountedWaits, after: CountedWaits) -> float:
    return 1000 * (after.taken - before.taken).total_seconds()
