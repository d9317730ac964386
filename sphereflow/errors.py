"""Errors a user can meet, each with the exit code the command line ends with.

Exit codes: 2 bad case or usage, 3 numerical failure, 4 output that exists, is locked, unreadable or has no space.
Everything a user can cause is raised as one of these; anything else that reaches the user is a bug of sphereflow.
"""


class SphereflowError(Exception):
    """Base of all errors that sphereflow raises on purpose."""

    exit_code = 1


class CaseError(SphereflowError):
    """A case file, an input file it names, or a command's arguments cannot be used."""

    exit_code = 2


class BackendError(SphereflowError):
    """A requested spherical-harmonic transform is missing or fails its self-test."""

    exit_code = 2


class NumericalError(SphereflowError):
    """The state of a run became non-finite or negative."""

    exit_code = 3


class ConvergenceError(NumericalError):
    """An iterative solver did not reach its tolerance."""


class OutputError(SphereflowError):
    """An output file exists, is locked, cannot be read or cannot be written."""

    exit_code = 4


class ClusterError(SphereflowError):
    """The scheduler or the workers of an ensemble were lost; the ensemble can go on later."""

    exit_code = 4


class RunInterrupted(KeyboardInterrupt):
    """A signal ended a run between two steps; its file is closed and it can be resumed. The command line ends with 130."""


class CheckpointError(SphereflowError):
    """A checkpoint is damaged or belongs to another case."""

    exit_code = 4
