#!/usr/bin/env python3
"""Writes docs/nsprof.1, the man page, from the commands and options themselves.

scripts/make_man.py            write it
scripts/make_man.py --check    exit 1 if it is not what the options say now
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import click

from nsprof import __version__
from nsprof.cli.main import VERBS, main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "nsprof.1"

_EXAMPLES = (
    ("What this machine can do", "nsprof doctor"),
    ("Record around a command, read the result", "sudo nsprof record -- netperf -H 10.0.0.7 -l 10\nnsprof report"),
    (
        "What a container costs against the host",
        "sudo nsprof bench --scenario host,veth-bridge -- netperf -t UDP_RR -l 5",
    ),
    ("The same from two files", "nsprof diff host.nsprof pod.nsprof"),
    ("Look at what runs now", "sudo nsprof top"),
)
_STATUS = (
    ("0", "Success; for commands that nsprof runs, theirs is passed through."),
    ("1", "Failure; for doctor: nsprof cannot record here."),
    ("2", "Wrong usage."),
    ("3", "Not enough evidence."),
    ("125", "record, bench, churn, simulate, topo, vm: nsprof itself failed."),
    ("126, 127", "The command cannot be executed, or was not found."),
    ("128+N", "Ended by signal N."),
)
_ENVIRONMENT = (
    ("NO_COLOR", "No colour, even on a terminal."),
    ("NSPROF_DEBUG", "Tracebacks and the verifier's words, as --debug."),
    ("XDG_CACHE_HOME", "Where kernels, symbols and built plug-ins are kept (default ~/.cache)."),
)
_FILES = (
    (
        "profile.nsprof",
        "Written by record and read by the reading commands where no file is named; an earlier one is kept "
        "as profile.nsprof.old.",
    ),
)


def roff(text: str) -> str:
    """Text as roff: backslashes, hyphens and leading dots mean themselves."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    escaped = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in escaped)
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def paragraphs(help_text: str) -> list[str]:
    """A command's help as roff lines; what stands behind click's \\b is shown as it is written."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", (help_text or "").strip()):
        if block.startswith("\b"):
            body = block.removeprefix("\b").strip("\n").splitlines()
            lines += [".PP", ".nf", *(roff(line) for line in body), ".fi"]
        else:
            lines += [".PP", roff(" ".join(block.split()))]
    return lines


def options(command: click.Command, ctx: click.Context) -> list[str]:
    """A command's options as a tagged list, as --help has them."""
    lines: list[str] = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record and isinstance(param, click.Option) and "--help" not in param.opts:
            lines += [".TP", f"\\fB{roff(record[0])}\\fR", roff(" ".join(record[1].split())) or "\\&"]
    return lines


def section(name: str, command: click.Command, parent: click.Context) -> list[str]:
    """One verb, and the verbs below it."""
    ctx = click.Context(command, info_name=name, parent=parent)
    if isinstance(command, click.Group):
        lines = [f'.SS "nsprof {name}"', *paragraphs(command.help or "")]
        for inner_name in command.list_commands(ctx):
            inner = command.get_command(ctx, inner_name)
            if inner is not None:
                lines += section(f"{name} {inner_name}", inner, parent)
        return lines
    usage = " ".join(command.collect_usage_pieces(ctx))
    lines = [f'.SS "nsprof {name}"', f"\\fBnsprof {roff(name)}\\fR {roff(usage)}", *paragraphs(command.help or "")]
    lines += options(command, ctx)
    if command.epilog:
        lines += paragraphs(command.epilog)
    return lines


def tagged(title: str, rows: tuple[tuple[str, str], ...]) -> list[str]:
    """A section of terms and what they mean."""
    lines = [f".SH {title}"]
    for term, text in rows:
        lines += [".TP", f"\\fB{roff(term)}\\fR", roff(text)]
    return lines


def page() -> str:
    """The whole man page."""
    ctx = click.Context(main, info_name="nsprof")
    lines = [
        '.\\" Written by scripts/make_man.py from the options themselves; do not edit.',
        f'.TH NSPROF 1 "" "nsprof {__version__}" "User Commands"',
        ".SH NAME",
        f"nsprof \\- {roff((main.help or '').strip().rstrip('.').replace('Tell what', 'tell what', 1))}",
        ".SH SYNOPSIS",
        "\\fBnsprof\\fR [\\-\\-debug] \\fICOMMAND\\fR [\\fIOPTIONS\\fR] ...",
        ".SH DESCRIPTION",
        "nsprof drives real traffic through network namespaces, or watches what runs, charges the CPU time to kernel",
        "functions, and reports it as a difference against a host\\-only baseline.",
        "Recording needs root; reading does not.",
    ]
    for title in dict.fromkeys(where for _, _, where in VERBS.values()):
        lines += [f".SH COMMANDS: {title.upper()}"]
        for verb, (_, _, where) in VERBS.items():
            command = main.get_command(ctx, verb)
            if where == title and command is not None:
                lines += section(verb, command, ctx)
    lines += tagged("EXIT STATUS", _STATUS) + tagged("ENVIRONMENT", _ENVIRONMENT) + tagged("FILES", _FILES)
    lines += [".SH EXAMPLES"]
    for title, code in _EXAMPLES:
        lines += [
            ".PP",
            roff(title) + ":",
            ".PP",
            ".nf",
            ".RS",
            *(roff(line) for line in code.splitlines()),
            ".RE",
            ".fi",
        ]
    lines += [".SH SEE ALSO", ".BR perf (1),", ".BR ip\\-netns (8),", ".BR bpftool (8)"]
    return "\n".join(lines) + "\n"


def run() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    made = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text() != made:
            print(f"{PAGE.name} is not what the options say: run scripts/make_man.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(run())
