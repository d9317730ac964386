"""Reading the pickles of others without running their code.

A `.pt` file as torch.save writes it is a zip archive with one pickle. The unpickler here admits what numpy needs to
rebuild an array from it, and refuses every other name that a pickle asks for: torch is not needed, and a file cannot run
code.
"""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np

from sphereflow.errors import CaseError

LARGEST_PICKLE = 2**31


def _rebuild_array(cls, shape, code):
    """The empty array that a pickled one starts from; its contents follow as its state."""
    if cls is not np.ndarray or shape != (0,) or code not in (b"b", "b"):
        raise pickle.UnpicklingError("an array is rebuilt in an unusual way")
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _encode(text, encoding):
    """Bytes, which pickles of protocol 2 hold as latin-1 text."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text is encoded as {encoding!r}")
    return text.encode("latin1")


def _from_buffer(data, dtype, shape, order):
    """An array of a pickle of protocol 5."""
    return np.frombuffer(data, _numbers(dtype)).reshape(shape, order=order)


def _scalar(dtype, data):
    return np.frombuffer(data, _numbers(dtype), 1)[0]


def _numbers(dtype):
    if not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise pickle.UnpicklingError("an array does not hold numbers")
    return dtype


_ADMITTED = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype, ("_codecs", "encode"): _encode}
for _core in ("numpy.core", "numpy._core"):
    _ADMITTED |= {
        (f"{_core}.multiarray", "_reconstruct"): _rebuild_array,
        (f"{_core}.multiarray", "scalar"): _scalar,
        (f"{_core}.numeric", "_frombuffer"): _from_buffer,
    }


class ArrayUnpickler(pickle.Unpickler):
    """Rebuilds numpy arrays, numbers, text and containers of them; any other object is an UnpicklingError."""

    def find_class(self, module, name):
        """The function or class that a pickle asks for, if it is one of the few admitted."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None

    def persistent_load(self, identifier):
        """Refuse data outside of the pickle, as torch tensors have it."""
        raise pickle.UnpicklingError("it holds torch tensors; save numpy arrays instead")


def read_pickle(path: Path) -> object:
    """The object in a zip archive's single `*/data.pkl`, made of numpy arrays, numbers and text only.

    Raises
    ------
    CaseError
        If the file is no such archive, or the pickle asks for anything that is not admitted.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(names) != 1:
                listed = ", ".join(archive.namelist()[:10]) or "nothing"
                raise CaseError(f"{path}: holds {listed}; expected an archive with one data.pkl (torch.save)")
            if archive.getinfo(names[0]).file_size > LARGEST_PICKLE:
                raise CaseError(f"{path}: its pickle is larger than {LARGEST_PICKLE / 2**30:.0f} GiB")
            data = archive.read(names[0])
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise CaseError(f"{path}: is no readable zip archive as torch.save writes them: {error}") from None
    try:
        return ArrayUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a damaged or hostile pickle can raise anything at all
        raise CaseError(f"{path}: its pickle is refused or damaged: {error}") from None
