"""The guardian: a detached process that switches for a weighing, and puts everything back.

It is asked by lines of JSON and answers each with one. When the pipe closes without a farewell, the
command was killed: then it puts things back, and tries again for as long as the server is away.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from pgtare.postgres.own_session import first_line
from pgtare.weighing.switches import Switch
from pgtare.weighing.whole_server.changer import Changer, check_alone
from pgtare.weighing.whole_server.configuration import Before

#: For how long it tries to reach the server after the command's end, in s.
PATIENCE_S = 24 * 3600.0
#: Pauses between tries grow from the first to the last, in s: a command may fail each time.
_RETRY_S, _LONGEST_S = 1.0, 60.0


def serve() -> None:
    """Obey until the pipe closes; then put back what is left to be put back."""
    first = json.loads(sys.stdin.buffer.readline() or "{}")
    if not first:
        return
    changer = Changer(
        first["dsn"],
        [Switch(**one) for one in first["switches"]],
        [Before(**one) if one else None for one in first["before"]],
    )
    file = Path(first["file"])
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        try:
            answer = _obey(changer, asked, file)
        except psycopg.Error as ex:
            answer = {"error": first_line(ex), "kind": "psycopg.Error"}
        except Exception as ex:  # whatever it is, what was changed is to be put back
            answer = {"error": str(ex), "kind": type(ex).__name__}
        try:
            _say({**answer, "number": asked.get("number")})
        except OSError:
            break
    _put_back(changer, file)


def _obey(changer: Changer, asked: dict[str, Any], file: Path) -> dict[str, Any]:
    if asked["do"] == "connect":
        check_alone(changer.connect())
        return {"session": changer.connect().info.backend_pid}
    if asked["do"] == "try on":
        changer.try_on(int(asked["index"]))
        return {}
    if asked["do"] == "switch":
        changer.switch(int(asked["index"]), bool(asked["on"]))
        return {"leaders": changer.leaders}
    done = changer.put_back()
    file.unlink(missing_ok=True)
    return {"done": done}


def _put_back(changer: Changer, file: Path) -> None:
    until, pause_s = time.monotonic() + PATIENCE_S, _RETRY_S
    while time.monotonic() < until and any(changer.touched):
        try:
            changer.put_back()
        except Exception:
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_S)
    if not any(changer.touched):
        file.unlink(missing_ok=True)
    changer.close()


def _say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve()
