"""Case files: the TOML description of a run, its schema and its errors.

A case has seven parts: the scalars ``schema`` and ``title`` and the tables ``[grid]``, ``[model]``, ``[heads]``,
``[initial]``, ``[solver]`` and ``[output]``. `load_case` reads a file, `parse_case` a text or a dictionary; both return
a frozen, fully resolved `Case` or raise one `CaseError` that lists everything that is wrong with it.

================ =====================================================================================
``quantities``   the types of single values (a positive number, a 3x3 matrix, an input file)
``tables``       the schema: one class for each table and each kind of head schedule, initial state, solver
``rules``        what must hold between different keys
``wording``      how a problem is put into words: where, what was found, what would be right
``reading``      TOML text, ``--set`` overrides, dependent defaults: the way from a file to a `Case`
================ =====================================================================================

This is the only room that uses pydantic. It reads no arrays: of an input file it keeps the resolved path and, if asked,
makes sure that the file exists.
"""

from sphereflow.case.reading import listed_values, load_case, parse_case, setting
from sphereflow.case.tables import Case

__all__ = ["Case", "listed_values", "load_case", "parse_case", "setting"]
