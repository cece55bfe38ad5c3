"""Where the command starts: `pgtare`, and `python -m pgtare`."""

from __future__ import annotations

import sys

from pgtare.interrupt import compute_in_one_thread, keep_hangup, leave_at_interrupt


def main() -> None:
    """Entry point of the console command."""
    leave_at_interrupt()
    if sys.argv[1:2] == ["agent"] and "check" not in sys.argv[2:]:
        keep_hangup()
    compute_in_one_thread()
    from pgtare import cli

    cli.main()


if __name__ == "__main__":
    main()
