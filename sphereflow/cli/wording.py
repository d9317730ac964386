"""Wording that several commands share."""

import contextlib
import sys


def tell(text):
    """Say something beside the results: on standard error, with the name of the program."""
    with contextlib.suppress(OSError):  # a full disk or a closed pipe: there is nobody to tell
        print(f"sphereflow: {text}", file=sys.stderr, flush=True)


def share(value):
    """A residual as a share of the turnover of energy, int |P| dt."""
    return "unknown" if value is None else f"{value:.1e} of int |P|"


def several(count, what):
    """A count and what is counted: 1 head, 2 heads."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def joined(*parts):
    """The parts that are there, with commas; None if there are none."""
    return ", ".join(part for part in parts if part) or None


def balance(summary):
    """How well the books of a run close, by the measure of its solver."""
    if summary["movement_slack_min"] is not None:
        return f"least slack {summary['movement_slack_min']:.1e}"
    return f"energy residual {share(summary['edi_residual_relative'])}"


def number(value, form="g"):
    """A number that may be missing."""
    return "unknown" if value is None else format(value, form)
