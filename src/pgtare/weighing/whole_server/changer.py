"""Carries out what is switched, and puts it back: the same in the guardian and in its stead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import own_session, pooler
from pgtare.weighing.switches import COMMAND_S, Kind, Switch
from pgtare.weighing.whole_server import configuration
from pgtare.weighing.whole_server.commands import NotReturned, Process, end_earlier, run
from pgtare.weighing.whole_server.configuration import Before, PutBack
from pgtare.weighing.whole_server.restore_file import RunningNote
from pgtare.weighing.whole_server.setting_values import setting_now

_SHOWN_POLL_S = 0.5
#: So soon a setting shows what a command has changed on the server itself, in s.
_AT_ONCE_S = 1.0
#: So long a server may be away after a command has put back what it shows, in s.
_SERVER_S = 30.0
#: So long after a new session of ours another guardian has one again, in s, if it is to have one.
_OTHERS_S = 10.0
#: What is put back first: a setting costs everybody, and a command may take minutes.
_PUT_BACK: tuple[Kind, ...] = ("setting", "process", "commands")
#: What guardians' sessions are called: there is one for a server.
GUARDIAN = "pgtare guardian"
_OTHERS = """
SELECT pid FROM pg_catalog.pg_stat_activity
WHERE application_name = %s AND pid <> pg_catalog.pg_backend_pid() AND pid <> ALL (%s) LIMIT 1
"""
#: Guardians that were away, too: another weighing does not begin while we are here.
_LATER = """
SELECT pid FROM pg_catalog.pg_stat_activity WHERE application_name = %s AND backend_start > (
    SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()
)
"""


def check_alone(conn: psycopg.Connection[Any], ours: Sequence[int] = ()) -> None:
    """Raise UsageError if somebody else's guardian switches this server.

    ours: sessions of guardians that are not somebody else's.
    """
    row = conn.execute(_OTHERS, (GUARDIAN, list(ours))).fetchone()
    if row is not None:
        raise UsageError(
            f"another weighing switches this server, or puts back what it changed (session "
            f"{row[0]} of it): wait for its end"
        )


@dataclass
class Changer:
    """Switches on and off. before: of each that is a setting.

    A switch that is left on counts as on in the beginning; the others as off.
    note: which command is under way. hurry: whether everything is to be put back. directory: in
    which commands run, if it is not ours.
    """

    dsn: str
    switches: Sequence[Switch]
    before: Sequence[Before | None]
    on: list[bool] = field(default_factory=list)
    #: Whether a switch may be another way than it is to be in the end.
    touched: list[bool] = field(default_factory=list)
    #: What has been put back so far.
    done: list[PutBack] = field(default_factory=list)
    note: RunningNote | None = None
    hurry: Callable[[], bool] = lambda: False
    directory: str | None = None
    #: Whether others may have begun since the first change: there was a time without our session.
    resumes: bool = False
    #: Whether a value of somebody else was left, who may put back a value of ours later.
    left_alone: bool = False
    _running: dict[int, Process] = field(default_factory=dict)
    _conn: psycopg.Connection[Any] | None = None
    _connected_at: float = 0.0

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
            self.resumes |= self._conn is not None
            self._conn = own_session.connect(
                self.dsn, pooler.Connection, **own_session.NOTICES_VANISHED
            )
            self._conn.execute("SET idle_session_timeout = 0")
            self._conn.execute(f"SET application_name = '{GUARDIAN}'".encode())
            self._connected_at = time.monotonic()
        return self._conn

    def try_as_it_is(self, index: int) -> None:
        """Run the command that changes nothing, as all is so already. If it fails, all is so still.

        Raises UsageError, with nothing done, if that is not what the server shows any more, and
        MeasurementError if OFF sets another value than the one that was there.
        """
        switch = self.switches[index]
        if switch.setting and self._is_shown(switch) != switch.was_on:
            raise UsageError(
                f"--switch {switch.name}: somebody has changed {switch.setting}: try again"
            )
        try:
            self._run(switch, on=switch.was_on)
        except NotReturned:
            self.touched[index] = True  # it was ended half-way
            raise
        until = time.monotonic() + _AT_ONCE_S
        while switch.off_value:  # a provider's OFF is found out later
            if other := self._is_other(switch):
                # the file goes: by it, this OFF would be run again
                self.done.append(PutBack(other, as_before=False))
                raise MeasurementError(f"--switch {switch.name}: {other}")
            if time.monotonic() > until:
                break
            time.sleep(_AT_ONCE_S / 10)

    def switch(self, index: int, on: bool) -> None:
        """Switch one. Raises MeasurementError, UsageError."""
        if self.on[index] == on:
            return
        switch, self.touched[index] = self.switches[index], True
        if switch.kind == "setting":
            self._set(switch, self.before[index], on)
        elif switch.kind == "commands":
            self._run(switch, on=on)
            if switch.setting:
                self._wait_until_shown(switch, on, self.hurry)
            if not on and (other := self._is_other(switch)):
                raise MeasurementError(f"--switch {switch.name}: {other}")
        elif on:
            self._running[index] = Process(switch.on, f"--switch {switch.name}")
        else:
            self._running[index].end()
            del self._running[index]
        self.on[index], self.touched[index] = on, on != switch.is_left_on

    @property
    def is_connected(self) -> bool:
        """Whether there is a session."""
        return self._conn is not None and not self._conn.closed

    @property
    def waits_for_server(self) -> bool:
        """Whether there is a setting to put back: a command that fails does not get better soon."""
        return any(
            touched and switch.kind == "setting"
            for touched, switch in zip(self.touched, self.switches, strict=True)
        )

    def put_back(self, *, commands: bool = True) -> list[PutBack]:
        """Everything as it was before. Raises the first error, with the rest done.

        May be called again after an error, and gives all that has been done. commands: whether
        they are to be run this time.
        """
        failed: Exception | None = None
        touched = [
            index
            for index, is_so in enumerate(self.touched)
            if is_so and (commands or self.switches[index].kind != "commands")
        ]
        for index in sorted(touched, key=lambda index: _PUT_BACK.index(self.switches[index].kind)):
            try:
                self.done += self._put_back(index, self.switches[index])
                self.touched[index] = False
            except Exception as ex:  # the others are put back all the same
                failed = failed or ex
        if failed is not None:
            raise failed
        return self.done

    def close(self) -> None:
        """End the session."""
        if self._conn is not None:
            self._conn.close()

    def _put_back(self, index: int, switch: Switch) -> list[PutBack]:
        if switch.kind == "setting":
            before = self.before[index]
            assert before is not None
            conn = self.connect()
            configuration.require_same(conn, before, (switch.setting, switch.value))
            if self.resumes and not configuration.stands(conn, switch.setting, switch.value):
                self._let_others_end(conn, switch)
            said = configuration.put_back(conn, switch.setting, switch.value, before)
            self.left_alone |= self.resumes and not said.as_before
            self.on[index] = False
            return [said]
        if switch.kind == "process":
            process = self._running.pop(index, None)
            left = process.stop() if process is not None else ""
            self.on[index] = False
            return [PutBack(left, as_before=False)] if left else []
        if self.note is not None:
            end_earlier(self.note)
        command, state = switch.as_it_was
        run(command, _switching(switch, switch.was_on), self.note, directory=self.directory)
        self.on[index] = switch.was_on
        wrong = self._is_not_seen_again(switch) if switch.setting else ""
        self.left_alone |= bool(wrong)  # the file stays, and says what it was
        words = f"{switch.name} is {state} again"
        return [PutBack(f"{words}, but {wrong}" if wrong else words, as_before=not wrong)]

    def _is_not_seen_again(self, switch: Switch) -> str:
        """What is wrong with the setting after it was put back, if anything is.

        A provider's command returns before the server shows the value: a weighing that began before
        would take the wrong one for what it was.
        """
        until = time.monotonic() + _SERVER_S
        while True:
            try:
                self._wait_until_shown(switch, switch.was_on)
                return self._is_other(switch)
            except psycopg.Error as ex:
                if time.monotonic() > until:
                    return f"the server does not say so ({own_session.first_line(ex)})"
                time.sleep(_SHOWN_POLL_S)
            except (MeasurementError, UsageError) as ex:
                return str(ex)

    def _is_other(self, switch: Switch) -> str:
        """What is wrong if OFF leaves another value than the one that was there before."""
        wanted = switch.off_value
        if not wanted:
            return ""
        now = setting_now(self.connect(), switch.setting, f"--switch {switch.name}")
        if now.shown == wanted or now.is_value(switch.value):
            return ""
        return (
            f"{switch.setting} was {wanted}, and OFF leaves it at {now.shown}: let it set {wanted}"
        )

    def _run(self, switch: Switch, *, on: bool) -> None:
        command = switch.on if on else switch.off
        run(command, _switching(switch, on), self.note, self.hurry, self.directory)

    def _let_others_end(self, conn: psycopg.Connection[Any], switch: Switch) -> None:
        """Raise an error while the value that is there may be that of another weighing.

        It began while we had no session, took our value for the one before, and puts that back.
        """
        # those that came later wait for us, unless their value is there: then it is not for long
        check_alone(conn, [row[0] for row in conn.execute(_LATER, (GUARDIAN,)).fetchall()])
        if time.monotonic() - self._connected_at < _OTHERS_S:
            raise MeasurementError(
                f"{switch.setting} has a value that pgtare did not set: another weighing may have "
                "done so"
            )

    def _set(self, switch: Switch, before: Before | None, on: bool) -> None:
        assert before is not None
        configuration.require_same(self.connect(), before)
        check_alone(self.connect())  # one that was away may be back, with more to put back
        ours, theirs = switch.value, before.entry
        value, expected = (ours, theirs) if on else (theirs, ours)
        try:
            value = configuration.change(self.connect(), switch.setting, value, expected)
        except psycopg.errors.InvalidParameterValue as ex:
            if configuration.is_secret(switch.setting):
                raise UsageError(f"{switch.setting} cannot have that value") from None
            raise UsageError(
                f"{switch.setting} = {switch.value}: {own_session.first_line(ex)}"
            ) from ex
        if on and value == before.value:
            raise UsageError(
                f"--reload {switch.name}: {switch.setting} is {value} with and without it: it is "
                "that already, or a role, a database or the server's command line sets it"
            )

    def _wait_until_shown(
        self, switch: Switch, on: bool, hurry: Callable[[], bool] = lambda: False
    ) -> None:
        """Until pg_settings shows what a provider's command has changed."""
        until = time.monotonic() + COMMAND_S
        while True:
            if self._is_shown(switch) == on:
                return
            if hurry():
                raise MeasurementError(
                    f"everything is put back, although {switch.setting} does not show yet that "
                    f"{switch.name} is {'on' if on else 'off'}"
                )
            if time.monotonic() > until:
                state = "not shown" if on else "still shown"
                value = "" if configuration.is_secret(switch.setting) else f" = {switch.value}"
                raise MeasurementError(
                    f"{switch.setting}{value} is {state} {COMMAND_S / 60:.0f} minutes after the "
                    f"command of {switch.name}"
                )
            time.sleep(_SHOWN_POLL_S)

    def _is_shown(self, switch: Switch) -> bool:
        of = f"--switch {switch.name}"
        return setting_now(self.connect(), switch.setting, of).is_value(switch.value)


def _switching(switch: Switch, on: bool) -> str:
    return f"switching {switch.name} {'on' if on else 'off'}"
