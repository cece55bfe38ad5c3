"""A fleet of real servers: checked, looked at, weighed, and what may go wrong on the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.weighing.fleet import coordinator
from pgtare.weighing.fleet.server_weighing import ServerWeighing
from pgtare.weighing.fleet.stages import Stage
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.recording import Halt
from pgtare.weighing.weigh.request import Request
from tests.commands import in_process, pgtare, read, start_pgtare
from tests.loads import during, repeating, traffic
from tests.servers import weighable
from tests.sessions import Connection, bare_session, eventually, one, setting

pytestmark = [pytest.mark.server, pytest.mark.debian, pytest.mark.timeout(180)]

#: Transactions of two milliseconds, which leave the processor to others.
QUERY = "SELECT pg_sleep(0.002)"
STATUS = "SELECT running, end_reason FROM pgtare.trial_status()"
RUNNING = "SELECT running FROM pgtare.trial_status()"


@contextlib.contextmanager
def server_of(binaries: Binaries) -> Iterator[Cluster]:
    with weighable(binaries, others=["pg_stat_statements"]) as cluster:
        with cluster.connect(autocommit=True) as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")
        yield cluster


@pytest.fixture(scope="module")
def fleet(wheel: Binaries, debian15: Binaries) -> Iterator[dict[str, Cluster]]:
    """Two servers of 18 and one of 15, each with two sessions of an application."""
    with (
        server_of(wheel) as one_18,
        server_of(wheel) as other_18,
        server_of(debian15) as only_15,
        traffic(one_18.dsn(), sessions=2, query=QUERY, application_name="shop"),
        traffic(only_15.dsn(), sessions=2, query=QUERY, application_name="shop"),
    ):
        yield {"new": one_18, "spare": other_18, "old": only_15}


def inventory(directory: Path, servers: dict[str, Cluster], more: str = "") -> Path:
    """fleet.toml for these servers; the first has the least weight, so it is the canary."""
    path = directory / "fleet.toml"
    text = "".join(
        f'[servers.{name}]\ndsn = "{cluster.dsn()} password=geheim"\n'
        f'labels = {{ rack = "{number}" }}\nweight = {number + 1}\n'
        for number, (name, cluster) in enumerate(servers.items())
    )
    path.write_text(text + more)
    return path


def two(fleet: dict[str, Cluster]) -> dict[str, Cluster]:
    return {name: fleet[name] for name in ("new", "old")}


def states(directory: Path) -> dict[str, str]:
    return {each["name"]: each["state"] for each in read(directory / "fleet.json")["servers"]}


def nothing_runs(servers: dict[str, Cluster]) -> None:
    for cluster in servers.values():
        with bare_session(cluster, application_name="pgtare") as operator:
            assert one(operator, "SELECT running FROM pgtare.trial_status()") is False


def written(directory: Path) -> str:
    """Everything readable in a directory."""
    return "".join(path.read_text() for path in directory.rglob("*.json") if path.suffix == ".json")


#: A block of 72 transactions of one session must end in the time of the canary, also on a busy
#: machine.
WEIGH = "fleet weigh {} --inventory {} --out {} --duration {} --canary 8s --yes"


def test_a_fleet_is_weighed(fleet: dict[str, Cluster], tmp_path: Path) -> None:
    """The canary first; nothing that connects is written anywhere."""
    out = tmp_path / "out"
    path = inventory(tmp_path, two(fleet))
    done = pgtare(WEIGH, "pg_stat_statements", path, out, "4")
    assert done.returncode == 0, done.stderr
    assert states(out) == {"new": "done", "old": "done"}
    state = read(out / "fleet.json")
    assert (state["stage"], state["ended_by"], state["breach"]) == ("ended", "time", None)
    assert state["servers"][0]["labels"] == {"rack": "0"}
    for name in ("new", "old"):
        design = read(out / "servers" / name / "result.json")["design"]
        assert (design["stopped_by"], design["sessions"]) == ("time", 2)
    result = read(out / "result.json")
    assert result["schema"] == "pgtare.fleet.weigh/2"
    (arm,) = [arm for arm in result["arms"] if arm["name"] == "pg_stat_statements"]
    assert (arm["k"], arm["verdict"]) == (2, "list")
    assert "geheim" not in written(out) + done.stdout + done.stderr
    assert "host=" not in written(out)
    for words in ("canary: new", "over 25 % slower", "with an instrument on", "within 15 s"):
        assert words in done.stderr
    nothing_runs(two(fleet))


@pytest.mark.slow
def test_a_harmful_canary_is_stopped(fleet: dict[str, Cluster], tmp_path: Path) -> None:
    """2 ms more for each transaction; the other server never has them."""
    out = tmp_path / "out"
    path = inventory(tmp_path, two(fleet))
    with bare_session(fleet["new"]) as client:
        before = setting(client)
        done = pgtare(
            "fleet weigh --inject-ns 2000000 --inventory {} --out {} --duration 20 --yes "
            "--canary 60s",
            path,
            out,
        )
        assert done.returncode == 1, done.stderr
        assert "an instrument does harm" in done.stderr
        assert setting(client) == before
    state = read(out / "fleet.json")
    breach = state["breach"]
    assert (breach["server"], breach["stage"], state["ended_by"]) == ("new", "canary", "breach")
    assert breach["stopped_s"] < 1
    assert states(out) == {"new": "stopped", "old": "waiting"}
    assert state["servers"][1]["transactions"] == 0
    nothing_runs(two(fleet))


@pytest.mark.slow
def test_a_canary_that_shows_the_guard_nothing_ends_all(
    fleet: dict[str, Cluster], tmp_path: Path
) -> None:
    """300 ms more for each transaction: no block of any session ends in time."""
    path = inventory(tmp_path, two(fleet))
    out = tmp_path / "out"
    line = "fleet weigh --inject-ns 300000000 --inventory {} --out {} --duration 9 --yes"
    done = pgtare(f"{line} --canary 2s", path, out)
    assert done.returncode == 1
    assert "stage canary: no session finished a whole block of 72 transactions" in done.stderr
    state = read(out / "fleet.json")
    assert (state["ended_by"], state["stage"]) == ("blind", "canary")
    assert states(out) == {"new": "waiting", "old": "waiting"}
    nothing_runs(two(fleet))


def unwatched(server: str, design: Design, part: Observations) -> None:
    """Looks away."""


@pytest.mark.slow
def test_a_connection_that_ended_before_the_trial_is_made_anew(fleet: dict[str, Cluster]) -> None:
    """As by a firewall, or idle_session_timeout, while other servers are weighed."""
    request = Request(chosen=(), inject_ns=(1000,), dsn=fleet["old"].dsn())
    weighing = ServerWeighing("old", request)
    seen = weighing.look()
    assert weighing._module is not None
    pid = weighing._module.conn.info.backend_pid
    with bare_session(fleet["old"]) as operator:
        operator.execute("SELECT pg_terminate_backend(%s)", (pid,))
    try:
        end = weighing.trial(Stage("all", ("old",), 1.0, 1.0, last=True), seen, Halt(), unwatched)
    finally:
        weighing.close()
    assert (end.transactions > 50, end.trouble) == (True, "")


@pytest.mark.slow
def test_sessions_that_idle_do_not_make_the_canary_blind(fleet: dict[str, Cluster]) -> None:
    """What counts for the share that is drawn are the sessions at work."""
    weighing = ServerWeighing("old", Request(chosen=(), inject_ns=(1000,), dsn=fleet["old"].dsn()))
    with contextlib.ExitStack() as pool:
        for _ in range(30):
            pool.enter_context(bare_session(fleet["old"]))
        seen = weighing.look()
        weighing.close()
    assert seen.sessions == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sessions", "least", "most"), [pytest.param(0, 0, 0, marks=pytest.mark.slow), (12, 1.0, 4.0)]
)
def test_an_idle_server_has_no_traffic_and_one_of_long_transactions_has(
    fleet: dict[str, Cluster], sessions: int, least: float, most: float
) -> None:
    """They are longer than the look, so that it sees none of them from the first request on.

    One after the other begins, so that some end amid the look, whenever that is.
    """
    dsn = fleet["spare"].dsn()
    weighing = ServerWeighing("spare", Request(chosen=(), inject_ns=(1000,), dsn=dsn))
    begun: set[int] = set()

    def work(connection: Connection, number: int) -> None:
        nap_s = 6.0 if number in begun else 6.0 * number / sessions
        begun.add(number)
        connection.execute("SELECT pg_sleep(%s), count(*) FROM pg_class", (nap_s,))

    with repeating(dsn, sessions, work, application_name="batch"):
        seen = weighing.look()
        weighing.close()
    assert least <= seen.transactions_per_s <= most


def until_stage(out: Path, stage: str) -> None:
    def reached() -> bool:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            state: dict[str, Any] = json.loads((out / "fleet.json").read_text())
            running = [each for each in state["servers"] if each["state"] == "running"]
            return state["stage"] == stage and bool(running)
        return False

    eventually(reached, 60)
    time.sleep(1.5)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_trials_end_without_the_coordinator(
    fleet: dict[str, Cluster], tmp_path: Path, how: signal.Signals
) -> None:
    """By its connection if it was killed, by the lease if the connection stays."""
    out = tmp_path / "out"
    path = inventory(tmp_path, two(fleet))
    running = start_pgtare(WEIGH, "pg_stat_statements", path, out, "60")
    try:
        until_stage(out, "all")
        for cluster in two(fleet).values():  # on a busy machine one of them may begin later
            with bare_session(cluster, application_name="pgtare") as operator:
                eventually(lambda: operator.execute(RUNNING).fetchone() == (True,))
        running.send_signal(how)
        wanted = "owner gone" if how == signal.SIGKILL else "lease expired"
        for cluster in two(fleet).values():
            with bare_session(cluster, application_name="pgtare") as operator:
                eventually(lambda: operator.execute(STATUS).fetchone() == (False, wanted))
    finally:
        running.kill()
        running.communicate()
    assert not (out / "result.json").exists()
    assert read(out / "fleet.json")["ended_by"] == ""


@pytest.mark.slow
def test_interrupt_keeps_what_was_measured_and_resume_goes_on(
    fleet: dict[str, Cluster], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = inventory(tmp_path, two(fleet))
    running = start_pgtare(WEIGH, "pg_stat_statements", path, out, "6")
    until_stage(out, "all")
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert states(out) == {"new": "stopped", "old": "stopped"}
    assert read(out / "servers" / "old" / "result.json")["design"]["stopped_by"] == "interrupt"
    assert read(out / "result.json")["servers"]
    nothing_runs(two(fleet))
    done = pgtare("fleet weigh --inventory {} --resume {} --yes", path, out)
    assert done.returncode == 0, done.stderr
    assert states(out) == {"new": "done", "old": "done"}
    assert read(out / "servers" / "old" / "result.json")["design"]["stopped_by"] == "time"
    again = pgtare("fleet weigh --inventory {} --resume {} --yes", path, out)
    assert again.returncode == 2
    assert "is complete" in again.stderr


def lost_alone(directory: Path, name: str) -> dict[str, Any]:
    """What fleet.json says of a server that was lost while it was read, and the rest done."""
    state = read(directory / "fleet.json")
    (lost,) = [dict(each) for each in state["servers"] if each["name"] == name]
    assert states(directory) == {"new": "done", name: "lost"}
    kept = store.load(directory / "servers" / name)
    assert kept.result.design.stopped_by == "server"
    assert 50 < len(kept.observations) <= lost["transactions"]
    result = read(directory / "result.json")
    assert [each["name"] for each in result["servers"]] == ["new"]
    ((gone, reason),) = [(each["server"], each["reason"]) for each in result["left_out"]]
    assert gone == name
    assert reason.startswith(f"lost after {lost['transactions']:,} transactions in all its trials")
    assert lost["reason"] in reason
    assert "its last trial are kept, and are not included in the estimate" in reason
    assert all(arm["k"] == 1 for arm in result["arms"])
    return lost


@pytest.mark.slow
def test_a_server_whose_connection_ends_is_marked_and_the_rest_goes_on(
    fleet: dict[str, Cluster], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = inventory(tmp_path, {"new": fleet["new"], "spare": fleet["spare"]})
    with traffic(fleet["spare"].dsn(), sessions=2, query=QUERY):
        running = start_pgtare(WEIGH, "pg_stat_statements", path, out, "5")
        until_stage(out, "all")
        with fleet["spare"].connect(autocommit=True) as conn:
            conn.execute("SELECT pg_terminate_backend(owner_pid) FROM pgtare.trial_status()")
        _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "1 server lost: spare" in said
    assert "what was read is in servers/spare" in said
    assert "terminating connection" in lost_alone(out, "spare")["reason"]
    nothing_runs(fleet)


@pytest.mark.slow
def test_a_killed_server_leaves_what_was_read(
    fleet: dict[str, Cluster], wheel: Binaries, tmp_path: Path
) -> None:
    """Killed in its last stage; once it is back, --resume weighs it as a whole."""
    out = tmp_path / "out"
    with server_of(wheel) as mortal:
        path = inventory(tmp_path, {"new": fleet["new"], "mortal": mortal})
        with traffic(mortal.dsn(), sessions=2, query=QUERY):
            running = start_pgtare(WEIGH, "pg_stat_statements", path, out, "5")
            until_stage(out, "all")
            mortal.kill()
            _, said = running.communicate(timeout=60)
        assert running.returncode == 1, said
        lost_alone(out, "mortal")
        again = pgtare("fleet", "report", out, "--json")
        assert json.loads(again.stdout) == read(out / "result.json")
        mortal.start()
        with traffic(mortal.dsn(), sessions=2, query=QUERY):
            done = pgtare("fleet weigh --inventory {} --resume {} --yes", path, out)
    assert done.returncode == 0, done.stderr
    assert states(out) == {"new": "done", "mortal": "done"}
    assert read(out / "servers" / "mortal" / "result.json")["design"]["stopped_by"] == "time"


@pytest.mark.slow
def test_a_server_that_no_longer_answers_leaves_what_was_read(
    fleet: dict[str, Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process for our connection stands still; the connection itself does not break."""
    out = tmp_path / "out"
    path = inventory(tmp_path, {"new": fleet["new"], "spare": fleet["spare"]})
    monkeypatch.setattr(coordinator, "_PATIENCE_S", 4.0)
    frozen: list[int] = []

    def freeze() -> None:
        until_stage(out, "all")
        with fleet["spare"].connect(autocommit=True) as conn:
            frozen.append(one(conn, "SELECT owner_pid FROM pgtare.trial_status()"))
        os.kill(frozen[0], signal.SIGSTOP)

    try:
        with traffic(fleet["spare"].dsn(), sessions=2, query=QUERY), during(freeze):
            done = in_process(WEIGH.format("pg_stat_statements", path, out, "5"))
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1, done.stderr
    assert lost_alone(out, "spare")["reason"].startswith("it no longer answers")
    eventually(lambda: nothing_runs(fleet) is None, 30)


def test_servers_are_checked(fleet: dict[str, Cluster], wheel: Binaries, tmp_path: Path) -> None:
    done = in_process("fleet", "check", "--inventory", str(inventory(tmp_path, fleet)))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert [row[1].split(".")[0] for row in rows] == ["18", "18", "15"]
    assert {row[-1] for row in rows} == {"ready"}
    nowhere = '[servers.gone]\ndsn = "host=127.0.0.1 port=1 password=geheim"\n'
    with Cluster(wheel) as bare:
        nowhere += f'[servers.bare]\ndsn = "{bare.dsn()}"\n'
        done = in_process(
            "fleet", "check", "--inventory", str(inventory(tmp_path, two(fleet), nowhere))
        )
    assert done.returncode == 1
    assert "2 of 4 servers cannot be weighed" in done.stderr
    assert "gone: cannot connect to the server" in done.stdout
    assert "bare: → run CREATE EXTENSION pgtare;" in " ".join(done.stdout.split("\n"))
    assert "geheim" not in done.stdout + done.stderr


def test_a_fleet_that_is_not_ready_is_not_weighed(
    fleet: dict[str, Cluster], tmp_path: Path
) -> None:
    nowhere = '[servers.gone]\ndsn = "host=127.0.0.1 port=1 password=geheim"\n'
    path = inventory(tmp_path, two(fleet), nowhere)
    done = in_process(
        *f"fleet weigh track_io_timing --inventory {path} --out {tmp_path / 'out'} --yes".split()
    )
    assert done.returncode == 2
    assert "1 of 3 servers cannot be weighed (gone: cannot connect" in done.stderr
    assert "geheim" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_doctor_looks_at_all_servers(fleet: dict[str, Cluster], tmp_path: Path) -> None:
    path = inventory(tmp_path, fleet)
    done = in_process("fleet", "doctor", "--inventory", str(path), "--interval", "1s", "--json")
    found = json.loads(done.stdout)
    assert [one["server"] for one in found["servers"]] == ["new", "spare", "old"]
    assert all(one["problem"] is None for one in found["servers"])
    assert done.returncode == {"ok": 0, "warning": 10, "critical": 11}[found["level"]]
