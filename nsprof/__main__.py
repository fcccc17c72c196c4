"""The program's beginning, as `nsprof` and as `python -m nsprof`: Ctrl-C ends it with status 130, whatever it does.

Until the command line stands there is nothing to clean up, so an interrupt ends the process there and then; raised
as an exception it would come out of some import as a traceback, or be swallowed by a callback of the import system.
Nothing but `signal` is imported before that holds. What comes earlier is Python's: an interrupt during its own start
(the `site` module, 10 to 20 ms) or in the few lines of an installer's script is answered by Python in its own words.
"""

import os

try:
    import signal
    from types import FrameType

    def _leave(number: int = 0, frame: FrameType | None = None) -> None:
        del number, frame
        os._exit(130)

    def _leave_next_time(number: int, frame: FrameType | None) -> None:
        """All is written and the interpreter is being taken down: that needs no hurry before a second Ctrl-C."""
        del number, frame
        signal.signal(signal.SIGINT, _leave)

    # (Ignored in what runs in the background: left alone.)
    _MINDED = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if _MINDED:
        signal.signal(signal.SIGINT, _leave)
except KeyboardInterrupt:
    os._exit(130)


def main() -> None:
    """Run the command line; ends the process with the right status."""
    try:
        from nsprof.cli.main import run

        if _MINDED:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            run()
        finally:
            if _MINDED:
                signal.signal(signal.SIGINT, _leave_next_time)
    except KeyboardInterrupt:  # between two lines of the above
        _leave()


if __name__ == "__main__":
    main()
