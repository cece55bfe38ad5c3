"""The parts of a result that only a weighing from outside has: servers, watchers, windows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgtare.kit.document import Model
from pgtare.kit.interval import Interval


class ServerInfo(Model):
    """One of the servers that were compared."""

    name: str = Field(description="what it was called")
    version: str = Field(description="of PostgreSQL")
    standby: bool = Field(description="whether it was a standby")
    system_identifier: str | None = Field(
        description="of its data directory; `null` if the role may not read it"
    )
    settings: dict[str, str | None] = Field(
        description="settings in which the servers differ, by name; `null`: it has no such setting"
    )


WatchedBy = Literal["processor", "active", "unseen"]


class WatcherInfo(Model):
    """What was switched for the whole server, and what it took itself."""

    name: str = Field(description="what it was called")
    kind: Literal["process", "commands", "setting"] = Field(
        description="`process`: ran in its windows; `commands` switched it on and off; `setting`: "
        "of the server's configuration"
    )
    setting: str | None = Field(description="of the server, if it is one, or shows it")
    value: str | None = Field(description="of that, while it is on; `null` if it may hold a secret")
    sessions: list[str] = Field(description="names of sessions that were there only then")
    windows: int = Field(description="in how many windows it was on")
    acted_in: int | None = Field(
        description="in how many of them it took what it took, if in fewer than half; `server_pct` "
        "has no interval then. `null` if in most, or if nothing stands out"
    )
    by: WatchedBy = Field(
        description="what `server_pct` is: `processor`, time of the server's processes; `active`, "
        "time in which its sessions were active, sampled; `unseen`"
    )
    server_pct: Interval = Field(
        description="interval: what the server took more while it was on, beside the sessions of "
        "the application, in percent of one processor, or of one session's time"
    )
    shared: list[str] = Field(
        description="kinds of sessions that are there without it as well, and took more while it "
        "was on, or came with it and stayed: what they took is not in `server_pct`"
    )
    shared_pct: Interval | None = Field(
        default=None,
        description="interval: what sessions of the kinds in `shared` took more while it was on; "
        "`null` if there are none",
    )
    lingered: list[str] = Field(
        default_factory=list,
        description="kinds of its sessions that went on in windows without it; `server_pct` has no "
        "interval then",
    )
    processes_pct: Interval | None = Field(
        description="interval: what its own processes took, on the machine of the weighing, in "
        "percent of one processor; `null` if it is no process"
    )
    held_up_pct: Interval = Field(
        description="interval: in how much more of the time a transaction of ours was seen to be "
        "held up, in percent of the time: what it took more than 99.9 % of the base's runs"
    )


class WindowsInfo(Model):
    """A trial whose arms are switched for the whole server, window by window."""

    window_s: float = Field(description="length of a window")
    put_back: bool = Field(default=True, description="whether everything was as before at the end")
    watchers: list[WatcherInfo] = Field(description="what was switched")


class OutsideInfo(Model):
    """How a driver weighed from outside."""

    dropped: int = Field(description="transactions left out at the beginning of each burst")
    pause_us: float | None = Field(
        description="median pause before a transaction of the other loop, as the server saw it"
    )
    waiting_us: float | None = Field(description="the base's mean there")
    disturbed_pct: float | None = Field(
        description="share of the base's bursts that something held up, of servers that of the "
        "one with most; above 12 % effects may read high, and above 20 % nothing is called "
        "equivalent"
    )
    failed_blocks: int = Field(description="blocks left out because of an error")
    server_busy_pct: float = Field(
        description="of the time, of one of the server's processors; the time of making sessions "
        "anew counts whole"
    )
    left_out: dict[str, str] = Field(
        description="by instrument that this role cannot switch, why that is"
    )
    servers: list[ServerInfo] = Field(
        default_factory=list,
        description="the servers, if servers were compared; the first is the base",
    )
    session_s: float | None = Field(
        default=None, description="how long each session lasted, if servers were compared"
    )
    connect_s: float | None = Field(
        default=None, description="how long it took to make all sessions anew, on average"
    )
    windows: WindowsInfo | None = Field(
        default=None, description="if arms were switched for the whole server; else `null`"
    )
