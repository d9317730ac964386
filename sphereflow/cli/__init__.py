"""The command line of sphereflow and its commands. The only room that prints or exits.

Results go to standard output, progress and errors to standard error.
"""

import argparse
import os
import sys
from importlib import import_module

from sphereflow import __version__
from sphereflow.cli.wording import tell
from sphereflow.errors import RunInterrupted, SphereflowError

INTERRUPTED = 130
# The modules with the commands, in the order in which `sphereflow --help` shows them.
GROUPS = ("running", "ensembles", "inspecting", "pictures", "reports")


def main(arguments=None) -> int:
    """Run a command; returns its exit code.

    0 ok, 1 runs that do not agree (compare --require), 2 bad case or usage, 3 numerical failure, 4 output,
    130 interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.command(options) or 0
    except SphereflowError as error:
        tell(error)
        return error.exit_code
    except KeyboardInterrupt as error:
        tell(error if isinstance(error, RunInterrupted) else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="sphereflow", description="Mean-field dynamics of multi-head transformers as a PDE on the sphere."
    )
    parser.add_argument("--version", action="version", version=f"sphereflow {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for group in GROUPS:
        import_module(f"sphereflow.cli.{group}").add_commands(commands)
    return parser
