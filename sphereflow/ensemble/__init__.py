"""Ensembles: one case with many seeds (members) and many values of chosen keys (variations), each run a case of its own.

================ =====================================================================================
``plan``         which runs an ensemble consists of: their settings, seeds, cases and file names
``manifest``     what is known about every run, in one JSON file that is replaced as a whole; who may work on a folder
``member``       one run, as a worker process does it: new, resumed, or found complete
``cluster``      workers on this machine, or those of a running dask scheduler
``local_worker`` what dask loads into workers on this machine
``running``      the runs handed out to workers: failures, retries, losses, interrupts
``dataset``      all finished runs as one lazy dataset
================ =====================================================================================

What a run computes is fixed by its case alone, seeds included, so that results depend neither on the number of workers nor
on the order; the manifest says with which settings `sphereflow run` gives the same bits.
"""

from sphereflow.ensemble.dataset import open_ensemble
from sphereflow.ensemble.running import EnsembleResult, run_ensemble

__all__ = ["EnsembleResult", "open_ensemble", "run_ensemble"]
