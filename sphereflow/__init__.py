"""sphereflow: the mean-field dynamics of multi-head transformers as a PDE on the sphere.

`run(case)` runs a case file and returns the result, `resume(path)` goes on with an interrupted run, `open_run(path)` opens
one, `open_ensemble(manifest)` all runs of an ensemble. They are loaded when first used, so that importing the package is quick.
"""

__version__ = "0.1.0"
__all__ = ["TransformerBlock", "__version__", "open_ensemble", "open_run", "resume", "run"]


def __getattr__(name):
    if name == "run":
        from sphereflow.runs import run

        return run
    if name == "resume":
        from sphereflow.resuming import resume

        return resume
    if name == "TransformerBlock":
        from sphereflow.transformer import TransformerBlock

        return TransformerBlock
    if name == "open_run":
        from sphereflow.storage import open_run

        return open_run
    if name == "open_ensemble":
        from sphereflow.ensemble.dataset import open_ensemble

        return open_ensemble
    raise AttributeError(f"module 'sphereflow' has no attribute {name!r}")
