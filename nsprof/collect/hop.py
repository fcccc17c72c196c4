"""Hop context: for whose packet the CPU works. Probes that keep a per-CPU context which the sampler reads."""

from __future__ import annotations

from nsprof.errors import ProbeError
from nsprof.model.profile import ProbeInfo

__all__ = ["HopProbes"]


class HopProbes:
    """The hop probes of this kernel."""

    def load(self) -> None:
        """Compile and load. Raises ProbeError where no rung of the ladder holds."""
        raise ProbeError("hop context is not available in this version")

    def attach(self) -> None:
        """Attach all probes, exits first."""

    def detach(self) -> None:
        """Detach all probes."""

    def close(self) -> None:
        """Detach and unload."""

    def cost_s(self) -> float:
        """CPU seconds of the hits since attach, at their calibrated cost."""
        return 0.0

    def probe_infos(self) -> tuple[ProbeInfo, ...]:
        """One row a probe."""
        return ()
