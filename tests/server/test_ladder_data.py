"""What a run of a study finds in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.weighing.ladder.study_file import parse
from pgtare.weighing.ladder.study_servers import Bench, Serving
from tests.ladder_studies import STUDY

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

# once only, so that it reads nothing when it is run again
SETUP = """
DO $$ BEGIN IF to_regclass('"My Shop"."Orders"') IS NULL THEN
    CREATE SCHEMA "My Shop";
    CREATE TABLE "My Shop"."Orders" (id int PRIMARY KEY, pad text);
    INSERT INTO "My Shop"."Orders" SELECT n, repeat('x', 1000) FROM generate_series(1, 2000) n;
END IF; END $$
"""
READ = """
SELECT relname, count(b.*) >= pg_relation_size(c.oid) / 8192 FROM pg_class c
  LEFT JOIN pg_buffercache b ON b.relfilenode = pg_relation_filenode(c.oid) AND b.relforknumber = 0
 WHERE relname = ANY (%s) GROUP BY c.oid, relname
"""
TABLES = ("Orders", "Orders_pkey", "pgbench_accounts")


def in_memory(serving: Serving) -> dict[str, bool]:
    with serving.connect() as conn:
        return dict(conn.execute(READ, (list(TABLES),)).fetchall())


def test_tables_of_a_study_s_own_are_read_into_memory_as_well(
    tmp_path: Path, wheel: Binaries
) -> None:
    (tmp_path / "setup.sql").write_text(SETUP)
    text = STUDY.replace("scale = 2", 'scale = 1\nprewarm = true\nextensions = ["pg_buffercache"]')
    text = text.replace('"1MB"', '"64MB"')
    study = parse(text, "short.toml")
    (workload,) = study.workload
    own = workload.model_copy(update={"setup": "setup.sql"})
    with Bench(study, tmp_path) as bench:
        bench.serve("OFF", own)  # makes the table; each of the others restarts the server
        assert in_memory(bench.serve("OFF", own)) == dict.fromkeys(TABLES, True)
        found = in_memory(bench.serve("OFF", workload))
        assert found["pgbench_accounts"]
        assert not found["Orders"]  # it is another workload's
