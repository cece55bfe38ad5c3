"""Get PostgreSQL's source from Debian's archive: by apt, without root, in files of our own."""

import re
import shutil
import subprocess
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.postgres.directories import locked, place
from pgtare.postgres.os_account import environment

SUITES = {15: "bookworm", 17: "trixie", 18: "sid", 19: "experimental"}
"""Where Debian keeps each major version; it never had a stable release with 16."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DOWNLOAD_SECONDS = 600.0


def tarball(major: int) -> Path:
    """PostgreSQL's own source as Debian packs it, signature checked; fetched if it is not here."""
    if major not in SUITES:
        known = ", ".join(map(str, SUITES))
        raise UsageError(f"Debian has no source of PostgreSQL {major}: choose one of {known}")
    shelf = place("sources")
    with locked(shelf / ".lock"):
        found = _newest(shelf, major)
        if found is None:
            _fetch(shelf, major)
            found = _newest(shelf, major)
    if found is None:
        raise UsageError(f"Debian's source package of PostgreSQL {major} holds no tar file")
    return found


def version_of(tar: Path) -> str:
    """The version in a tar file's name, such as 18.6."""
    return tar.name.partition("_")[2].partition(".orig")[0]


def _newest(shelf: Path, major: int) -> Path | None:
    found = shelf.glob(f"postgresql-{major}_*.orig.tar.*")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _fetch(shelf: Path, major: int) -> None:
    if shutil.which("apt-get") is None or not KEYRING.exists():
        raise UsageError(
            f"fetching PostgreSQL's source needs Debian's apt-get and {KEYRING}: "
            f"without them put postgresql-{major}_VERSION.orig.tar.bz2 into {shelf}"
        )
    suite = SUITES[major]
    root = shelf / f"apt-{suite}"
    for name in ("lists/partial", "cache/archives/partial"):
        (root / name).mkdir(parents=True, exist_ok=True)
    sources = root / "sources.list"
    sources.write_text(f"deb-src [signed-by={KEYRING}] {mirror()} {suite} main\n")
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": root / "lists",
        "Dir::Cache": root / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(part for k, v in options.items() for part in ("-o", f"{k}={v}"))]
    _run([*apt, "update"], shelf, major)
    _run([*apt, "source", "--download-only", "--tar-only", f"postgresql-{major}"], shelf, major)
    shutil.rmtree(root)  # the lists of a whole suite


def mirror() -> str:
    """The mirror that this machine's apt uses for Debian itself."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    uris = done.stdout.split()
    if not uris or not re.match(r"https?://", uris[0]):
        raise UsageError(
            "apt names no mirror of Debian to fetch PostgreSQL's source from: add one to its "
            "sources, and run apt-get update"
        )
    return uris[0].rstrip("/")


def _run(command: list[str], shelf: Path, major: int) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=shelf,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=DOWNLOAD_SECONDS,
            env=environment(),
        )
        errors = "; ".join(line for line in done.stderr.splitlines() if line.startswith("E:"))
    except subprocess.TimeoutExpired:
        errors = f"no answer within {DOWNLOAD_SECONDS:.0f} s"
    else:
        if done.returncode == 0:
            return
    raise UsageError(
        f"the source of PostgreSQL {major} cannot be fetched from Debian "
        f"({errors or 'apt-get failed'}): check the network, "
        f"or put postgresql-{major}_VERSION.orig.tar.bz2 into {shelf}"
    )
