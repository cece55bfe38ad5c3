"""Carries out what is switched, and puts it back: the same in the guardian and in its stead."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import psycopg

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.server import own_session
from pgtare.weighing.switches import COMMAND_S, Switch
from pgtare.weighing.windows import configuration
from pgtare.weighing.windows.configuration import Before

#: A process that ends so soon after its start has failed, in s.
_STARTS_S = 0.5
#: How long a process may take to end when asked to, in s.
_ENDS_S = 10.0
_SHOWN = """
SELECT setting, setting || coalesce(unit, ''), pg_catalog.current_setting(name)
FROM pg_catalog.pg_settings WHERE lower(name) = %s
"""
_SHOWN_POLL_S = 1.0
_TAIL_BYTES = 300
_PR_SET_PDEATHSIG = 1
#: A command with its shell, which takes all that it has started with it when it is ended.
_LED = "trap 'trap - TERM; kill 0' TERM\n(\n{}\n) &\nwait $!"


@dataclass
class Changer:
    """Switches on and off. before: of each that is a setting.

    A switch that is left on counts as on in the beginning; the others as off.
    """

    dsn: str
    switches: Sequence[Switch]
    before: Sequence[Before | None]
    on: list[bool] = field(default_factory=list)
    #: Whether a switch may be another way than it is to be in the end.
    touched: list[bool] = field(default_factory=list)
    _running: dict[int, _Process] = field(default_factory=dict)
    _conn: psycopg.Connection[Any] | None = None

    def __post_init__(self) -> None:
        self.on = self.on or [switch.is_left_on for switch in self.switches]
        self.touched = self.touched or [False for _ in self.switches]

    @property
    def leaders(self) -> dict[int, int]:
        """The first process of each switch that is one, by its number."""
        return {index: process.pid for index, process in self._running.items()}

    def connect(self) -> psycopg.Connection[Any]:
        """The session in which settings are changed and looked at."""
        if self._conn is None or self._conn.closed:
            self._conn = own_session.connect(self.dsn)
            self._conn.execute("SET idle_session_timeout = 0")
        return self._conn

    def switch(self, index: int, on: bool) -> None:
        """Switch one. Raises MeasurementError, UsageError."""
        if self.on[index] == on:
            return
        switch, self.touched[index] = self.switches[index], True
        if switch.kind == "setting":
            self._set(switch, self.before[index], on)
        elif switch.kind == "commands":
            _run(switch.on if on else switch.off)
            if switch.setting:
                self._wait_until_shown(switch, on)
        elif on:
            self._running[index] = _Process(switch.on)
        else:
            self._running.pop(index).end()
        self.on[index], self.touched[index] = on, on != switch.is_left_on

    def put_back(self) -> list[str]:
        """Everything as it was before; what was done. Raises the first error, with the rest done.

        May be called again after an error.
        """
        done: list[str] = []
        failed: Exception | None = None
        for index, switch in enumerate(self.switches):
            if not self.touched[index]:
                continue
            try:
                done += self._put_back(index, switch)
                self.touched[index] = False
            except (PgtareError, psycopg.Error, OSError) as ex:
                failed = failed or ex
        if failed is not None:
            raise failed
        return done

    def close(self) -> None:
        """End the session."""
        if self._conn is not None:
            self._conn.close()

    def _put_back(self, index: int, switch: Switch) -> list[str]:
        if switch.kind == "setting":
            before = self.before[index]
            assert before is not None
            said = configuration.put_back(self.connect(), switch.setting, switch.value, before)
            self.on[index] = False
            return [said]
        if switch.kind == "process":
            process = self._running.pop(index, None)
            if process is not None:
                with contextlib.suppress(MeasurementError):
                    process.end()
            self.on[index] = False
            return []
        _run(switch.on)
        self.on[index] = True
        return [f"{switch.name} is on again"]

    def _set(self, switch: Switch, before: Before | None, on: bool) -> None:
        assert before is not None
        configuration.refuse_foreign(
            self.connect(), switch.setting, before.entry if on else switch.value
        )
        try:
            value = configuration.change(
                self.connect(), switch.setting, switch.value if on else before.entry
            )
        except psycopg.errors.InvalidParameterValue as ex:
            raise UsageError(
                f"{switch.setting} = {switch.value}: {own_session.first_line(ex)}"
            ) from ex
        if on and value == before.value:
            raise UsageError(
                f"--reload {switch.name}: {switch.setting} is {value} with and without it: it is "
                "that already, or a role, a database or the server's command line sets it"
            )

    def _wait_until_shown(self, switch: Switch, on: bool) -> None:
        """Until pg_settings shows what a provider's command has changed."""
        until = time.monotonic() + COMMAND_S
        while True:
            row = self.connect().execute(_SHOWN, (switch.setting,)).fetchone()
            if row is None:
                raise UsageError(f"the server has no setting {switch.setting}")
            shown = switch.value.lower() in {str(form).lower() for form in row}
            if shown == on:
                return
            if time.monotonic() > until:
                state = "not shown" if on else "still shown"
                raise MeasurementError(
                    f"{switch.setting} = {switch.value} is {state} {COMMAND_S / 60:.0f} minutes "
                    f"after the command of {switch.name}"
                )
            time.sleep(_SHOWN_POLL_S)


class _Process:
    """A command that runs while its switch is on, with all that it starts."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(  # noqa: S602 the user's own command
            _LED.format(command),
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self.pid = self._popen.pid
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_STARTS_S)
            raise self._ended()

    def end(self) -> None:
        """End it. Raises MeasurementError if it has ended by itself."""
        ended = self._ended() if self._popen.poll() is not None else None
        _signal(self.pid, signal.SIGTERM)
        try:
            self._popen.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            _signal(self.pid, signal.SIGKILL)
            self._popen.wait()
        _signal(self.pid, signal.SIGKILL)  # what it has started may have outlived it
        if ended is not None:
            raise ended
        self._output.close()

    def _ended(self) -> MeasurementError:
        status = self._popen.returncode
        return MeasurementError(
            f"the command {self._command!r} ended by itself (status {status})"
            f"{_tail(self._output)}; one that returns needs a second one that switches off"
        )


def _end_with_parent() -> None:
    """In the new process: end if the guardian is killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal(group: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def _run(command: str) -> None:
    """Run a command until it returns. Raises MeasurementError."""
    with tempfile.TemporaryFile() as output:
        popen = subprocess.Popen(  # noqa: S602 the user's own command
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = popen.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            _signal(popen.pid, signal.SIGKILL)
            popen.wait()
            raise MeasurementError(
                f"the command {command!r} did not return in {COMMAND_S / 60:.0f} minutes"
            ) from None
        if status:
            raise MeasurementError(
                f"the command {command!r} failed (status {status}){_tail(output)}"
            )


def _tail(output: IO[bytes]) -> str:
    """The end of what a command printed, as the end of a sentence."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    text = " ".join(output.read().decode(errors="replace").split())
    return f": {text}" if text else ""
