"""What is said where PostgreSQL's source cannot be had."""

import shutil
from pathlib import Path

import pytest

from pgtare.errors import UsageError
from tests import source_package
from tests.source_package import tarball, version_of


def test_version_is_in_the_name() -> None:
    assert version_of(Path("/somewhere/postgresql-18_18.6.orig.tar.bz2")) == "18.6"
    assert version_of(Path("postgresql-19_19~rc1.orig.tar.bz2")) == "19~rc1"


def test_without_apt_it_says_where_to_put_the_file(
    own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match=r"put postgresql-18_VERSION\.orig\.tar\.bz2 into .*"):
        tarball(18)


def test_file_put_there_is_taken(own_place: Path) -> None:
    (own_place / "sources").mkdir(parents=True, mode=0o755)
    put = own_place / "sources" / "postgresql-17_17.11.orig.tar.bz2"
    put.touch()
    assert tarball(17) == put


@pytest.mark.slow  # apt tries for some seconds
def test_failing_download_is_reported(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_package, "mirror", lambda: "http://127.0.0.1:9")
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get")
    with pytest.raises(UsageError, match="cannot be fetched from Debian"):
        tarball(18)


def test_version_that_debian_never_had() -> None:
    with pytest.raises(UsageError, match="no source of PostgreSQL 16: choose one of 15, 17"):
        tarball(16)
