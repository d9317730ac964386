"""Wording that several commands share."""

import sys


def tell(text):
    """Say something beside the results: on standard error, with the name of the program."""
    print(f"sphereflow: {text}", file=sys.stderr)


def share(value):
    """A residual as a share of the turnover of energy, int |P| dt."""
    return "unknown" if value is None else f"{value:.1e} of int |P|"


def number(value, form="g"):
    """A number that may be missing."""
    return "unknown" if value is None else format(value, form)
