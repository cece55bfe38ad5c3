"""Flame graphs of two variants of one load: recorded one after the other, drawn side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtare.kit.page_section import Addition
from pgtare.observing.flame import perf, processes, show
from pgtare.observing.flame import profile as profiles
from pgtare.observing.flame import recording as keep
from pgtare.observing.flame.record import record
from pgtare.observing.flame.recording import Mode

_MODES: tuple[Mode, ...] = ("off", "on")
_RATE = 499


@dataclass(frozen=True)
class PairOfFlames:
    """Records and draws. seconds: of one recording."""

    seconds: float = 5.0
    modes: tuple[Mode, ...] = _MODES

    def check(self) -> None:
        """Raise PgtareError if perf may not record here."""
        perf.find_perf()
        perf.check_allowed("off", [])

    def record(self, mode: str, postmaster: int, place: Path, tell: Callable[[str], None]) -> None:
        """Record a server's processes into a new directory. KeyboardInterrupt after Ctrl-C."""
        text = show.TITLES[mode].lower()
        target = processes.of_postmaster(postmaster)
        of: Mode = "on" if mode == "on" else "off"
        recording = record(of, target, self.seconds, _RATE, lambda *progress: tell(text))
        if recording.stopped_by == "interrupt":
            raise KeyboardInterrupt
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        keep.save(place, recording)

    def section(
        self, title: str, name: str, variants: Sequence[str], place: Callable[[str, str], Path]
    ) -> Addition:
        """A section of a page: both variants and the change. place: by variant and mode."""
        graphs: list[show.Graph] = []
        notes: list[str] = []
        for mode in self.modes:
            drawn, drawn_notes = _drawn(name, variants, mode, place)
            graphs += drawn
            notes += drawn_notes
        html = show.fragment(graphs, list(dict.fromkeys(notes)))
        return Addition(title, html, show.script())


def _drawn(
    name: str, variants: Sequence[str], mode: Mode, place: Callable[[str, str], Path]
) -> tuple[list[show.Graph], list[str]]:
    """The graphs of one mode, the change last, and notes on them."""
    found, graphs, notes = [], [], []
    for variant in variants:
        title = f"{show.TITLES[mode]}: {variant}"
        at = place(variant, mode)
        if not at.exists():
            notes.append(f"{title}: not recorded.")
            continue
        recording = keep.load(at)
        profile = profiles.profile(recording.shown())
        found.append(profile)
        graphs.append(show.alone(profile, f"{name}-{variant}-{mode}", title, recording.duration_s))
        notes += [f"{variant}: {note}" for note in recording.notes]
    if len(found) == len(variants) == 2:
        before, after = variants
        graphs.append(
            show.difference(
                *found,
                id=f"{name}-change-{mode}",
                names=(before, after),
                what=show.TITLES[mode],
            )
        )
    return graphs, notes
