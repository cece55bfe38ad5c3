"""Whether a study's installations and disk have what it needs, before any server is started."""

from __future__ import annotations

from pgtare.errors import UsageError
from pgtare.postgres.modules import PRELOAD_ORDER
from pgtare.weighing.instruments.catalogue import near
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_servers import Bench


def check_installations(study: Study) -> None:
    """Look at installations and disk; the wheel is not asked.

    Raises UsageError for a pg_config that is not there, for a library to preload that its
    installation lacks, and for too small a disk.
    """
    with Bench(study) as bench:
        for variant in study.variant:
            if study.servers[variant.server].pg_config is None:
                continue
            folder = bench.binaries(variant.server).pkglibdir
            there = sorted({*(path.stem for path in folder.glob("*.so")), *PRELOAD_ORDER})
            for library in dict.fromkeys(
                (*variant.preload, *(name for w in study.workload for name in w.preload))
            ):
                if "/" not in library and library not in there:
                    raise UsageError(
                        f"the variant {variant.name} preloads {library!r}, which the server "
                        f"{variant.server!r} lacks in {folder}{near(library, there)}"
                    )
        bench.check_disk()
