"""Whether the servers that a study names are there, before anything is run on them."""

from __future__ import annotations

from pathlib import Path

from pgtare.errors import UsageError
from pgtare.server.modules import own_modules
from pgtare.weighing.instruments.catalogue import near
from pgtare.weighing.ladder.bench import Bench
from pgtare.weighing.ladder.study import Study


def check(study: Study) -> None:
    """Looks at installations and disk; what the wheel and built servers have is not asked.

    Raises UsageError for a pg_config that is not there, for a library to preload that its
    installation lacks, and for too small a disk.
    """
    with Bench(study) as bench:
        for variant in study.variant:
            pg_config = study.servers[variant.server].pg_config
            if pg_config is None:
                continue
            if not Path(pg_config).exists():
                raise UsageError(
                    f"the server {variant.server!r} names the pg_config {pg_config}, which is not "
                    "there (Debian's package is postgresql-server-dev-NN, RPM's postgresqlNN-devel)"
                )
            folder = bench.binaries(variant.server).pkglibdir
            there = sorted({*(path.stem for path in folder.glob("*.so")), *own_modules()})
            for library in dict.fromkeys(
                (*variant.preload, *(name for w in study.workload for name in w.preload))
            ):
                if "/" not in library and library not in there:
                    raise UsageError(
                        f"the variant {variant.name} preloads {library!r}, which the server "
                        f"{variant.server!r} lacks in {folder}{near(library, there)}"
                    )
        bench.check_disk()
