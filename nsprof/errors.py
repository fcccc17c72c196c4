"""Everything that nsprof reports instead of a traceback.

Form of a message: what failed, on which object, the cause; the hint is something that can be run or done.

    NsprofError                 exit status 1
    |- UsageError               2    words on the command line that cannot be meant
    |- EvidenceError            3    not enough evidence for the answer asked for
    |- ComparisonError          1    two profiles that cannot be compared
    |- ProfileFormatError       1    a file that is no profile, is damaged, or is from the future
    |- PreflightError         125    this machine lacks what the recording needs
    |- TopologyError          125    a namespace, link or address could not be made or removed
    |- WorkloadError          125    a traffic generator failed in a way that is not the command's own status
    |- CommandNotFound        127    (126 when it is there but cannot be executed, as env(1) does)
    |- ProbeError             125    a BPF program was refused
    `- VmError                125    a virtual machine did not boot, hung, or broke off

Reading commands exit with 1 for a failure of any class; `record` and its like reserve 1..124 for the
command that they run, so their own failures are 125.
"""

from __future__ import annotations

__all__ = [
    "CommandNotFound",
    "ComparisonError",
    "EvidenceError",
    "NsprofError",
    "PreflightError",
    "ProbeError",
    "ProfileFormatError",
    "TopologyError",
    "UsageError",
    "VmError",
    "WorkloadError",
]


class NsprofError(Exception):
    """A failure with a one-line message for the user and, where there is one, a way out.

    `message` says what failed, on which object and why; `hint` what to run or change; `exit_code` is the
    process status when the error reaches the command line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(NsprofError):
    """Words on the command line, or keys in a scenario file, that cannot be meant."""

    exit_code = 2


class EvidenceError(NsprofError):
    """The data do not allow the answer that was asked for."""

    exit_code = 3


class ComparisonError(NsprofError):
    """Two profiles that cannot be compared (different events, no common unit, ...)."""


class ProfileFormatError(NsprofError):
    """A file that is no profile, is truncated or damaged, or is newer than this nsprof."""


class PreflightError(NsprofError):
    """The machine lacks something without which the work cannot begin."""

    exit_code = 125


class TopologyError(NsprofError):
    """A namespace, device, address or route could not be made, found or removed."""

    exit_code = 125


class WorkloadError(NsprofError):
    """A traffic generator could not be run or its server did not become ready."""

    exit_code = 125


class CommandNotFound(WorkloadError):
    """The user's command does not exist (127) or cannot be executed (126)."""

    exit_code = 127


class ProbeError(NsprofError):
    """The kernel or the compiler refused a BPF program; `details` holds the verifier's words."""

    exit_code = 125

    def __init__(self, message: str, hint: str = "", *, details: str = "") -> None:
        super().__init__(message, hint)
        self.details = details


class VmError(NsprofError):
    """A virtual machine that did not boot, hung, panicked, or lacks what the guest needs.

    `console` holds the last lines of the guest's console where there was a guest.
    """

    exit_code = 125

    def __init__(self, message: str, hint: str = "", *, console: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.console = console
