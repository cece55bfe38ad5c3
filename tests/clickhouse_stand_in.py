"""A stand-in for a ClickHouse server: HTTP in front of its engine in this process (chdb).

What is stored and answered is the engine's. The HTTP around it is ours: it understands what
clickhouse-connect sends and no more, knows no users, and fails as it is told to. So tests that use
it say something about our side of the wire, and nothing about a server's.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

#: Parameters of a request that are no settings.
_OWN = {"query", "database", "session_id", "query_id", "default_format", "compress", "decompress"}
_IGNORED = {"client_protocol_version", "wait_end_of_query", "http_headers_progress_interval_ms"}
_INSERT = re.compile(r"\s*INSERT INTO (?P<into>.*?)\s+FORMAT (?P<format>\w+)\s*$", re.S | re.I)


class ClickHouseStandIn:
    """The server; a context manager. It listens on a port of this machine.

    lose_answers: so many inserts are done without an answer. tear: so many have half of their rows
    inserted, and end with an error. down: connections are closed at once. refused: tables into
    which nobody may insert.
    """

    def __init__(self, directory: str) -> None:
        import chdb

        self._engine = chdb.connect(directory)
        self._lock = threading.Lock()
        self.down = False
        self.lose_answers = self.tear = 0
        self.refused: set[str] = set()
        self.passwords: set[str] = set()
        self.inserts = 0
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                stand_in._handle(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"clickhouse://agent@127.0.0.1:{self._server.server_port}/pgtare"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._engine.close()

    def run(self, sql: str) -> str:
        """Ask the engine, past the wire."""
        with self._lock:
            return str(self._engine.query(sql, "TSV"))

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("content-length") or 0)
        body = request.rfile.read(length) if length else _chunks(request)
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.passwords.add(request.headers.get("authorization") or "")
        if self.down:
            request.close_connection = True
            return
        address = urlsplit(request.path)
        if address.path == "/ping":
            _reply(request, 200, b"Ok.\n")
            return
        words = {name: values[-1] for name, values in parse_qs(address.query, True).items()}
        with self._lock:
            try:
                found, lost = self._run(words, body)
            except Exception as ex:
                text = str(ex).encode()
                code = re.search(r"Code: (\d+)", str(ex))
                _reply(
                    request, 500, text, {"X-ClickHouse-Exception-Code": code[1] if code else "1"}
                )
                return
        if lost:
            request.close_connection = True
            return
        _reply(request, 200, found)

    def _run(self, words: dict[str, str], body: bytes) -> tuple[bytes, bool]:
        """What the engine answers, and whether the answer is to be lost."""
        settings = {
            name: value
            for name, value in words.items()
            if name not in _OWN | _IGNORED and not name.startswith("param_")
        }
        parameters = {n[6:]: v for n, v in words.items() if n.startswith("param_")}
        if words.get("database"):
            self._engine.query(f"USE {words['database']}")
        insert = _INSERT.match(words.get("query", ""))
        if insert is not None:
            return self._insert(insert, settings, body)
        for name, value in settings.items():
            self._engine.query(f"SET {name} = '{value}'")
        sql = "\n".join(one for one in (words.get("query", ""), body.decode()) if one)
        into = re.match(r"INSERT INTO \w+\.(\w+)", sql)
        if into is not None and into[1] in self.refused:
            raise RuntimeError("Code: 497. DB::Exception: agent: Not enough privileges")
        found = self._engine.query(sql, "TSV", params=parameters)
        return found.bytes() if hasattr(found, "bytes") else str(found).encode(), False

    def _insert(
        self, insert: re.Match[str], settings: dict[str, str], body: bytes
    ) -> tuple[bytes, bool]:
        self.inserts += 1
        torn = self.tear > 0
        if torn:
            self.tear -= 1
            body = _half(body)
            settings = {**settings, "insert_deduplication_token": "torn"}
        listed = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
        with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
            file.write(body)
            file.flush()
            self._engine.query(
                f"INSERT INTO {insert['into']} FROM INFILE '{file.name}' SETTINGS {listed} "
                f"FORMAT {insert['format']}"
            )
        if torn:
            raise RuntimeError("Code: 999. DB::Exception: the stand-in was told to fail")
        lost = self.lose_answers > 0
        self.lose_answers -= lost
        return b"", lost


def _chunks(request: BaseHTTPRequestHandler) -> bytes:
    """A body in chunks."""
    if request.headers.get("transfer-encoding") != "chunked":
        return b""
    found = b""
    while size := int(request.rfile.readline().strip(), 16):
        found += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return found


def _half(body: bytes) -> bytes:
    with pa.ipc.open_file(body) as reader:
        rows = reader.read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows.slice(0, rows.num_rows // 2 + 1))
    return sink.getvalue().to_pybytes()


def _reply(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.send_header("X-ClickHouse-Summary", json.dumps({"read_rows": "0"}))
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
