"""Where the sessions' time went between two looks."""

from __future__ import annotations

from dataclasses import replace

from pgtare.observing.doctor.model import FEWEST_HITS, Waits, WaitShare
from pgtare.observing.doctor.observed import ActivitySamples, Look


def profile(first: Look, last: Look, samples: ActivitySamples) -> Waits | None:
    """The waits of sessions at work; None if other sessions cannot be seen."""
    if not samples.looks:
        return None
    hits = samples.seen.total()
    sampled_on_cpu = samples.seen[""] / samples.looks
    counted = last.waits.since(first.waits) if first.waits and last.waits else None
    if counted is None:
        events = {e: n / samples.looks for e, n in samples.seen.items() if e}
        active, on_cpu = sampled_on_cpu + sum(events.values()), sampled_on_cpu
    else:
        # Sampled, it is too low: while our session looks, it keeps others from a processor.
        counted = replace(counted, sampled_on_cpu=sampled_on_cpu)
        waited = {e: ms for e, ms in counted.waited_ms.items() if ms and not e.idle}
        events = {e.label: counted.average(ms) for e, ms in waited.items()}
        active, on_cpu = counted.active, counted.on_cpu or 0.0
    on_cpu_exact = counted is not None and counted.sessions is not None
    known = on_cpu_exact or hits >= FEWEST_HITS  # else counted waits would seem to be all
    return Waits(
        exact=counted is not None,
        on_cpu_exact=on_cpu_exact,
        samples=samples.looks,
        hits=hits,
        active=active,
        on_cpu=on_cpu,
        events=[
            WaitShare(
                event=event,
                active=n,
                share=n / active if active and known else None,
                share_lo=samples.least_share(event) if counted is None and known else None,
            )
            for event, n in sorted(events.items(), key=lambda item: -item[1])
        ],
    )
