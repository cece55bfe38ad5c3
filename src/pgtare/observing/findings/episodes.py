"""Opens and closes findings over time: one moment makes no finding, and none flickers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pgtare.observing.findings.causes import HOT_LOCK
from pgtare.observing.findings.model import OUTAGE, SETTING, Finding, FindingTraces
from pgtare.observing.findings.observation import moment

Change = Literal["open", "update", "close"]

#: Of so many evaluations in a row, so many must show it.
_LOOKS, _NEEDED = 3, 2
#: A setting that is too small for a batch is so a few times; one that is shows in the long run.
_LOOKS_AT_SETTINGS, _NEEDED_OF_SETTINGS = 30, 4
#: One that is not seen for so long is closed, s; one that comes back sooner than this is the same.
_CLOSED_S, _SAME_S = 60.0, 600.0
#: Open findings are written anew after so long, s, or if share or sessions rose by so much.
_UPDATE_S, _RISEN, _MORE_SESSIONS = 60.0, 0.1, 1.0
#: Settings that nobody changes stay open for days.
_SETTING_S = 600.0
#: A wait so long, of so many sessions, is opened at once.
_AT_ONCE_S, _AT_ONCE_SESSIONS = 5.0, 3


@dataclass
class Episode:
    """One finding over time. since, seen_at, written_at: s since 1970.

    active_s: active time that it took so far. follows: key of the one whose object it took over.
    traces: None, if there is nothing to say of them.
    """

    finding: Finding
    since: float
    seen_at: float
    written_at: float = 0.0
    active_s: float = 0.0
    episodes: int = 1
    follows: str | None = None
    traces: FindingTraces | None = None


@dataclass(frozen=True)
class EpisodeChange:
    """What happened to a finding at one evaluation."""

    change: Change
    episode: Episode
    until: float | None = None


@dataclass
class Episodes:
    """All findings of one server: open, closed a short time ago, and those that may open."""

    open: dict[str, Episode] = field(default_factory=dict)
    closed: dict[str, Episode] = field(default_factory=dict)
    _seen: dict[str, deque[bool]] = field(default_factory=dict)

    def evaluate(
        self, findings: Iterable[Finding], at: float, seconds: float
    ) -> list[EpisodeChange]:
        """Take what an evaluation found. at: s since 1970. seconds: since the one before."""
        now = {finding.key: finding for finding in findings}
        for episode in (*self.open.values(), *self.closed.values()):
            # if the clock was set back, what is over must not stay open until it gets there again
            episode.seen_at = min(episode.seen_at, at)
            episode.written_at = min(episode.written_at, at)
        changes = []
        for key, finding in now.items():
            if key in self.open:
                change = self._goes_on(self.open[key], finding, at, seconds)
            else:
                change = self._may_open(finding, at, seconds)
            if change is not None:
                changes.append(change)
        for key in list(self._seen):
            if key not in now:
                self._seen[key].append(False)
                if not any(self._seen[key]):
                    del self._seen[key]
        for key, episode in list(self.open.items()):
            if key not in now and at - episode.seen_at >= _CLOSED_S:
                changes.append(EpisodeChange("close", episode, until=episode.seen_at))
                self.closed[key] = self.open.pop(key)
        for key, episode in list(self.closed.items()):
            if at - episode.seen_at > _SAME_S:
                del self.closed[key]
        return changes

    def end_all(self) -> list[EpisodeChange]:
        """The server was restarted: all that was open has ended."""
        changes = [
            EpisodeChange("close", episode, until=episode.seen_at) for episode in self.open.values()
        ]
        self.closed |= self.open
        self.open = {}
        self._seen.clear()
        return changes

    def _goes_on(
        self, episode: Episode, finding: Finding, at: float, seconds: float
    ) -> EpisodeChange | None:
        before = episode.finding
        risen = (finding.share or 0.0) - (before.share or 0.0) >= _RISEN or (
            (finding.aas or 0.0) - (before.aas or 0.0) >= _MORE_SESSIONS
        )
        every = _UPDATE_S if finding.class_ < SETTING else _SETTING_S
        due = at - episode.written_at >= every
        changed = finding.class_ < before.class_ or finding.title != before.title
        # windows overlap, so what was counted at the evaluation before is left out
        late_s = finding.active_after(episode.seen_at)
        episode.active_s += late_s if late_s is not None else (finding.aas or 0.0) * seconds
        episode.seen_at = at
        if not (risen or due or changed):
            return None
        episode.finding, episode.written_at = finding, at
        return EpisodeChange("update", episode)

    def _may_open(self, finding: Finding, at: float, seconds: float) -> EpisodeChange | None:
        looks = _LOOKS_AT_SETTINGS if finding.class_ == SETTING else _LOOKS
        seen = self._seen.setdefault(finding.key, deque(maxlen=looks))
        seen.append(True)
        lately = sum(list(seen)[-_LOOKS:]) >= _NEEDED
        if not (lately or sum(seen) >= _NEEDED_OF_SETTINGS or _is_urgent(finding)):
            return None
        earlier = self.closed.pop(finding.key, None)
        since = finding.since.timestamp() if finding.since is not None else at
        episode = Episode(finding, since, at, at, finding.active_s or 0.0)
        if earlier is not None:
            episode.since, episode.episodes = earlier.since, earlier.episodes + 1
            episode.active_s += earlier.active_s
            episode.traces = earlier.traces
        else:
            episode.follows = self._predecessor(finding, at)
        self.open[finding.key] = episode
        return EpisodeChange("open", episode)

    def _predecessor(self, finding: Finding, at: float) -> str | None:
        """The one of the same kind and object that has just gone: its root was ended, maybe."""
        if finding.object is None:
            return None
        for key, other in (*self.open.items(), *self.closed.items()):
            gone = other.seen_at < at and at - other.seen_at <= _CLOSED_S
            if gone and (other.finding.kind, other.finding.object) == (
                finding.kind,
                finding.object,
            ):
                return key
        return None


def _is_urgent(finding: Finding) -> bool:
    """Whether it opens at once: an outage, a setting, or several that wait for long.

    Who holds a lock is often not known at the first look, and named at the next.
    """
    if (finding.class_ == OUTAGE and finding.kind != HOT_LOCK) or (
        finding.key.startswith("setting/") and finding.quality == "exact"
    ):
        return True
    waited = finding.figures.get("longest_wait_s", 0.0)
    return waited >= _AT_ONCE_S and finding.figures.get("sessions", 0.0) >= _AT_ONCE_SESSIONS


def began(episode: Episode) -> Finding:
    """The finding as it is to be shown: since its first sample, with all its time."""
    return episode.finding.model_copy(
        update={"since": moment(episode.since), "active_s": episode.active_s}
    )
