"""Labels of servers: kept with the rows, so that queries can join them."""

from __future__ import annotations

from pathlib import Path

from pgtare.keeping.agent.agent import Agent
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.agent.description import ServerDescription
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool import reader
from pgtare.keeping.spool.writer import Spool
from pgtare.postgres.inventory import InventoryServer
from tests.unit.spool_rows import UNLIMITED


def begin(directory: Path, **labels: str) -> None:
    """An agent that begins to watch a server with these labels."""
    server = InventoryServer(dsn="host=nowhere", labels=labels)
    with Spool.open(directory, UNLIMITED) as spool:
        agent = Agent(AgentConfig(servers={"shop": server}), spool, AgentLog())
        described = ServerDescription("shop", agent.uuid, lambda part: spool.reading("shop", part))
        agent._collect("shop", described.changed(server.labels, None))
        agent._commit()


def test_labels_are_kept_when_they_change(tmp_path: Path) -> None:
    count = "SELECT count(*) FROM servers WHERE server = 'shop'"
    for labels, rows in (({}, 1), ({"env": "prod"}, 2), ({"env": "prod"}, 2), ({"env": "α"}, 3)):
        begin(tmp_path, **labels)
        assert reader.query(tmp_path, count).rows == [(rows,)]
    newest = "SELECT server, max_by(labels, ts) ->> 'env' FROM servers GROUP BY server"
    assert reader.query(tmp_path, newest).rows == [("shop", "α")]
