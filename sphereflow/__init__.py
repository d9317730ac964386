"""sphereflow: the mean-field dynamics of multi-head transformers as a PDE on the sphere.

`run(case)` runs a case file and returns the result; `open_run(path)` opens one. Both are loaded when first used, so that
importing the package is quick.
"""

__version__ = "0.1.0"
__all__ = ["__version__", "open_run", "run"]


def __getattr__(name):
    if name == "run":
        from sphereflow.runs import run

        return run
    if name == "open_run":
        from sphereflow.storage import open_run

        return open_run
    raise AttributeError(f"module 'sphereflow' has no attribute {name!r}")
