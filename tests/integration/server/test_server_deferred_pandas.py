"""A node runs without pandas until something in its process imports it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib.util, sys
import galileo.server.main
import pyarrow as pa
made = pa.array([1, 2]), pa.table({"a": ["b"]})
print("pandas" in sys.modules, importlib.util.find_spec("pandas") is not None)
import pandas
print(pa.array(pandas.Series([0.5, float("nan")])).null_count)
print(pa.array(pandas.Series(["a", None], dtype="category")).type)
"""


def test_pyarrow_knows_pandas_only_once_it_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "False True",
        "1",
        "dictionary<values=string, indices=int8, ordered=0>",
    ]
