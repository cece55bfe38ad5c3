"""What `pgtare agent check` prints as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model
from pgtare.watching.agent import server_check


class ServerCheck(Model):
    """What an agent would see of a server."""

    server: str = Field(description="its name")
    version: str = Field(description="version of PostgreSQL; empty: no connection")
    role: str = Field(description="the role that the agent would be; empty: no connection")
    waits: str = Field(description="exact, sampled, or none")
    statements: str = Field(description="exact, approximate, or none")
    problem: str | None = Field(description="why it cannot be watched; null: it can")
    notes: list[str] = Field(description="what is missing, each with its remedy")


class AgentCheck(Document):
    """What an agent would see of each server."""

    schema_: Literal["pgtare.agent.check/1"] = Field(
        default="pgtare.agent.check/1", alias="schema", description="name and version"
    )
    servers: list[ServerCheck] = Field(description="the servers, in the order of the file")


def document(checks: list[server_check.ServerCheck]) -> AgentCheck:
    """The document of what was found."""
    return AgentCheck(
        servers=[
            ServerCheck(
                server=each.server,
                version=each.version,
                role=each.role,
                waits=each.waits,
                statements=each.statements,
                problem=None if each.problem is None else str(each.problem),
                notes=list(each.notes),
            )
            for each in checks
        ]
    )
