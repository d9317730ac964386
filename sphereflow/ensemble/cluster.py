"""Workers: processes on this machine, or those of a dask scheduler that is running."""

import logging
import signal
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker

from sphereflow import __version__
from sphereflow.ensemble.local_worker import BLOCKED
from sphereflow.ensemble.member import probe
from sphereflow.errors import CaseError, ClusterError

_INSTALL = "pip install 'dask[distributed]'"
_CONNECT = 15.0
_LOCAL = {
    "threads_per_worker": 1,
    "processes": True,
    "memory_limit": 0,  # dask's nanny would kill a worker whose member needs much memory; the system decides instead
    "dashboard_address": "127.0.0.1:0",  # nothing is offered to other machines, and no fixed port is taken
    "worker_dashboard_address": "127.0.0.1:0",
    "host": "127.0.0.1",
    "silence_logs": logging.CRITICAL,  # in the workers
    "preload": ["sphereflow.ensemble.local_worker"],
}
_LOCAL_CONFIG = {
    "distributed.worker.profile.enabled": False,  # it interrupts the members a hundred times a second
    "distributed.worker.multiprocessing-method": "spawn",
    # in place of dask's own, which also let glibc give back and fetch anew the memory of every large array
    "distributed.nanny.pre-spawn-environ": dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), 1),
}
_LOGGERS = ("distributed", "tornado", "asyncio")  # they print tracebacks about what is handled and told here


def require_distributed() -> None:
    """Refuse to go on without dask.

    Raises
    ------
    CaseError
        If it cannot be imported; the message names the command that installs it.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise CaseError(f"ensembles need dask and distributed ({error}); install them with: {_INSTALL}") from None


@contextmanager
def connected(workers: int, scheduler: str | None):
    """A client of a running scheduler, or of workers that are started here and ended afterwards; a context manager.

    Parameters
    ----------
    workers : int
        Number of workers on this machine, if there is no scheduler.
    scheduler : str or None
        Address of a running scheduler.

    Raises
    ------
    CaseError
        If the scheduler cannot be reached, or its workers cannot use this version of sphereflow.
    ClusterError
        If workers cannot be started on this machine.
    """
    import dask
    from distributed import Client, LocalCluster

    with _quiet(), dask.config.set(_LOCAL_CONFIG):
        if scheduler is not None:
            with _client_of(scheduler) as client:
                yield client
            return
        with ExitStack() as stack:
            try:
                with _signals_blocked():
                    cluster = LocalCluster(n_workers=workers, scheduler_kwargs={"allowed_failures": 1}, **_LOCAL)
                stack.enter_context(cluster)
                client = stack.enter_context(Client(cluster, set_as_default=False))
            except Exception as error:  # dask raises whatever a worker has met
                raise ClusterError(
                    f"the workers could not be started ({error}); a script must call run_ensemble under "
                    '`if __name__ == "__main__":`, because its workers import it'
                ) from error
            yield client


@contextmanager
def _signals_blocked():
    """Let SIGINT and SIGTERM wait: processes that start here inherit that and take signals only once they are set up.

    Otherwise Ctrl-C, which a terminal sends to all processes, would end workers half-way through their imports.
    """
    resource_tracker.ensure_running()  # would unblock them again if it had to be started in between
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _quiet():
    """Keep dask from logging."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _LOGGERS]
    before = {name: logging.getLogger(name).level for name in {*_LOGGERS, *names}}
    try:
        for name in before:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _client_of(address: str):
    """A client of a running scheduler whose workers have this version of sphereflow."""
    from distributed import Client

    try:
        client = Client(address, timeout=_CONNECT, set_as_default=False)
    except Exception as error:  # dask raises whatever the address leads to
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CaseError(f"scheduler: {address} cannot be reached ({reason}); give that of a running scheduler") from None
    try:
        _check_versions(client, address)
        yield client
    finally:
        client.close(timeout=5)


def _check_versions(client, address: str) -> None:
    """Refuse workers that lack sphereflow or have another version of it."""
    try:
        answers = client.run(probe)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CaseError(f"scheduler: the workers of {address} cannot use sphereflow: {reason}; install it there") from None
    for worker, answer in answers.items():
        if answer["version"] != __version__:
            raise CaseError(
                f"scheduler: the worker {worker} has sphereflow {answer['version']}, this is {__version__}; install the same"
            )
