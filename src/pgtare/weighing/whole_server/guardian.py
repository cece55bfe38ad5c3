"""The guardian: a detached process that switches for a weighing, and puts everything back.

It is asked by lines of JSON and answers each with one. When the pipe closes without a farewell, the
command was killed: then it puts things back, and tries again for as long as the server is away. If
nothing is asked for too long, the command was stopped or is blocked: then it puts things back, too.
It looks at the pipe while it waits for what it was asked, so that this is no reason to be late.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from pgtare.postgres.own_session import first_line
from pgtare.weighing.switches import Switch
from pgtare.weighing.whole_server.changer import Changer, check_alone
from pgtare.weighing.whole_server.commands import printed_by
from pgtare.weighing.whole_server.configuration import Before
from pgtare.weighing.whole_server.restore_file import RunningNote

#: For how long it tries to reach the server after the command's end, in s.
PATIENCE_S = 24 * 3600.0
#: Pauses between tries grow from the first to the last, in s: a command may fail each time. A
#: server that is back is to have its setting back soon, and before another weighing takes ours for
#: the value before. But one that refuses us for long is not to have its log filled.
_RETRY_S, _LONGEST_S, _LONGEST_SERVER_S = 1.0, 60.0, 5.0
_AWAY_S, _AWAY_FOR_S = 0.3, 300.0


def serve() -> None:
    """Obey until the pipe closes; then put back what is left to be put back."""
    pipe = _Pipe()
    first = pipe.read(None)
    if first is None:
        return
    changer = Changer(
        first["dsn"],
        [Switch(**one) for one in first["switches"]],
        [Before(**one) if one else None for one in first["before"]],
        touched=first["touched"],
        note=RunningNote(first["lock"], len(first["switches"])),
        hurry=pipe.has_more,
        resumes=any(first["touched"]),
    )
    file = Path(first["file"])
    paused, lease_s = False, float(first["lease_s"])
    while not paused:
        try:
            asked = pipe.read(lease_s if any(changer.touched) else None)
        except TimeoutError:
            paused = True
            continue
        if asked is None:
            break
        lease_s = float(asked.get("lease_s", lease_s))
        try:
            answer = _obey(changer, asked, file)
        except psycopg.Error as ex:
            answer = {"error": first_line(ex), "kind": "psycopg.Error"}
        except Exception as ex:  # whatever it is, what was changed is to be put back
            answer = {"error": str(ex), "kind": type(ex).__name__, "printed": printed_by(ex)}
        try:
            _say({**answer, "number": asked.get("number")})
        except OSError:
            break
    _put_back(changer, file)
    if paused:
        with contextlib.suppress(OSError):
            _say({"paused": changer.done})


class _Pipe:
    """What the command asks, line by line."""

    def __init__(self) -> None:
        self._text = b""
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def has_more(self) -> bool:
        """Whether something was asked before the answer, which is to put back, or it has ended."""
        return bool(self._text or self._poll.poll(0))

    def read(self, wait_s: float | None) -> dict[str, Any] | None:
        """What is asked next; None at the end. Raises TimeoutError."""
        while b"\n" not in self._text:
            if not select.select([0], [], [], wait_s)[0]:
                raise TimeoutError
            block = os.read(0, 1 << 16)
            if not block:
                return None
            self._text += block
        line, _, self._text = self._text.partition(b"\n")
        asked: dict[str, Any] = json.loads(line)
        return asked


def _obey(changer: Changer, asked: dict[str, Any], file: Path) -> dict[str, Any]:
    if asked["do"] == "connect":
        check_alone(changer.connect())
        return {"session": changer.connect().info.backend_pid}
    if asked["do"] == "stay":
        return {}
    if asked["do"] == "try":
        changer.try_as_it_is(int(asked["index"]))
        return {}
    if asked["do"] == "switch":
        changer.switch(int(asked["index"]), bool(asked["on"]))
        return {"leaders": changer.leaders}
    _try_to_put_back(changer, asked["patience_s"], lambda: changer.waits_for_server)
    _remove(file, changer)
    return {"done": changer.done}


def _put_back(changer: Changer, file: Path) -> None:
    with contextlib.suppress(Exception):
        _try_to_put_back(changer, PATIENCE_S, lambda: True)
        _remove(file, changer)
    changer.close()


def _remove(file: Path, changer: Changer) -> None:
    """All is put back. What was left alone may be another weighing's, so it is looked at again."""
    if not changer.left_alone:
        file.unlink(missing_ok=True)


def _try_to_put_back(
    changer: Changer, patience_s: float, may_get_better: Callable[[], bool]
) -> None:
    """Try again and again for so long. Raises the last error.

    A server that is away is looked for more often than a command is run that fails.
    """
    began, pause_s = time.monotonic(), _RETRY_S
    commands_at, commands_pause_s = began, _RETRY_S
    while any(changer.touched):
        commands = time.monotonic() >= commands_at or not changer.waits_for_server
        try:
            changer.put_back(commands=commands)
            continue  # settings are back: now what commands switch
        except Exception:
            tried_s = time.monotonic() - began
            if not may_get_better() or tried_s + pause_s > patience_s:
                raise
        if commands:
            commands_at = time.monotonic() + commands_pause_s
            commands_pause_s = min(1.2 * commands_pause_s, _LONGEST_S)
        is_away = changer.waits_for_server and not changer.is_connected
        time.sleep(_AWAY_S if is_away and tried_s < _AWAY_FOR_S else pause_s)
        longest_s = _LONGEST_SERVER_S if changer.waits_for_server else _LONGEST_S
        pause_s = min(1.2 * pause_s, longest_s)


def _say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve()
