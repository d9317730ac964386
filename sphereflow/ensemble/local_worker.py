"""Loaded by dask into the worker processes on this machine, before they take work."""

import signal

import sphereflow.ensemble.member  # noqa: F401  (so that no member waits for imports)

BLOCKED = (signal.SIGINT, signal.SIGTERM)  # while workers start


def dask_setup(worker) -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes: the parent honours it and lets members end in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
