"""Files: the netCDF output of a run, written record by record, and everything that reads one back.

`writer` creates and fills an output file (`definitions`: what it holds from the start), `reader` opens one, `claim` decides
who may use a file name, `checkpoint` keeps the state of a run beside its output. The rooms below
hand over declared variables and arrays; nothing here computes physics, and nothing above here knows a file format.
netCDF-C is not thread-safe: use one writer from one thread.
"""

from sphereflow.storage.reader import open_run, read_density, read_restart, read_weight_path, run_summary
from sphereflow.storage.writer import RunWriter

__all__ = ["RunWriter", "open_run", "read_density", "read_restart", "read_weight_path", "run_summary"]
