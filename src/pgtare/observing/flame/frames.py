"""Names of frames: what is the kernel's, where a process's own stack begins, and what is idle."""

from __future__ import annotations

Stack = tuple[str, ...]  # from the outermost frame to the innermost

#: Marks a frame of the kernel, as other tools for folded stacks have it.
KERNEL = "_[k]"
#: Frames that are no functions begin so.
WAIT, STATEMENT, THROUGHOUT, WAKER = "wait: ", "statement: ", "waiting throughout", "woken by "

# The function in which the work of a process begins; what is around it differs by major version.
_MAINS = {
    "PostgresMain": "backend",
    "ParallelWorkerMain": "parallel worker",
    "BackgroundWorkerMain": "background worker",
    "StartBackgroundWorker": "background worker",
    "ApplyWorkerMain": "apply worker",
    "ParallelApplyWorkerMain": "apply worker",
    "ReplSlotSyncWorkerMain": "slotsync worker",
    "exec_replication_command": "walsender",
    "CheckpointerMain": "checkpointer",
    "BackgroundWriterMain": "background writer",
    "WalWriterMain": "walwriter",
    "WalReceiverMain": "walreceiver",
    "WalSummarizerMain": "walsummarizer",
    "StartupProcessMain": "startup process",
    "AutoVacLauncherMain": "autovacuum launcher",
    "StartAutoVacLauncher": "autovacuum launcher",
    "AutoVacWorkerMain": "autovacuum worker",
    "StartAutoVacWorker": "autovacuum worker",
    "IoWorkerMain": "io worker",
    "SysLoggerMain": "logger",
    "SysLogger_Start": "logger",
    "PgArchiverMain": "archiver",
    "ApplyLauncherMain": "logical replication launcher",
    "ServerLoop": "postmaster",
    "PostmasterMain": "postmaster",
}
# Of several in one stack the innermost begins its work.
_OUTER = {"ServerLoop", "PostmasterMain", "BackgroundWorkerMain", "StartBackgroundWorker"}
_SESSIONS = frozenset({"backend", "parallel worker"})
#: How the frame of a session that waited throughout ends, if it waited for its client.
_IDLE_STATES = (" idle", " idle in transaction", " idle in transaction (aborted)")
#: How that of any other ends, if it waited for a lock.
LOCK_STATE = " waiting"
_NEVER_IDLE = frozenset({"process", "startup process", "autovacuum worker"})
# What waits for something to do passes through nothing else.
_LATCH = {"WaitLatch", "WaitLatchOrSocket", "WaitEventSetWait", "WaitEventSetWaitBlock"}
_LATCH |= {"epoll_wait", "__select", "pg_usleep", "poll", "sigsuspend", "ppoll"}
_LOOPS = {"StartReplication", "StartLogicalReplication", "WalSndLoop", "WalSndWait"}
_LOOPS |= {"run_apply_worker", "start_apply", "LogicalRepApplyLoop", "LogicalParallelApplyLoop"}
_LOOPS |= {"wait_for_slot_activity"}
#: What wait_event_timing puts around each of libc's calls is called as that, behind this.
_WRAPPED = "wait_"
_CLIENT = frozenset({"secure_read", "pq_getbyte", "pq_recvbuf", "pq_getmessage", "SocketBackend"})


def plain(name: str) -> str:
    """The name of a function as its authors call it.

    Without what the compiler puts behind it (.isra.0, .part.1), what the linker does (@@GLIBC_2.17)
    and libc before it (__GI___libc_).
    """
    if name[:1] not in (".", "@"):
        name = name.partition("@")[0].partition(".")[0]
    inner = name.removeprefix("__GI_")
    return inner if inner == name else inner.removeprefix("__libc_")


def own(stack: Stack) -> Stack:
    """The stack from where the process's own work begins, under the kind of process it is.

    What is around that (main, the postmaster's loop) says nothing, and is cut off by DWARF.
    """
    begins = -1
    for i, name in enumerate(stack):
        if name in _MAINS and (begins < 0 or stack[begins] in _OUTER or name not in _OUTER):
            begins = i
    if begins < 0:
        return ("process", *stack)
    return (_MAINS[stack[begins]], *stack[begins:])


def is_idle(stack: Stack) -> bool:
    """Whether a blocked process waits for something to do: its client, or its main loop's latch."""
    own = _undressed(stack)
    if not own or own[0] in _NEVER_IDLE:
        return False
    session = own[0] in _SESSIONS
    if len(own) > 1 and own[1].startswith(THROUGHOUT):
        return own[1].endswith(_IDLE_STATES) if session else not own[1].endswith(LOCK_STATE)
    if session:
        return not _CLIENT.isdisjoint(own)
    if own[0] == "walsummarizer":  # below functions that read, too
        return "WaitLatch" in own
    user = [name for name in own[2:] if not name.endswith(KERNEL)]
    return all(
        name in _LOOPS or name.removeprefix(_WRAPPED) in _LATCH or "+0x" in name for name in user
    )


def _undressed(stack: Stack) -> list[str]:
    """The process's own frames: without labels, and without what woke it."""
    own = [name for name in stack if not name.startswith((WAIT, STATEMENT))]
    wakers = (i for i, name in enumerate(own) if name.startswith(WAKER))
    return own[: next(wakers, len(own))]
