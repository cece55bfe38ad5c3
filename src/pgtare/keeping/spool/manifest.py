"""The manifest: which files are the spool's content, and what was rolled up and dropped.

`manifest.json` is replaced by one rename at each commit. `manifest.previous.json` is the one before
it, read if the newest is damaged: the files that it names are still there. Segments of long ago are
listed in a file of their own, the catalogue, so that a commit does not write them all again.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from pgtare.keeping.spool import segments
from pgtare.keeping.spool.segments import DamagedFile, Segment
from pgtare.keeping.spool.volume import Volume
from pgtare.kit import artefact

KIND = artefact.ArtefactKind("spool of `pgtare agent`", "spool.json", "pgtare.spool/1")
NEWEST, PREVIOUS = "manifest.json", "manifest.previous.json"
CATALOGUES, READINGS = "catalogues", "readings"
DIRECTORIES = (segments.DIRECTORY, READINGS, CATALOGUES)
#: What to do about a spool that cannot be read.
REMEDY = "restore it from a copy, or let the agent begin another spool"

_FORMAT = "pgtare.spool.manifest/1"
#: How files are named by the commit that wrote them.
_OF_COMMIT = re.compile(r".+?-(\d{10})[-.]")
#: A catalogue is written anew if more segments than these are in none.
_MOST_OUTSIDE = 256
#: Times that a reader tries, as a commit may replace the catalogue that it is about to open.
_TRIES, _PAUSE_S = 5, 0.02


@dataclass(frozen=True)
class KeptReading:
    """The file of a cumulative reading."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Retired:
    """A replaced file: when (s since 1970) and by which commit, and what it takes."""

    at_s: float
    seq: int
    bytes: int


@dataclass(frozen=True)
class SpoolManifest:
    """What a spool holds. Files are named relative to it.

    readings: by server and part. rolled_us: for each rolled-up table, up to which ts of its source
    it is. retired: replaced files that readers may still have open. dropped: rows that a table has
    lost by age or for room; dropped_us: the latest ts of these, µs since 1970. damaged: files set
    aside, and why. lost: first and last number of commits that were lost with a damaged manifest.
    rolled_early: if the watermark of a rolled-up table was set back, what is summed up beyond it:
    rows of commits up to a number, with ts up to a time in µs.
    """

    uuid: str
    seq: int = 0
    segments: dict[str, Segment] = field(default_factory=dict)
    readings: dict[tuple[str, str], KeptReading] = field(default_factory=dict)
    rolled_us: dict[str, int] = field(default_factory=dict)
    retired: dict[str, Retired] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_us: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    lost: tuple[tuple[int, int], ...] = ()
    rolled_early: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    catalogue: str | None = None
    catalogued: frozenset[str] = frozenset()

    def following(self, seq: int) -> SpoolManifest:
        """The same for another commit, which may change what is in it."""
        copies: dict[str, Any] = {
            name: dict(value) for name, value in vars(self).items() if isinstance(value, dict)
        }
        return replace(self, seq=seq, **copies)

    def of_table(self, name: str) -> list[Segment]:
        """A table's segments, in the order of their commits."""
        found = [segment for segment in self.segments.values() if segment.table == name]
        return sorted(found, key=lambda segment: (segment.first_seq, segment.name))

    def is_rolled_up(self, segment: Segment, table: str) -> bool:
        """Whether all rows of a segment are in a rolled-up table."""
        return segment.last_us <= self.rolled_us.get(table, 0) or any(
            segment.last_seq <= seq and segment.last_us <= us
            for seq, us in self.rolled_early.get(table, ())
        )

    def files(self) -> set[str]:
        """Every file that it needs, and those that are retired."""
        readings = (reading.name for reading in self.readings.values())
        catalogue = (self.catalogue,) if self.catalogue else ()
        return {*self.segments, *readings, *self.retired, *catalogue}


@dataclass(frozen=True)
class ManifestFault:
    """A damaged or missing file: its name below the spool, why it is not used, and a sentence."""

    name: str
    why: str
    sentence: str


def write(volume: Volume, manifest: SpoolManifest) -> SpoolManifest:
    """Make a manifest the spool's, by one rename; as it was written. The files are synced already.

    An OSError means that the old one is still in force; but not one of `finish`.
    """
    manifest = _with_catalogue(volume, manifest)
    outside = [s.to_list() for s in manifest.segments.values() if s.name not in manifest.catalogued]
    content = {
        "format": _FORMAT,
        "uuid": manifest.uuid,
        "seq": manifest.seq,
        "catalogue": manifest.catalogue,
        "segments": outside,
        "readings": [
            [server, part, *astuple(reading)]
            for (server, part), reading in manifest.readings.items()
        ],
        "rolled_us": manifest.rolled_us,
        "retired": {name: astuple(retired) for name, retired in manifest.retired.items()},
        "dropped": {name: [rows] for name, rows in manifest.dropped.items()},
        "dropped_us": manifest.dropped_us,
        "damaged": manifest.damaged,
        "lost": manifest.lost,
        "rolled_early": manifest.rolled_early,
    }
    volume.write(f"{NEWEST}.new", _sealed(content))
    if volume.path(NEWEST).exists():
        volume.remove(f"{PREVIOUS}.new")
        volume.link(NEWEST, f"{PREVIOUS}.new")
        volume.replace(f"{PREVIOUS}.new", PREVIOUS)
    volume.replace(f"{NEWEST}.new", NEWEST)
    return manifest


def _with_catalogue(volume: Volume, manifest: SpoolManifest) -> SpoolManifest:
    names = manifest.segments.keys()
    if manifest.catalogued <= names and len(names) - len(manifest.catalogued) <= _MOST_OUTSIDE:
        return manifest
    catalogue = f"{CATALOGUES}/{manifest.uuid}-{manifest.seq:010d}.json"
    content = {"segments": [segment.to_list() for segment in manifest.segments.values()]}
    volume.write(catalogue, _sealed(content))
    volume.sync(CATALOGUES)
    return replace(manifest, catalogue=catalogue, catalogued=frozenset(names))


def _sealed(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":"))
    seal = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"sha256":"{seal}","content":{text}}}\n'.encode()


def _opened(root: Path, name: str) -> dict[str, Any]:
    """The content of a sealed file. Raises DamagedFile, and FileNotFoundError."""
    text = (root / name).read_text(encoding="utf-8", errors="replace")
    try:
        found = json.loads(text)
        content: dict[str, Any] = found["content"]
        body = json.dumps(content, separators=(",", ":"))
        if hashlib.sha256(body.encode()).hexdigest() != found["sha256"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError) as ex:
        raise DamagedFile(name, "it is not as it was written") from ex
    return content


def read(root: Path) -> tuple[SpoolManifest | None, list[ManifestFault]]:
    """The newest manifest that is whole, None if there is none yet; and what was wrong.

    If a catalogue is lost, its segments are found by their files. Raises PgtareError if there were
    manifests and none can be read: the first commit, if killed, leaves files of one commit only.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _manifest(root, NEWEST), []
        except FileNotFoundError:
            # of the manifest, or of a catalogue that was replaced meanwhile
            gone = not (root / NEWEST).exists() and not (root / PREVIOUS).exists()
            if gone and len(commits(root)) < 2:
                return None, []
        except DamagedFile:
            pass
        if left:
            time.sleep(_PAUSE_S)
    faults = []
    try:
        content = _opened(root, NEWEST)
    except (DamagedFile, FileNotFoundError) as ex:
        faults.append(_fault(root, NEWEST, ex, "the state of one commit earlier is used"))
        try:
            content = _opened(root, PREVIOUS)
        except (DamagedFile, FileNotFoundError):
            why = f"neither {NEWEST} nor {PREVIOUS} is whole"
            raise artefact.damaged(root, why, REMEDY) from ex
    try:
        return _of_content(root, content, _listed(root, content)), faults
    except (DamagedFile, FileNotFoundError) as ex:
        faults.append(
            _fault(root, content["catalogue"], ex, "its segments were found by their files")
        )
    found = _of_content(root, {**content, "catalogue": None}, [])
    others = {one.name: one for one in _unlisted(root, found)}
    return replace(found, segments={**others, **found.segments}), faults


def commits(root: Path) -> set[int]:
    """The numbers of all commits that files are named by, completed or not."""
    names = (path.name for place in DIRECTORIES for path in (root / place).glob("*"))
    return {int(found[1]) for name in names if (found := _OF_COMMIT.match(name))}


def _fault(root: Path, name: str, ex: Exception, instead: str) -> ManifestFault:
    if isinstance(ex, DamagedFile):
        return ManifestFault(name, ex.why, f"{root / name} is damaged; {instead}")
    return ManifestFault(name, "it is missing", f"{root / name} is missing; {instead}")


def _unlisted(root: Path, found: SpoolManifest) -> Iterator[Segment]:
    """Segments of completed commits that a manifest does not name."""
    known = {*found.segments, *found.retired}
    for path in sorted((root / segments.DIRECTORY).iterdir()):
        name = f"{segments.DIRECTORY}/{path.name}"
        if name in known:
            continue
        segment = segments.recovered(root, name, found.seq)
        if segment is not None:
            yield segment


def read_previous(root: Path) -> SpoolManifest:
    """The manifest before the newest. Raises DamagedFile and FileNotFoundError."""
    return _manifest(root, PREVIOUS)


def _manifest(root: Path, name: str) -> SpoolManifest:
    content = _opened(root, name)
    return _of_content(root / name, content, _listed(root, content))


def _listed(root: Path, content: dict[str, Any]) -> list[Segment]:
    """The segments of the catalogue. Raises DamagedFile and FileNotFoundError."""
    catalogue = content["catalogue"]
    listed = _opened(root, catalogue)["segments"] if catalogue else []
    return [Segment(*fields) for fields in listed]


def _of_content(path: Path, content: dict[str, Any], old: list[Segment]) -> SpoolManifest:
    if content["format"] != _FORMAT:
        version = str(content["format"]).rpartition("/")[2]
        known = _FORMAT.rpartition("/")[2]
        raise artefact.other_version(path, int(version), int(known))
    new = [Segment(*fields) for fields in content["segments"]]
    return SpoolManifest(
        uuid=content["uuid"],
        seq=content["seq"],
        segments={segment.name: segment for segment in (*old, *new)},
        readings={
            (server, part): KeptReading(*rest) for server, part, *rest in content["readings"]
        },
        rolled_us=content["rolled_us"],
        retired={name: Retired(*rest) for name, rest in content["retired"].items()},
        # earlier versions wrote more after the rows
        dropped={name: lost[0] for name, lost in content["dropped"].items()},
        dropped_us=content.get("dropped_us", {}),  # which earlier versions did not write
        damaged=content["damaged"],
        lost=tuple((first, last) for first, last in content["lost"]),
        rolled_early={
            table: tuple((seq, us) for seq, us in pairs)
            for table, pairs in content["rolled_early"].items()
        },
        catalogue=content["catalogue"],
        catalogued=frozenset(segment.name for segment in old),
    )
