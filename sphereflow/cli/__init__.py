"""The command line of sphereflow and its commands. The only room that prints or exits.

Results go to standard output, progress and errors to standard error.
"""

import argparse
import os
import re
import sys
from importlib import import_module

from sphereflow import __version__
from sphereflow.cli.wording import tell
from sphereflow.errors import CaseError, OutputError, RunInterrupted, SphereflowError
from sphereflow.names import fault_of

INTERRUPTED = 130
# The modules with the commands, in the order in which `sphereflow --help` shows them.
GROUPS = ("running", "ensembles", "inspecting", "pictures", "reports")


def main(arguments=None) -> int:
    """Run a command; returns its exit code.

    0 ok, 1 runs that do not agree (compare --require), 2 bad case or usage, 3 numerical failure, 4 output
    or memory, 130 interrupted.
    """
    _occupy_standard_streams()
    options = None
    try:
        options = _parser().parse_args(_with_negative_views(sys.argv[1:] if arguments is None else arguments))
        _require_text(vars(options))
        code = options.command(options) or 0
        sys.stdout.flush()
        return code
    except SphereflowError as error:
        tell(error)
        return error.exit_code
    except MemoryError as error:
        tell(f"there is not enough memory: {error or 'the system gives no more'}")
        return OutputError.exit_code
    except KeyboardInterrupt as error:
        tell(error if isinstance(error, RunInterrupted) else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        _drop_output()
        return 0
    except OSError as error:
        if error.filename is not None:  # not a write to standard output
            raise
        _drop_output()
        tell(f"standard output: {error.strerror or error}")
        return OutputError.exit_code
    except RuntimeError as error:
        if not str(error).startswith("NetCDF:"):
            raise
        # Variables are read when they are needed; an opened file may turn out to be damaged as late as then.
        files = [getattr(options, name) for name in ("run", "file", "a", "b", "particles") if getattr(options, name, None)]
        tell(f"{' or '.join(files)}: is damaged: {error}")
        return OutputError.exit_code


def _occupy_standard_streams() -> None:
    """Let closed standard streams lead nowhere: else the next file that is opened would take their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def _drop_output() -> None:
    """Let what is left in the buffer of standard output go nowhere, so that it does not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_negative_views(arguments: list[str]) -> list[str]:
    """`--view -40,30` as `--view=-40,30`: argparse takes what begins with a dash for an option unless it is one number."""
    out = []
    for argument in arguments:
        if out and out[-1] == "--view" and re.match(r"-[\d.]", argument):
            out[-1] += f"={argument}"
        else:
            out.append(argument)
    return out


def _require_text(options):
    """Refuse arguments that no file name and no case can hold."""
    for value in options.values():
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, str) and (fault := fault_of(word)):
                raise CaseError(f"argument {word!r}: {fault}; must be text that can be in a file name or in a case")


def _parser():
    parser = argparse.ArgumentParser(
        prog="sphereflow", description="Mean-field dynamics of multi-head transformers as a PDE on the sphere."
    )
    parser.add_argument("--version", action="version", version=f"sphereflow {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for group in GROUPS:
        import_module(f"sphereflow.cli.{group}").add_commands(commands)
    return parser
