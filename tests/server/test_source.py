"""Building servers from source, and linking their objects in other orders."""

import subprocess

import pytest

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.servers import BUILT
from tests.source import Link, Recipe, build, relink
from tests.source_package import tarball

pytestmark = [pytest.mark.source, pytest.mark.server, pytest.mark.timeout(1800)]


def order(binaries: Binaries) -> list[str]:
    """The executable's functions as they follow each other in memory."""
    done = subprocess.run(
        ["nm", "-n", binaries.postgres], capture_output=True, text=True, check=True
    )
    return [line.split()[2] for line in done.stdout.splitlines() if " T " in line]


def test_objects_in_random_orders() -> None:
    usual = order(build(BUILT))
    orders = [order(relink(BUILT, Link(seed=seed))) for seed in (1, 2)]
    assert orders[0] != orders[1]
    assert all(other != usual for other in orders)
    assert all(sorted(other) == sorted(usual) for other in orders)


def test_order_depends_on_the_seed_alone() -> None:
    first = relink(BUILT, Link(seed=1)).postgres
    again = relink(BUILT, Link(seed=1, ldflags="-L/usr/lib")).postgres  # which changes nothing
    assert first != again
    assert first.read_bytes() == again.read_bytes()


def test_relinked_server_is_an_installation_of_its_own() -> None:
    found = relink(BUILT, Link(seed=2))
    assert found.major == 18
    for path in (found.bindir, found.pkglibdir, found.sharedir, found.includedir_server):
        assert path.is_relative_to(found.pg_config.parents[1])
    with Cluster(found) as cluster, cluster.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert not cluster.log_path.read_text().count("ERROR")


def test_what_cannot_be_built_is_reported_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="--with-nonsense"):
        build(Recipe(18, ("--enable-option-checking=fatal", "--with-nonsense")))
    with pytest.raises(UsageError, match="Debian has no source of PostgreSQL 16"):
        tarball(16)
