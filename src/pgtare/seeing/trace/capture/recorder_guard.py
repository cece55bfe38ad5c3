"""What the guard of a trace's recorder does: gives back sessions and settings of a dead one."""

from __future__ import annotations

import contextlib

from pgtare.server.recorder_guard import Left, watch

#: As the guard's process is started.
MODULE = __name__


def _give_back(left: Left) -> None:
    # loaded only if it is needed: most guards are dismissed
    from pgtare.seeing.trace.capture.recorder_locks import give_back, reset_queries
    from pgtare.seeing.trace.capture.server import open_server

    with open_server(left.dsn, any_version=True) as server:
        if left.altered:
            reset_queries(server)
        give_back(server, left.sessions, left.recorder)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        watch(_give_back)
