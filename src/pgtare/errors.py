"""The two ways a command can fail for a reason the user can act on."""


class PgtareError(Exception):
    """A failure with one clear sentence for the user; never shown as a traceback."""

    exit_status = 1


class UsageError(PgtareError):
    """The command was asked for something it cannot do as written (exit status 2)."""

    exit_status = 2


class MeasurementError(PgtareError):
    """The measurement itself failed (exit status 1)."""


class DiskFull(MeasurementError):
    """A disk had no room for what was measured."""
