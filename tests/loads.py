"""Loads of test servers: sessions that repeat something, and work that goes on meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psycopg

from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import PgbenchLoad
from tests.sessions import Connection, eventually


@contextlib.contextmanager
def repeating(
    dsn: str, sessions: int, work: Callable[[Connection, int], object], **parameters: str
) -> Iterator[None]:
    """Sessions that each do `work(connection, number)` over and over, once all have begun."""
    stop = threading.Event()
    begun = threading.Semaphore(0)

    def run(number: int) -> None:
        try:
            with psycopg.connect(
                dsn,
                autocommit=True,
                # query ids are computed when a statement is parsed
                prepare_threshold=None,
                **parameters,  # type: ignore[arg-type]
            ) as connection:
                work(connection, number)
                begun.release()
                while not stop.is_set():
                    work(connection, number)
        except psycopg.Error:
            begun.release()  # nobody is to wait for it

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(sessions)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert begun.acquire(timeout=60)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


@contextlib.contextmanager
def traffic(
    dsn: str, sessions: int = 1, query: str = "SELECT 1", **parameters: str
) -> Iterator[None]:
    """Sessions of an application that run a query over and over.

    Each rests as long as it worked: other tests want the processors, too.
    """

    def work(connection: Connection, _: int) -> None:
        began = time.monotonic()
        connection.execute(query.encode())
        time.sleep(min(time.monotonic() - began, 0.1))

    with repeating(dsn, sessions, work, **parameters):
        yield


@contextlib.contextmanager
def during(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Let another thread do this, and wait for its end."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(20)


@contextlib.contextmanager
def asleep(client: Connection) -> Iterator[None]:
    """A session that sleeps while the block runs, and is woken at its end."""

    def sleep() -> None:
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            client.execute("SELECT pg_sleep(60)")

    with during(sleep) as thread:
        try:
            yield
        finally:
            while thread.is_alive():
                client.cancel()
                thread.join(0.5)


def until_it_measures(cluster: Cluster) -> None:
    """Wait until another process has run transactions there, and longer than to warm up."""
    count = "SELECT sum(xact_commit) FROM pg_stat_database"
    with cluster.connect(autocommit=True) as connection:

        def commits() -> int:
            ((found,),) = connection.execute(count).fetchall()
            return int(found)

        before = commits()
        eventually(lambda: commits() > before + 500)
    time.sleep(2)


def check_for(load: PgbenchLoad, seconds: float) -> None:
    """Ask a load over and over whether it is well."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        load.check()
        time.sleep(0.02)
