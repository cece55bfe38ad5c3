"""One version for the command and all server modules, and what is said if versions differ."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import pgtare
from pgtare.postgres.build import control_version, source_dir
from pgtare.postgres.module_versions import ModuleVersions, mismatch
from pgtare.postgres.modules import PRELOAD_ORDER

ROOT = Path(__file__).parents[2]
OURS = pgtare.__version__
NEXT = "9.0.0"
INSTALL = (
    "run `pgtare module install --module pgtare --force --pg-config PATH` on the server's host"
)
ANEW = "run DROP EXTENSION pgtare; CREATE EXTENSION pgtare; in database app"


def test_the_package_takes_its_version_from_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"] == {"path": "src/pgtare/__init__.py"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", OURS)


def test_libraries_have_the_commands_version() -> None:
    header = (source_dir() / "common" / "version.h").read_text()
    assert re.findall(r'^#define PGTARE_VERSION "(.*)"$', header, re.M) == [OURS]
    for path in source_dir().rglob("*.[ch]"):
        if path.name != "version.h":
            assert not re.search(r"#define \w*VERSION\s+\"", path.read_text()), path


@pytest.mark.parametrize("module", PRELOAD_ORDER)
def test_extensions_have_the_commands_version(module: str) -> None:
    folder = source_dir() / module
    assert control_version(folder / f"{module}.control") == OURS
    (script,) = folder.glob("*.sql")
    assert script.name == f"{module}--{OURS}.sql"
    text = script.read_text()
    assert text.startswith(f"/* {script.name} */\n")
    series = OURS.rpartition(".")[0]
    assert f"'{series}.%'" in text
    assert f"not of version {series}'" in text


def test_the_docs_name_this_version() -> None:
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changes[0] == OURS
    assert f"\npgtare {OURS}\n" in (ROOT / "docs" / "tutorial.md").read_text()


def versions(
    library: str | None = OURS,
    extension: str | None = OURS,
    files: str | None = OURS,
    standby: bool = False,
    hidden: bool = False,
    lost: bool = False,
) -> ModuleVersions:
    return ModuleVersions("pgtare", "app", library, extension, files, True, hidden, lost, standby)


@pytest.mark.parametrize(
    "found",
    [
        versions(),
        versions(extension=None, files=None),  # functions without an extension
        versions(files=NEXT),  # not in force yet
        versions(library=None, hidden=True),
        versions(library=f"{OURS.rpartition('.')[0]}.99"),
        ModuleVersions("pgtare", "app"),
    ],
)
def test_what_goes_together(found: ModuleVersions) -> None:
    assert mismatch(found) is None


@pytest.mark.parametrize(
    ("found", "steps"),
    [
        (versions("0.3", "0.3", "0.3"), (INSTALL, "restart the server", ANEW)),
        (versions("0.3", "0.3"), ("restart the server", ANEW)),
        (versions(None, "0.3"), ("restart the server", ANEW)),
        (versions(None, "0.3", None), (INSTALL, "restart the server", ANEW)),
        (versions(extension="0.3"), (ANEW,)),
        (versions(extension="0.3", standby=True), (ANEW + " of the primary",)),
        (versions("0.3"), ("restart the server",)),
        (versions("0.3", files="0.3"), (INSTALL, "restart the server")),
        (versions(None), ("restart the server",)),
        (versions("0.3", None), ("restart the server",)),
        (versions(NEXT, NEXT, NEXT), (f"install version {NEXT} of the pgtare command",)),
        (versions(NEXT, "0.3", NEXT), (f"install version {NEXT} of the pgtare command",)),
        (versions(extension=NEXT), (f"install version {NEXT} of the pgtare command",)),
        (versions(None, "0.3", hidden=True), (ANEW,)),
        (versions(None, lost=True), (INSTALL, "restart the server")),
    ],
)
def test_each_mismatch_has_its_steps(found: ModuleVersions, steps: tuple[str, ...]) -> None:
    difference = mismatch(found)
    assert difference is not None
    assert difference.steps == steps
    assert "\n" not in str(difference)
    assert f"this command {OURS}, library in the server " in difference.why


def test_a_library_that_does_not_tell_its_version_is_described() -> None:
    assert versions(None).library_in_words == "unknown"
    assert versions(None, lost=True).library_in_words == "missing"


def test_scripts_name_the_schema_of_operators() -> None:
    """A superuser runs them with a schema in the path in which others may have made operators."""
    for path in sorted((ROOT / "server").glob("*/*.sql")):
        for condition in re.findall(r"IF (.*?) THEN", path.read_text(), re.S):
            assert not re.search(r"\s[<>=|!]+\s", condition), path.name
