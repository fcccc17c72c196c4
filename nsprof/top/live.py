"""The loop of `nsprof top`'s screen: a tick a second, keys in between, the terminal as it was at the end."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

from nsprof.errors import NsprofError, UsageError
from nsprof.escape import own_name, shell_word
from nsprof.render.top import Screen
from nsprof.top import TopOptions
from nsprof.top.keys import Keyboard
from nsprof.top.save import profile_of
from nsprof.top.table import State, view_of
from nsprof.top.watch import Snapshot, Watch, watching

__all__ = ["run_live"]

_INTERVALS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
_MESSAGE_S = 6.0
_PAGE = 10


def run_live(options: TopOptions) -> int:
    """Show the screen until `q`. Raises UsageError where there is no terminal."""
    screen = Screen()
    if not (sys.stdin.isatty() and sys.stdout.isatty() and screen.is_terminal):
        raise UsageError("nsprof top draws on a terminal, and this is none", "nsprof top -b -n 3")
    if not options.quiet:
        print("nsprof: loading the sampler ...", file=sys.stderr, flush=True)
    with watching(frequency_hz=options.frequency_hz, hop=options.hop, keep_s=options.keep_s) as watch:
        watch.begin()
        with Keyboard(sys.stdin.fileno()) as keyboard, screen:
            _Loop(options, watch, screen, keyboard).run()
    return 0


class _Loop:
    def __init__(self, options: TopOptions, watch: Watch, screen: Screen, keyboard: Keyboard) -> None:
        self.options = options
        self.watch = watch
        self.screen = screen
        self.keyboard = keyboard
        self.state = State.of(options)
        self.snapshot: Snapshot | None = None
        self.shown = watch.devices
        self.order: list[tuple[int, int, int]] = []
        self.ticks = 0
        self.over = False
        self.stopped = False
        self.message_until_s = 0.0

    def run(self) -> None:
        """Until q, or the number of intervals asked for."""
        before = signal.signal(signal.SIGTSTP, self._suspend)
        try:
            self._ticking()
        finally:
            signal.signal(signal.SIGTSTP, before)

    def _ticking(self) -> None:
        due = time.monotonic() + min(self.state.interval_s, 1.0)  # the first picture comes soon
        self._draw()
        while not self.over:
            keys = self.keyboard.wait(due - time.monotonic())
            for key in keys:
                self._key(key)
            if self.stopped:
                self._rest()
            if self.keyboard.ended or self.over:
                return
            now = time.monotonic()
            if now >= due:
                due = max(due + self.state.interval_s, now + self.state.interval_s / 2)
                self._tick()
            elif now > self.message_until_s and self.state.message:
                self.state.message = ""
            self._draw()

    def _tick(self) -> None:
        shown = tuple(key[0] for key in self.order[max(0, self.state.position - 50) : self.state.position + 50])
        snapshot = self.watch.tick(shown)
        if not self.state.paused:
            self.snapshot = snapshot
        self.ticks += 1
        self.over = bool(self.options.count) and self.ticks >= self.options.count

    def _draw(self) -> None:
        watch, state = self.watch, self.state
        if self.snapshot is None:
            from nsprof.render.top import TopView

            self.screen.show(TopView(("nsprof top: sampling ...",), watch.notes, (), -1, (), "", " q:quit"))
            return
        view = view_of(self.snapshot, self.shown, state, hop=watch.hop, notes=watch.notes)
        self.order = [row.key for row in view.rows]
        self.screen.show(view)

    # ---- keys ----

    def _key(self, key: str) -> None:
        state = self.state
        if state.typing:
            self._type(key)
            return
        if state.help:
            state.help = False
            return
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -_PAGE, "pagedown": _PAGE, "home": -(10**9)}
        if key in moves or key == "end":
            self._move(moves.get(key, 10**9))
        elif key in ("q", "end-of-file"):
            self.over = True
        elif key in ("s", "S"):
            state.next_sort(1 if key == "s" else -1)
        elif key == "r":
            state.reverse = not state.reverse
        elif key == "/":
            state.typing = True
        elif key == "escape":
            state.filter, state.selected = "", None
        elif key in ("p", " "):
            state.paused = not state.paused
            self.shown = self.watch.devices.frozen() if state.paused else self.watch.devices
        elif key == "g":
            state.by = "namespace" if state.by == "device" else "device"
            state.selected = None
        elif key == "a":
            state.idle = not state.idle
        elif key in ("?", "h"):
            state.help = True
        elif key in ("+", "-"):
            self._interval(1 if key == "+" else -1)
        elif key == "w":
            self._save()

    def _type(self, key: str) -> None:
        state = self.state
        if key == "enter":
            state.typing = False
        elif key == "escape":
            state.typing, state.filter = False, ""
        elif key == "backspace":
            state.filter = state.filter[:-1]
        elif len(key) == 1:
            state.filter += key

    def _move(self, step: int) -> None:
        if self.order:
            self.state.position = max(0, min(self.state.position + step, len(self.order) - 1))
            self.state.selected = self.order[self.state.position]

    def _interval(self, step: int) -> None:
        faster = [s for s in _INTERVALS if s < self.state.interval_s]
        slower = [s for s in _INTERVALS if s > self.state.interval_s]
        choice = slower[:1] if step > 0 else faster[-1:]
        if choice:
            self.state.interval_s = choice[0]
        self._say(f"every {self.state.interval_s:g} s")

    def _say(self, text: str) -> None:
        self.state.message = text
        self.message_until_s = time.monotonic() + _MESSAGE_S

    def _save(self) -> None:
        from nsprof import store

        self._say("writing ...")
        self._draw()
        path = self.options.output
        try:
            profile = profile_of(self.watch, self.state.selected)
            store.save(profile, path, keep_old=True, measured=True)
        except NsprofError as error:
            self._say(f"not written: {error.message}")
            return
        except OSError as error:
            self._say(f"not written: {path}: {error.strerror}")
            return
        self._say(
            f"wrote {path}, {profile.runs[0].duration_s:.0f} s; next: {own_name()} report {shell_word(path)} --by hop"
        )

    # ---- Ctrl-Z ----

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.stopped = True

    def _rest(self) -> None:
        """Give the terminal back, stop, and take it again when the shell continues us."""
        self.stopped = False
        self.screen.__exit__(None, None, None)
        self.keyboard.release()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.keyboard.grab()
        self.screen.__enter__()
