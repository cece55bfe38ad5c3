"""The driver's session: many statements in one send, and their answers read afterwards.

The server never waits for its client within a block: all of it is in the server's buffer before
the first answer is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres.own_session import first_line
from pgtare.weighing.outside.transactions import Bound, Sql

#: What libpq keeps back at a sync, from this version on.
_KEEPS_BACK = 170000
#: So long the server may take for one block that is as slow as we know, in s, or longer.
PATIENCE_S = 60.0

_STAMP, _OTHER, _SYNC, _VALUE = 0, 1, 2, 3
_STAMP_NAME, _SET_NAME, _READ_NAME = b"pgtare_stamp", b"pgtare_set", b"pgtare_read"
_STAMP_SQL = b"SELECT pg_catalog.clock_timestamp()"
_SET_SQL = b"SELECT pg_catalog.set_config($1, $2, false)"
_READ_SQL = b"SELECT pg_catalog.current_setting($1)"
_BINARY, _TEXT = 1, 0
#: SQLSTATEs with which the server says why it ends a session.
_ENDED = "57P"
#: Bytes of the protocol: of a row or a notice without its fields; of a column without its name; of
#: an answer without its columns and rows (bound, described, complete, ready).
_HEADER, _OF_COLUMN, _OF_ANSWER = 7, 19, 40
#: Of a transaction that returns more than this, in bytes, no more is read to learn its size.
_MOST_BYTES = 1_000_000
_ENDLESS = (
    f"this cannot be weighed: a transaction returns more than {_MOST_BYTES // 1000:,} kB, and the "
    "server would wait for the client: weigh one that returns less (count(*), LIMIT, EXPLAIN "
    "ANALYZE)"
)


@dataclass
class Answers:
    """What came back of one block. stamps_us: of the server's clock; error: the first one.

    stamps_before: how many came before the error. values: what settings are, of each that was set
    or asked for. size: bytes that the server sent for all other answers and for notices.
    """

    stamps_us: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    size: int = 0
    error: str = ""
    sqlstate: str = ""
    stamps_before: int = 0


class Wire:
    """A session in pipeline mode.

    Raises MeasurementError when it is lost, UsageError if far too much is returned while measured.
    """

    def __init__(self, conn: psycopg.Connection[Any], statements: Sequence[Sql]) -> None:
        self._raw = conn.pgconn
        self._names = {
            sql: f"pgtare_{number}".encode()
            for number, sql in enumerate(dict.fromkeys(s for s in statements if s.prepared))
        }
        #: What is still to be read: it is known after an interrupt, too.
        self._expected: deque[int] = deque()
        self._sync = _keeping_back(self._raw) or self._raw.pipeline_sync
        #: Whether the sizes of answers are of interest.
        self.measure = False
        self._noticed = 0
        self._raw.notice_handler = self._count_notice
        #: So long the server may take for what is sent at once, in s.
        self.patience_s = PATIENCE_S
        self._raw.nonblocking = 1
        self._raw.enter_pipeline_mode()

    @property
    def backend_pid(self) -> int:
        """The server's process that serves it."""
        return self._raw.backend_pid

    def prepare(self) -> Answers:
        """Prepare the statements, each in a transaction of its own; what the server says of it."""
        for name, text in (
            (_STAMP_NAME, _STAMP_SQL),
            (_SET_NAME, _SET_SQL),
            (_READ_NAME, _READ_SQL),
            *((name, sql.text) for sql, name in self._names.items()),
        ):
            self._raw.send_prepare(name, text)
            self._expected.append(_OTHER)
            self.sync()
        return self.exchange()

    def stamp(self) -> None:
        """Queue a reading of the server's clock."""
        self._raw.send_query_prepared(_STAMP_NAME, [], result_format=_BINARY)
        self._expected.append(_STAMP)
        self.sync()

    def setting(self, name: str, value: str) -> None:
        """Queue a change of a setting of this session."""
        self._raw.send_query_prepared(_SET_NAME, [name.encode(), value.encode()])
        self._expected.append(_VALUE)
        self.sync()

    def value(self, name: str) -> None:
        """Queue a question for a setting of this session."""
        self._raw.send_query_prepared(_READ_NAME, [name.encode()])
        self._expected.append(_VALUE)
        self.sync()

    def transaction(self, statements: Sequence[Bound]) -> None:
        """Queue a transaction."""
        for sql, values in statements:
            name = self._names.get(sql)
            if name is None:
                self._raw.send_query_params(sql.text, values, result_format=_TEXT)
            else:
                self._raw.send_query_prepared(name, values, result_format=_TEXT)
            self._expected.append(_OTHER)
        self.sync()

    def simple(self, text: bytes) -> None:
        """Queue a statement without parameters, in a transaction of its own."""
        self._raw.send_query_params(text, None)
        self._expected.append(_OTHER)
        self.sync()

    def sync(self) -> None:
        """End of a transaction; nothing is sent yet if libpq can keep it back."""
        self._sync()
        self._expected.append(_SYNC)

    def exchange(self, sleep_s: float = 0.0) -> Answers:
        """Send what is queued, sleep, and read all answers.

        A client that waits for the first answer is woken by each, and the server pays for that.
        """
        found = Answers()
        try:
            deadline = time.monotonic() + self.patience_s
            while self._raw.flush():
                self._wait(deadline, writing=True)
            if sleep_s > 0:
                time.sleep(sleep_s)
            self._read(deadline, found)
        except psycopg.Error as ex:
            ended = found.sqlstate.startswith(_ENDED)
            why = found.error if ended else first_line(ex)
            raise MeasurementError(f"the session was lost: {why}") from ex
        if found.error and self._raw.status == pq.ConnStatus.BAD:
            raise MeasurementError(f"the session was lost: {found.error}")
        return found

    @property
    def pending(self) -> bool:
        """Whether the server may still be at work on what was sent."""
        return bool(self._expected)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was left open, or failed."""
        return self._raw.transaction_status != pq.TransactionStatus.IDLE

    def _count_notice(self, notice: Any) -> None:
        if self.measure:
            texts = (notice.error_field(name) or b"" for name in pq.DiagnosticField)
            self._noticed += _HEADER + sum(2 + len(text) for text in texts)

    def _read(self, deadline: float, found: Answers) -> None:
        self._noticed = 0
        while self._expected:
            kind = self._expected[0]
            if self.measure and kind == _OTHER:
                # row by row, so that no more is kept of an answer than a transaction may return
                with contextlib.suppress(psycopg.Error):
                    self._raw.set_single_row_mode()
            result = self._next(deadline)
            while kind != _SYNC and result is not None:
                self._take(kind, result, found)
                result = self._next(deadline)
            self._expected.popleft()
        found.size += self._noticed

    def _take(self, kind: int, result: Any, found: Answers) -> None:
        """What a result says. Raises UsageError for a transaction that returns far too much."""
        if kind == _STAMP and result.status == pq.ExecStatus.TUPLES_OK:
            value = result.get_value(0, 0) or b""
            found.stamps_us.append(int.from_bytes(value, "big", signed=True))
        elif kind == _VALUE and result.status == pq.ExecStatus.TUPLES_OK:
            found.values.append((result.get_value(0, 0) or b"").decode("utf-8", "replace"))
        elif result.status == pq.ExecStatus.FATAL_ERROR and not found.error:
            error = psycopg.errors.error_from_result(result)
            found.error, found.sqlstate = first_line(error), error.sqlstate or ""
            found.stamps_before = len(found.stamps_us)
        elif self.measure and kind == _OTHER:
            one_row = result.status == pq.ExecStatus.SINGLE_TUPLE
            found.size += _size_of_rows(result) if one_row else _size(result)
            if found.size > _MOST_BYTES:
                raise UsageError(_ENDLESS)

    def _next(self, deadline: float) -> Any:
        while self._raw.is_busy():
            self._wait(deadline)
        return self._raw.get_result()

    def _wait(self, deadline: float, *, writing: bool = False) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise MeasurementError(
                f"the server did not answer within {self.patience_s:.0f} s: a transaction of the "
                "script is too slow, or the server hangs; weigh a quicker one, or raise --duration"
            )
        waiting = select.poll()
        waiting.register(self._raw.socket, select.POLLIN | (select.POLLOUT if writing else 0))
        waiting.poll(1000 * min(left, 1.0))
        self._raw.consume_input()


def _size(result: Any) -> int:
    """Bytes that the server sends for an answer: names of columns, rows, and what ends them."""
    columns = range(result.nfields)
    names = sum(_OF_COLUMN + len(result.fname(column) or b"") for column in columns)
    return _OF_ANSWER + names + _size_of_rows(result)


def _size_of_rows(result: Any) -> int:
    columns, rows = range(result.nfields), range(result.ntuples)
    cells = sum(len(result.get_value(row, column) or b"") for row in rows for column in columns)
    return len(rows) * (_HEADER + 4 * len(columns)) + cells


def _keeping_back(raw: Any) -> Callable[[], None] | None:
    """A sync that sends nothing yet, of libpq 17 and later, which psycopg does not offer.

    None if it cannot be had: then each sync is sent at once, and a server at the end of a slow
    network may wait for its client within a block.
    """
    if pq.version() < _KEEPS_BACK:
        return None
    try:
        function = ctypes.CDLL(str(_loaded_libpq())).PQsendPipelineSync
    except (OSError, AttributeError, StopIteration):
        return None
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    at = raw.pgconn_ptr

    def send() -> None:
        if not function(at):
            raise psycopg.OperationalError("the session was lost")

    return send


def _loaded_libpq() -> Path:
    """The file of the libpq that psycopg has loaded. Raises StopIteration if that is not sure."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/libpq" in line}
    own = {path for path in paths if "psycopg" in path} or paths
    return Path(next(iter(own))) if len(own) == 1 else Path(next(iter(())))
