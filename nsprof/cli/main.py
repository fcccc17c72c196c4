"""The program: a table of verbs, each loaded when called, and one catch for every error.

A verb is a module `nsprof.cli.<module>` with a click command `command`. Only this table is read for `--help`, so
nothing heavy is imported before a verb runs.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nsprof import __version__
from nsprof.cli import limits
from nsprof.errors import NsprofError
from nsprof.escape import own_name, safe

#: verb -> (module under nsprof.cli, one line of help, section)
VERBS: dict[str, tuple[str, str, str]] = {
    "record": ("record", "Record while a command runs, or watch what already runs.", "Measure"),
    "bench": ("bench", "Run scenarios in fair order and compare them.", "Measure"),
    "top": ("top", "Live: CPU by namespace and device, softirq included.", "Measure"),
    "churn": ("churn", "Create and delete namespaces, timed and profiled.", "Measure"),
    "simulate": ("simulate", "Exact instructions per packet of any kernel, on any machine.", "Measure"),
    "topo": ("topo", "Build, list and remove the test topologies.", "Measure"),
    "vm": ("vm", "Run a command under another kernel, in a virtual machine.", "Measure"),
    "doctor": ("doctor", "What this machine can and cannot do, found by trying.", "Measure"),
    "report": ("report", "Cost per function of one profile.", "Read"),
    "ledger": ("ledger", "Copies, checksums, segments, fragments, drops per packet and KB.", "Read"),
    "diff": ("diff", "Per-function delta between two profiles or scenarios.", "Read"),
    "explain": ("explain", "Ranked causes of extra cost, with their evidence.", "Read"),
    "gate": ("gate", "Pass, regression or not enough evidence: for CI.", "Read"),
    "history": ("history", "Many result files as a table and a chart, changes marked.", "Read"),
    "flamegraph": ("flamegraph", "Interactive SVG flame graph, plain or differential.", "Read"),
    "info": ("info", "What is in a profile.", "Read"),
    "import": ("import_", "Make a profile of perf.data, perf script, folded stacks, pprof, ...", "Convert"),
    "export": ("export", "Write a profile for pprof, speedscope, Firefox Profiler, ...", "Convert"),
    "completion": ("completion", "Completion script for bash, zsh or fish.", "Help"),
}


#: Verbs whose statuses 1..124 belong to the command that they run.
_RUNS_COMMANDS = ("record", "bench", "vm", "simulate", "topo", "churn")


class _ReaderGone(Exception):
    """Who read our output has closed it."""


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """A closed pipe passes click by, which would make it status 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich makes it status 1 as well
            raise _ReaderGone from error
        raise


class _Verbs(click.Group):
    def make_context(self, *args: Any, **words: Any) -> click.Context:
        """Parse the program's own options; --help writes here."""
        with _reader_may_leave():
            return super().make_context(*args, **words)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        with _reader_may_leave():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"nsprof.cli.{VERBS[cmd_name][0]}")
        command: click.Command = module.command
        _add_quiet(command)
        if "_NSPROF_COMPLETE" not in os.environ:
            from nsprof.cli.words import check_words

            check_words(command)
            _check_addresses(cmd_name, command)
        if "_NSPROF_COMPLETE" in os.environ:  # a shell asks for completions
            from nsprof.cli import completion

            return completion.enrich(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " 'nsprof --help' lists the commands."
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.context_settings.get("ignore_unknown_options"):
            _refuse_unknown(ctx, command, rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(section for _, _, section in VERBS.values()):
            rows = [(verb, text) for verb, (_, text, where) in VERBS.items() if where == section]
            with formatter.section(section):
                formatter.write_dl(rows)


def _refuse_unknown(ctx: click.Context, command: click.Command, words: list[str]) -> None:
    """What looks like an option before the command's first word is one, misspelt: not the name of a program.

    (Verbs that run commands ignore unknown options, since those behind the first word are the command's own.)
    """
    known = {name: p for p in command.params if isinstance(p, click.Option) for name in (*p.opts, *p.secondary_opts)}
    number = 0
    while number < len(words) and words[number].startswith("-") and words[number] not in ("-", "--"):
        word = words[number]
        name, joined, _ = word.partition("=")
        if not name.startswith("--") and name not in known and name[:2] in known:
            name, joined = name[:2], "joined" if len(word) > 2 else ""  # -F99
        if name in ("-h", "--help"):
            return
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=2)
            raise click.NoSuchOption(name, possibilities=near, ctx=click.Context(command, ctx, command.name))
        number += 1 if known[name].is_flag or known[name].count or joined else 2


def _add_quiet(command: click.Command) -> None:
    """-q, --quiet for every verb that has none of its own: nothing on stderr but errors."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _add_quiet(inner)
        return
    names = {name for p in command.params for name in p.opts}
    if "--quiet" in names:
        return
    opts = ["--quiet"] if "-q" in names else ["-q", "--quiet"]
    command.params.append(
        click.Option(
            opts, is_flag=True, expose_value=False, is_eager=True, callback=_hush, help="Only errors on stderr."
        )
    )


def _check_addresses(verb: str, command: click.Command) -> None:
    """Make `command` refuse to begin where libraries that it needs would end it for want of addresses."""
    begin = command.invoke

    def checked(ctx: click.Context) -> Any:
        limits.check_addresses(verb, one_thread=verb not in _RUNS_COMMANDS)
        return begin(ctx)

    if not hasattr(command, "_addresses_checked"):
        command.invoke = checked  # type: ignore[method-assign]
        command._addresses_checked = True  # type: ignore[attr-defined]


def _hush(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Notes go nowhere from here to the end of the verb; errors are written after it, to the real stderr."""
    if not value or ctx.resilient_parsing:
        return
    real, muted = sys.stderr, open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - closed with the context

    def restore() -> None:
        sys.stderr = real
        muted.close()

    sys.stderr = muted
    ctx.find_root().call_on_close(restore)


@click.command(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with 'nsprof doctor', then 'nsprof record -- COMMAND'. Every verb has its own --help.",
)
@click.version_option(__version__, "-V", "--version", prog_name="nsprof")
@click.option("--debug", is_flag=True, help="Show tracebacks and the verifier's words.")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:
    """Tell what a network namespace costs on the Linux datapath, in which kernel function, and why."""
    ctx.obj = {"debug": debug}


def run(argv: list[str] | None = None) -> None:
    """Entry point of the `nsprof` program; ends the process with the right status."""
    try:
        try:
            _run(argv)
        finally:
            for number in _ENDING:  # raised while the interpreter is taken down, it would only be a traceback
                if signal.getsignal(number) is _terminate:
                    signal.signal(number, signal.SIG_DFL)
    except KeyboardInterrupt:  # once more while the first one is being answered: all blocks have been left by now
        os._exit(128 + signal.SIGINT)
    except _Terminated as error:
        os._exit(128 + error.args[0])


def _run(argv: list[str] | None) -> None:
    words = sys.argv[1:] if argv is None else argv
    debug = "--debug" in words[:2] or bool(os.environ.get("NSPROF_DEBUG"))
    if next((word for word in words if not word.startswith("-")), "") not in _RUNS_COMMANDS:
        # The threads of numpy's BLAS, which nothing here uses, spin for some 50 ms of CPU time at every start. (A
        # command that is run must not find this in its environment.)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if limits.are_addresses_limited():  # ... and those of Arrow's pool want 76 MB each
            os.environ.setdefault("OMP_NUM_THREADS", "1")
    _stand_in_for_closed_streams()
    _write_whole()
    _notes_never_fail()
    _never_fail_on_a_character()
    try:
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup's ignored SIGHUP stays ignored
                signal.signal(number, _terminate)
        status: Any = main.main(words, prog_name="nsprof", standalone_mode=False)
        _flush()
    except click.ClickException as error:
        _suggest_after(error)
        status = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("nsprof: interrupted", err=True)
        status = 128 + signal.SIGINT
    except _Terminated as error:
        click.echo(f"nsprof: ended by {error.args[0].name}", err=True)
        status = 128 + error.args[0]
    except NsprofError as error:
        if debug:
            raise
        _say(limits.files_short(error))
        status = _failure(words) if error.exit_code == 1 else error.exit_code
    except (_ReaderGone, BrokenPipeError):
        # The reader of our stdout went away (head, less q): end as other tools do, without a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except OSError as error:
        if debug:
            raise
        _say(limits.files_short(NsprofError(f"{_where(error)}{error.strerror or error}")))
        status = _failure(words)
    except MemoryError:
        if debug:
            raise
        _say(limits.out_of_memory())
        status = _failure(words)
    except Exception as error:  # the last line of defence: a bug of ours is said, not thrown at the user
        if debug:
            raise
        if limits.lacks_memory(error):
            _say(limits.out_of_memory())
            sys.exit(_failure(words))
        click.echo(f"nsprof: internal error: {type(error).__name__}: {_harmless(str(error))}", err=True)
        click.echo(
            "  hint: this is a bug in nsprof; run again with 'nsprof --debug ...' and report what it prints", err=True
        )
        status = _failure(words)
    sys.exit(status if isinstance(status, int) else 0)


def _suggest_after(error: click.ClickException) -> None:
    """Say the error and, of a word that is none of an option's, the one that may have been meant."""
    said = io.StringIO()
    error.show(said)
    for line in said.getvalue().rstrip("\n").split("\n"):  # a shell's * may have given us any name
        click.echo(_harmless(line), err=True)
    if (
        not isinstance(error, click.BadParameter)
        or error.param is None
        or not isinstance(error.param.type, click.Choice)
    ):
        return
    word = error.message.partition(" is not one of ")[0].strip("'\"")
    import difflib

    near = difflib.get_close_matches(word, [str(choice) for choice in error.param.type.choices], n=1)
    if near:
        click.echo(f"Did you mean '{near[0]}'?", err=True)


_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Terminated(BaseException):
    """SIGTERM, SIGHUP or SIGQUIT as an exception, so that every block that must clean up does."""


def _terminate(number: int, frame: object) -> None:
    del frame
    raise _Terminated(signal.Signals(number))


def _failure(words: list[str]) -> int:
    """The status of a failure of our own: one that no command of the user's would give, where one is run."""
    verb = next((word for word in words if not word.startswith("-")), "")
    reads = verb == "bench" and "--show" in words  # no command is run
    if verb == "gate":  # 1 is its word for a regression
        return 2
    return 125 if verb in _RUNS_COMMANDS and not reads else 1


def _flush() -> None:
    sys.stdout.flush()


def _stand_in_for_closed_streams() -> None:
    """Nothing of ours (a profile, a perf event) may get the number of a standard stream that the caller closed, else
    what is written to that stream would go into it. The stand-ins refuse reading and writing as a closed one does,
    and vanish at exec, so that a command finds its streams closed as well.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY)  # takes the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _write_whole() -> None:
    """With PYTHONUNBUFFERED, stdout is a raw file, and Python takes a write that was cut short (a full disk) for a
    whole one: a document would lack its end and the status be 0. A buffer before it writes all or raises.
    """
    stream = sys.stdout
    if stream is not sys.__stdout__:  # somebody's who calls us from Python
        return
    if isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.RawIOBase):
        encoding, errors = stream.encoding, stream.errors
        sys.stdout = io.TextIOWrapper(
            # A file of its own on the same descriptor: who has the old one (a test's runner) may go on with it.
            io.BufferedWriter(io.FileIO(stream.fileno(), "w", closefd=False)),
            encoding=encoding,
            errors=errors,
            line_buffering=True,
        )


class _Notes(io.TextIOWrapper):
    """stderr: a note that cannot be written (a full disk behind `2>`) must not cost the measurement it speaks of."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def _notes_never_fail() -> None:
    stream = sys.stderr
    if stream is sys.__stderr__ and isinstance(stream, io.TextIOWrapper):
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        sys.stderr = _Notes(raw, stream.encoding, stream.errors, line_buffering=True, write_through=True)


def _never_fail_on_a_character() -> None:
    """What the output's encoding lacks (LANG=C, names that are no UTF-8) is shown in another way, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            unicode = stream.encoding.lower().replace("-", "").startswith("utf")
            stream.reconfigure(errors="backslashreplace" if unicode else "replace")


def _where(error: OSError) -> str:
    """What an error of the operating system is about: its file, or our output where that cannot be written."""
    if error.filename is not None:
        return f"{os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else error.filename}: "
    if error.errno == errno.ENOENT:
        try:
            Path.cwd()
        except OSError:
            return "current directory (it has been removed): "
    if error.errno not in (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG, errno.EDQUOT):
        return ""
    try:
        os.write(sys.stdout.fileno(), b"")
        sys.stdout.flush()
        ours = error.errno == errno.ENOSPC and _is_full(sys.stdout.fileno())
    except OSError:
        ours = True
    if not ours:
        return ""
    # What is buffered cannot be saved; without this the interpreter would try, and complain, once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return "standard output: cannot be written: "


def _is_full(descriptor: int) -> bool:
    """Whether a file cannot grow since its disk is full."""
    return stat.S_ISREG(os.fstat(descriptor).st_mode) and os.fstatvfs(descriptor).f_bavail == 0


def _harmless(text: str) -> str:
    """Names of files, commands and devices may hold anything: no escape sequence of theirs reaches a terminal."""
    # (In what repr() has quoted, a byte that is no UTF-8 is a surrogate's escape. Everywhere else it is its own.)
    return safe(re.sub(r"\\udc([89a-f][0-9a-f])", r"\\x\1", text))


def _say(error: NsprofError) -> None:
    click.echo(f"nsprof: {_harmless(error.message)}", err=True)
    if error.hint:
        hint = re.sub(rf"(?<![\w./-])nsprof(?= ({'|'.join(VERBS)})\b)", lambda _: own_name(), error.hint)
        click.echo(f"  hint: {_harmless(hint)}", err=True)
    details = getattr(error, "details", "")
    if details:
        click.echo("  (the verifier's words: run again with --debug)", err=True)
