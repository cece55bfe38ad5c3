"""The command's end of its guardian: asks it to switch, and does its work if it is killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import psutil

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.kit.interpreter import module_command
from pgtare.weighing.switches import COMMAND_S
from pgtare.weighing.whole_server import configuration
from pgtare.weighing.whole_server.changer import Changer
from pgtare.weighing.whole_server.commands import LONGEST_END_S, end_group, printed_by
from pgtare.weighing.whole_server.configuration import PutBack
from pgtare.weighing.whole_server.restore_file import RestoreFile

_MODULE = "pgtare.weighing.whole_server.guardian"
#: How long the command waits at its end until everything is put back, in s, besides the time that
#: commands may take.
PATIENCE_S = 30.0
#: What the guardian has for the last of its tries, in s.
_GRACE_S = 3.0
#: If nothing was asked for a window and so long while something is switched, the guardian puts it
#: back, in s.
LEASE_S = 60.0
#: So long an answer takes at most, in s, besides the time that commands may take.
ANSWER_S = 60.0
_KILLED = "the process that would put things back was killed"


class SwitchGuard:
    """A guardian of its own for one weighing.

    file: of what is to be put back. window_s: for so long the command may have nothing to say.
    say: prints what no result may hold.
    """

    def __init__(
        self,
        dsn: str,
        file: RestoreFile,
        window_s: float = 0.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.file, self._lease_s, self._say = file, window_s + LEASE_S, say
        # what is done in its stead knows what may be in force, not which processes it started
        self._instead = Changer(dsn, file.switches, file.before, note=file.running)
        #: First processes of the switches that are one, while they run.
        self.leaders: dict[int, int] = {}
        self._asked, self._over, self._dsn = 0, False, dsn
        self._done: list[PutBack] = []
        self._failed: BaseException | None = None
        self._renew_at = 0.0
        self._tried: int | None = None
        self._process = self._started()
        try:
            connected = self._ask({"do": "connect"}, ANSWER_S)
        except BaseException:
            self._process.kill()  # it has changed nothing, and would keep others away
            self._process.wait()
            self._farewell()
            raise
        #: The server's process that serves it.
        self.session = int(connected["session"])

    def _started(self) -> subprocess.Popen[bytes]:
        """A guardian, which knows what is to be put back."""
        process = subprocess.Popen(
            module_command(_MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=subprocess.DEVNULL,  # it outlives the command, and must not hold its pipes
            start_new_session=True,  # what ends the command does not end its guardian
            pass_fds=(self.file.lock,),
        )
        first = {
            "dsn": self._dsn,  # not as an argument: it may hold a password
            "switches": [switch.as_json() for switch in self.file.switches],
            "before": [vars(one) if one is not None else None for one in self.file.before],
            "touched": self._instead.touched,
            "lease_s": self._lease_s,
            "file": str(self.file.path),
            "lock": self.file.lock,
        }
        _tell(process, first)
        return process

    @property
    def pid(self) -> int:
        """The guardian's process."""
        return self._process.pid

    def check(self) -> None:
        """Call it often: it shows the guardian that this command goes on.

        Raises MeasurementError if the guardian was killed, or has seen nothing of us for too long.
        """
        now = time.monotonic()
        if not self._over and (now >= self._renew_at or self._process.poll() is not None):
            self._ask({"do": "stay", "lease_s": self._lease_s}, ANSWER_S)
            self._renew_at = now + self._lease_s / 12

    def allow(self, silence_s: float) -> None:
        """Let the command say nothing for so much longer: its transactions are slow."""
        self._lease_s += silence_s
        self._renew_at = 0.0
        self.check()

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

    def try_as_it_is(self, index: int) -> None:
        """See whether the command works that puts one back. Raises MeasurementError, UsageError."""
        self.file.note(index, changed=True)
        self._tried = index
        self._ask({"do": "try", "index": index}, ANSWER_S + COMMAND_S)
        self._tried = None
        self.file.note(index, changed=False)

    def put_back(self) -> list[PutBack]:
        """Everything as it was. Raises MeasurementError if that is not so yet.

        May be called again, and says the same.
        """
        if self._failed is not None:
            raise self._failed
        if self._over:
            return self._done
        touched = [index for index, is_so in enumerate(self._instead.touched) if is_so]
        try:
            message = {"do": "put back", "patience_s": PATIENCE_S}
            # a command, and then the wait until the server shows what it did, as above
            wait_s = PATIENCE_S + _GRACE_S + 2 * COMMAND_S * sum(map(self._is_command, touched))
            done = self._ask(message, wait_s)["done"]
        except PgtareError as ex:
            if self._over:  # it was killed, and all was done in its stead
                return self._done
            self._failed = MeasurementError(
                f"not everything could be put back yet ({ex}): process {self.pid} goes on trying; "
                f"by hand: {' '.join([*self._statements(), f'(all of it: {self.file.path})'])}"
            )
            raise self._failed from ex
        except KeyboardInterrupt:
            self._failed = KeyboardInterrupt(
                f"interrupted; process {self.pid} goes on putting things back ({self.file.path})"
            )
            raise self._failed from None
        finally:
            self._farewell()
        self._done = self._said([*self._instead.done, *(PutBack(*one) for one in done)])
        return self._done

    def _said(self, done: Sequence[PutBack]) -> list[PutBack]:
        """With the name of the file, if it is kept."""
        kept = f"; {self.file.path} is kept: if all is as you want it, remove it"
        is_kept = self.file.path.exists()
        return [
            one if one.as_before or not is_kept else PutBack(one.text + kept, as_before=False)
            for one in done
        ]

    def _statements(self) -> Iterator[str]:
        """What puts settings back. Results show it, so values that may be secret are left out."""
        for switch, was in zip(self.file.switches, self.file.before, strict=True):
            if was is not None and not (was.entry and configuration.is_secret(switch.setting)):
                yield configuration.statements(switch.setting, was.entry)

    def _is_command(self, index: int) -> bool:
        return self.file.switches[index].kind == "commands"

    def _farewell(self) -> None:
        if self._over:
            return
        self._over = True
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        os.close(self.file.lock)

    def _ask(self, message: dict[str, Any], wait_s: float) -> dict[str, Any]:
        self._asked += 1
        _tell(self._process, {**message, "number": self._asked})
        assert self._process.stdout is not None
        answer: dict[str, Any] = {}
        while answer.get("number") != self._asked:  # Ctrl-C may have left one unread
            if not select.select([self._process.stdout], [], [], wait_s)[0]:
                raise MeasurementError(f"no answer in {wait_s:g} s")
            line = self._process.stdout.readline()
            if not line:
                self._take_over()
            answer = json.loads(line)
            if "paused" in answer:
                self._done = self._said([PutBack(*one) for one in answer["paused"]])
                self._farewell()
                raise MeasurementError(
                    f"this command was stopped, or blocked, for {self._lease_s:.0f} s: everything "
                    "was put back meanwhile"
                )
        if "error" in answer:
            self._say_printed(answer["error"], answer.get("printed", ""))
            kind = UsageError if answer["kind"] == UsageError.__name__ else MeasurementError
            raise kind(answer["error"])
        return answer

    def _take_over(self) -> NoReturn:
        """Put things back in the guardian's stead, or have another one do so. Raises an error."""
        self._process.wait()
        self._end_processes()
        if self._tried is not None:  # it was killed half-way
            self._instead.touched[self._tried] = True
        try:
            self._done = self._instead.put_back()
        except BaseException as ex:
            self._say_printed(str(ex), printed_by(ex))
            self._process = self._started()
            if not isinstance(ex, Exception):
                raise
            raise MeasurementError(f"{_KILLED}; another one tries to, as it failed ({ex})") from ex
        finally:
            self._instead.close()
        self._farewell()
        if all(one.as_before for one in self._done):
            self.file.remove()
        self._done = self._said(self._done)
        raise MeasurementError(f"{_KILLED}, so it was done at once")

    def _say_printed(self, error: str, printed: str) -> None:
        if printed:
            self._say(f"{error}: it printed: {printed}")

    def _end_processes(self) -> None:
        """Wait for the end of what the guardian had started: the kernel tells its keepers to.

        A keeper may have been killed, too: then its group is without a leader.
        """
        for pid in self.leaders.values():
            with contextlib.suppress(PermissionError, psutil.Error):
                try:
                    is_there = os.getsid(pid) == pid
                except ProcessLookupError:
                    end_group(pid)
                    continue
                if is_there:
                    psutil.wait_procs([psutil.Process(pid)], LONGEST_END_S)
                    end_group(pid)
        self.leaders = {}


def _tell(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it was killed: its answer will be missing
        process.stdin.write(json.dumps(message).encode() + b"\n")
