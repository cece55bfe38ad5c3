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

from pgtare.errors import PgtareError
from pgtare.server.own_session import first_line
from pgtare.weighing.switches import Switch
from pgtare.weighing.windows.changer import Changer
from pgtare.weighing.windows.configuration import Before

#: For how long it tries to reach the server after the command's end, in s.
PATIENCE_S = 24 * 3600.0
_RETRY_S = 1.0


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
            answer = {"error": first_line(ex), "kind": type(ex).__name__}
        except (PgtareError, OSError) as ex:
            answer = {"error": str(ex), "kind": type(ex).__name__}
        try:
            _say({**answer, "number": asked.get("number")})
        except OSError:
            break
    _put_back(changer, file)


def _obey(changer: Changer, asked: dict[str, Any], file: Path) -> dict[str, Any]:
    if asked["do"] == "connect":
        return {"session": changer.connect().info.backend_pid}
    if asked["do"] == "switch":
        changer.switch(int(asked["index"]), bool(asked["on"]))
        return {"leaders": changer.leaders}
    done = changer.put_back()
    file.unlink(missing_ok=True)
    return {"done": done}


def _put_back(changer: Changer, file: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and any(changer.touched):
        try:
            changer.put_back()
        except Exception:
            time.sleep(_RETRY_S)
    if not any(changer.touched):
        file.unlink(missing_ok=True)
    changer.close()


def _say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve()
