"""The same bench on several kernels: each in a virtual machine with this machine's files, merged into one profile.

A kernel is booted in several rounds, in ABBA order like the runs: what differs between two boots of one kernel
(placement of memory, hash seeds) is then part of the spread and is not taken for a difference between kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nsprof.bench.plan import fair_order
from nsprof.errors import NsprofError, UsageError, VmError
from nsprof.files import Scratch
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Profile

__all__ = ["bench_kernels"]


def bench_kernels(
    specs: Sequence[str],
    words: Sequence[str],
    *,
    runs: int,
    boots: int,
    seed: int,
    timeout_s: float = 3600.0,
    modules: Path | None = None,
    memory_mb: int = 2048,
    say: Callable[[str], None] = lambda line: None,
) -> Profile:
    """Run `nsprof bench WORDS --runs N -o FILE` in a guest of each kernel, `boots` times each, and merge.

    `words` are the bench's own without kernels, runs, seed and output; `say` hears what happens. A boot that fails is
    said and the others go on. Raises VmError when nothing came back at all.
    """
    from nsprof import store
    from nsprof.vm import resolve, run_job

    if len(set(specs)) != len(specs):
        raise UsageError(f"a kernel is named twice: {', '.join(specs)}")
    kernels = {spec: resolve(spec, modules=modules) for spec in specs}
    boots = max(1, min(boots, runs))
    builder = ProfileBuilder()
    failures: list[str] = []
    hosts: dict[str, object] = {}
    for number, spec in enumerate(fair_order(list(specs), boots, seed)):
        share = runs // boots + (number // len(specs) < runs % boots)
        release = kernels[spec].release
        say(f"boot {number + 1} of {boots * len(specs)}: {spec} ({release}), {share} runs a scenario")
        with Scratch("bench") as place:
            out = place / "out"
            file = out / "bench.nsprof"
            argv = ["nsprof", "bench", "--runs", str(share), "--seed", str(seed + number), "-o", str(file)]
            try:
                out.mkdir()
                result = run_job(
                    kernels[spec],
                    [*argv, "--top", "0", *words],
                    out_dir=out,
                    timeout_s=timeout_s,
                    memory_mb=memory_mb,
                    env={"PYTHONDONTWRITEBYTECODE": "1"},
                    boot_timeout_s=240.0,
                )
                if not file.exists():
                    said = [line for line in result.stderr.strip().splitlines() if line]
                    raise VmError(f"{spec}: {' / '.join(said[-2:]) or f'exit status {result.status}'}")
                profile = store.load(file)
            except (VmError, NsprofError) as error:
                if isinstance(error, UsageError):
                    raise
                failures.append(f"a boot of {spec} failed: {error.message}")
                say(failures[-1])
                continue
        hosts[release] = profile.meta.get("host", {})
        builder.append(profile)
    if not builder.runs:
        raise VmError(failures[0] if failures else "no kernel was run")
    merged = builder.build()
    notes = [*merged.meta.get("notes", []), *failures, f"virtual machines, {boots} boots a kernel"]
    meta = {**merged.meta, "hosts": hosts, "notes": list(dict.fromkeys(notes))}
    # One kernel's snapshot must not stand for all; what they have in common is no help in a comparison either.
    if len(hosts) > 1:
        meta["host"] = {"kernel": {"release": ", ".join(hosts)}}
    meta["bench"] = {**meta.get("bench", {}), "kernels": list(specs), "boots": boots, "runs": runs}
    return merged.with_(meta=meta)
