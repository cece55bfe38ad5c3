"""The command's end of its guardian: asks it to switch, and does its work if it is killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from collections.abc import Sequence
from typing import Any

import psutil

from pgtare.errors import MeasurementError, UsageError
from pgtare.kit.interpreter import module_command
from pgtare.weighing.switches import COMMAND_S
from pgtare.weighing.whole_server.changer import Changer
from pgtare.weighing.whole_server.commands import LONGEST_END_S, end_group
from pgtare.weighing.whole_server.configuration import PutBack
from pgtare.weighing.whole_server.restore_file import RestoreFile

_MODULE = "pgtare.weighing.whole_server.guardian"
#: How long the command waits at its end until everything is put back, in s, besides the time that
#: commands may take.
PATIENCE_S = 30.0
#: What the guardian has for the last of its tries, in s.
_GRACE_S = 3.0
#: So long an answer takes at most, in s, besides the time that commands may take.
ANSWER_S = 60.0
_KILLED = "the process that would put things back was killed, so it was done at once"


class SwitchGuard:
    """A guardian of its own for one weighing. file: of what is to be put back."""

    def __init__(self, dsn: str, file: RestoreFile) -> None:
        self.file = file
        # what is done in its stead knows what may be in force, not which processes it started
        self._instead = Changer(dsn, file.switches, file.before)
        #: First processes of the switches that are one, while they run.
        self.leaders: dict[int, int] = {}
        self._asked, self._over = 0, False
        self._process = subprocess.Popen(
            module_command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=subprocess.DEVNULL,  # it outlives the command, and must not hold its pipes
            start_new_session=True,  # what ends the command does not end its guardian
            pass_fds=(file.lock,),
        )
        self._tell(
            {
                "dsn": dsn,  # not as an argument: it may hold a password
                "switches": [switch.as_json() for switch in file.switches],
                "before": [vars(one) if one is not None else None for one in file.before],
                "file": str(file.path),
            }
        )
        #: The server's process that serves it.
        self.session = int(self._ask({"do": "connect"}, ANSWER_S)["session"])

    @property
    def pid(self) -> int:
        """The guardian's process."""
        return self._process.pid

    def check(self) -> None:
        """Raise MeasurementError if the guardian was killed, with everything put back."""
        if not self._over and self._process.poll() is not None:
            raise self._take_over()

    def set(self, on: Sequence[bool]) -> None:
        """Switch each on or off; first what goes off. Raises MeasurementError, UsageError."""
        order = sorted(range(len(on)), key=lambda index: on[index])
        for index in order:
            as_before = on[index] == self.file.switches[index].is_left_on
            if not as_before:
                self.file.note(index, changed=True)
            self._instead.touched[index] = True
            message = {"do": "switch", "index": index, "on": bool(on[index])}
            # a command, and then the wait until the server shows that it was carried out
            answer = self._ask(message, ANSWER_S + 2 * COMMAND_S * self._is_command(index))
            self._instead.touched[index] = not as_before
            if as_before:
                self.file.note(index, changed=False)
            self.leaders = {int(key): int(pid) for key, pid in answer["leaders"].items()}

    def try_on(self, index: int) -> None:
        """See whether the command works that switches on what is on. Raises MeasurementError."""
        self.file.note(index, changed=True)  # it may be killed half-way
        self._ask({"do": "try on", "index": index}, ANSWER_S + COMMAND_S)
        self.file.note(index, changed=False)

    def put_back(self) -> list[PutBack]:
        """Everything as it was. Raises MeasurementError if that is not so yet."""
        if self._over:
            return []
        touched = [index for index, is_so in enumerate(self._instead.touched) if is_so]
        try:
            message = {"do": "put back", "patience_s": PATIENCE_S}
            wait_s = PATIENCE_S + _GRACE_S + COMMAND_S * sum(map(self._is_command, touched))
            done = self._ask(message, wait_s)["done"]
        except MeasurementError as ex:
            if self._over:
                raise
            raise MeasurementError(
                f"not everything could be put back yet ({ex}): process {self.pid} goes on trying; "
                f"by hand: {self.file.path}"
            ) from ex
        finally:
            self._over = True
            self._farewell()
        return [PutBack(*one) for one in done]

    def _is_command(self, index: int) -> bool:
        return self.file.switches[index].kind == "commands"

    def _farewell(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        os.close(self.file.lock)

    def _ask(self, message: dict[str, Any], wait_s: float) -> dict[str, Any]:
        self._asked += 1
        self._tell({**message, "number": self._asked})
        assert self._process.stdout is not None
        answer: dict[str, Any] = {}
        while answer.get("number") != self._asked:  # Ctrl-C may have left one unread
            if not select.select([self._process.stdout], [], [], wait_s)[0]:
                raise MeasurementError(f"no answer in {wait_s:g} s")
            line = self._process.stdout.readline()
            if not line:
                raise self._take_over()
            answer = json.loads(line)
        if "error" in answer:
            kind = UsageError if answer["kind"] == UsageError.__name__ else MeasurementError
            raise kind(answer["error"])
        return answer

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it was killed: its answer will be missing
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _take_over(self) -> MeasurementError:
        """Put things back in the guardian's stead; what to raise."""
        self._process.wait()
        self._over = True
        self._end_processes()
        try:
            self._instead.put_back()
        except Exception as ex:
            return MeasurementError(
                "the process that would put things back was killed, and that cannot be done now "
                f"({ex}): by hand, {self.file.path}, or weigh again"
            )
        finally:
            self._instead.close()
        self.file.remove()
        return MeasurementError(_KILLED)

    def _end_processes(self) -> None:
        """Wait for the end of what the guardian had started: the kernel tells its keepers to."""
        for pid in self.leaders.values():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
                if os.getsid(pid) == pid:
                    psutil.wait_procs([psutil.Process(pid)], LONGEST_END_S)
                    end_group(pid)
        self.leaders = {}
