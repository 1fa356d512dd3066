from __future__ import annotations

import pytest

from galileo.spark.failures import brief

JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.ClassNotFoundException: no.such.Serializer
\tat java.base/java.lang.ClassLoader.loadClass(ClassLoader.java:525)
\t... 12 more
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (JAVA, "java.lang.ClassNotFoundException: no.such.Serializer"),
        ("one line", "one line"),
        ("", ""),
        ("at once", "at once"),
        ("x" * 600, "x" * 500),
    ],
)
def test_the_line_that_tells(text, line):
    assert brief(ValueError(text)) == f"ValueError: {line}"
