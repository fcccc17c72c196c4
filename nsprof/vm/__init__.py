"""Boots a kernel under QEMU and runs a job in it: `run_job(resolve("debian:6.1"), ["uname", "-r"])`."""

from nsprof.vm.job import JobResult, run_job
from nsprof.vm.kernels import Kernel, debug_package, fetch_debian, resolve

__all__ = ["JobResult", "Kernel", "debug_package", "fetch_debian", "resolve", "run_job"]
