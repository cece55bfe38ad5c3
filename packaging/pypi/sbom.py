"""Write what the wheel depends on as a CycloneDX SBOM: `make packages`.

The versions are those of requirements.lock. plotly is listed as well, whose script is in the wheel.
Left out is what else only building takes, and extras.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pgtare

ROOT = Path(__file__).resolve().parents[2]
#: What only building takes, but in part is in the wheel (hatch_build.py).
CONTAINED = "plotly"
#: An entry of the lock: a line with name and version, and lines with the hashes of its files.
ENTRY = re.compile(r"^(?P<name>[\w.-]+)==.*\n(?:[ \t].*\n)*", re.MULTILINE)


def dependencies(
    requirements: Iterable[str], extras: frozenset[str] = frozenset()
) -> Iterator[str]:
    """The names of all packages that these requirements bring here, by what is installed."""
    for text in requirements:
        needed = Requirement(text)
        if needed.marker is None or any(
            needed.marker.evaluate({"extra": extra}) for extra in (extras or {""})
        ):
            yield canonicalize_name(needed.name)
            yield from dependencies(metadata.requires(needed.name) or (), frozenset(needed.extras))


def main() -> int:
    parser = argparse.ArgumentParser(prog="packaging/pypi/sbom.py", description=__doc__)
    parser.add_argument("output", type=Path, nargs="?", default=ROOT / "dist")
    output = parser.parse_args().output.absolute()
    lock = {
        entry["name"]: entry[0]
        for entry in ENTRY.finditer((ROOT / "requirements.lock").read_text())
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = sorted({*dependencies(project["dependencies"]), CONTAINED})
    command = [Path(sys.executable).with_name("cyclonedx-py"), "requirements", "-"]
    described = subprocess.run(
        [*command, "--pyproject", ROOT / "pyproject.toml", "--output-reproducible"],
        input="".join(lock[name] for name in names),
        stdout=subprocess.PIPE,
        # packages are listed, not which of them needs which
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        text=True,
        check=True,
    )
    bom = json.loads(described.stdout)
    bom["metadata"]["component"]["version"] = pgtare.__version__  # which pyproject.toml leaves open
    output.mkdir(exist_ok=True)
    path = output / f"pgtare-{pgtare.__version__}.cdx.json"
    path.write_text(json.dumps(bom, indent=2) + "\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
