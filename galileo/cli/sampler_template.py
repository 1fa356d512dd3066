"""The files that `galileo sampler new` writes: a distribution with one small sampler."""

from __future__ import annotations

import re
from pathlib import Path

from galileo.errors import InputError
from galileo.samplers import ENTRY_POINTS

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")

_PROJECT = """\
[build-system]
requires = ["hatchling>=1.27,<2"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
description = "The sampler {name} for Galileo."
requires-python = ">=3.11"
dependencies = ["galileo-store", "numpy"]

[project.entry-points."{group}"]
{name} = "{package}:{cls}"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""

_MODULE = '''\
"""The sampler `{name}`: what a label's fate may depend on is in docs/samplers.md of Galileo."""

from galileo.errors import InputError
from galileo.samplers import label_uniforms


class {cls}:
    """Keeps each label with probability `fraction`. Change it to what you need."""

    def __init__(self, *, fraction=0.1):
        if not 0 < fraction <= 1:
            raise InputError(f"expected a fraction above 0 and up to 1, got {{fraction!r}}")
        self.fraction = fraction

    def sample(self, labels, *, seed):
        return label_uniforms(labels, seed=seed) < self.fraction
'''

_OBSERVING_MODULE = '''\
"""The sampler `{name}`: what a label's fate may depend on is in docs/samplers.md of Galileo."""

import numpy as np

from galileo.errors import InputError
from galileo.samplers import label_uniforms


class {cls}:
    """Keeps labels with many observations, and a fraction of the rest. Change it to your need."""

    needs_observations = True

    def __init__(self, *, many=5, fraction=0.1):
        if not 0 < fraction <= 1:
            raise InputError(f"expected a fraction above 0 and up to 1, got {{fraction!r}}")
        self.many, self.fraction = many, fraction

    def sample(self, labels, *, observations, seed):
        label = observations.column("label").to_numpy()
        counts = np.bincount(label, minlength=len(labels))
        return (counts >= self.many) | (label_uniforms(labels, seed=seed) < self.fraction)
'''

_TEST = '''\
"""The rule that every sampler keeps; `galileo sampler test .` and pytest run it."""

from {package} import {cls}

from galileo.testing.conformance import SamplerConformance


class Test{cls}(SamplerConformance):
    def make(self):
        return {cls}(fraction=0.3)
'''

_README = """\
# {distribution}

    galileo sampler test .       # whether it keeps the rule
    pip install .                # on every node and every host of Spark workers
    galileo query DATASET --sampler {name} --option fraction=0.2

Or, where the nodes allow it, without installing it anywhere:

    galileo query DATASET --sampler-file . --option fraction=0.2
"""


def write_template(name: str, directory: Path, *, observing: bool = False) -> list[Path]:
    """Writes the distribution of a new sampler into a directory of its own.

    Args:
        name: of the sampler, as queries name it.
        directory: where the new directory goes, named like the sampler.
        observing: whether it looks at observations.

    Returns:
        The files.

    Raises:
        InputError: the name cannot be one, its directory exists, or there is no place for it.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"expected a name of small letters, digits and underscores that begins with a "
            f"letter, got {name!r}"
        )
    if not directory.is_dir():
        raise InputError(f"expected a directory, got {directory}; make it first")
    home = directory / name
    if home.exists():
        raise InputError(f"{home} exists already; choose another name or directory")
    words = {
        "name": name,
        "group": ENTRY_POINTS,
        "distribution": f"galileo-sampler-{name.replace('_', '-')}",
        "package": f"galileo_sampler_{name}",
        "cls": "".join(part.capitalize() for part in name.split("_")),
    }
    texts = {
        "pyproject.toml": _PROJECT,
        "README.md": _README,
        f"{words['package']}/__init__.py": _OBSERVING_MODULE if observing else _MODULE,
        f"tests/test_{name}.py": _TEST,
    }
    for place, text in texts.items():
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**words), encoding="utf-8")
    return [home / place for place in texts]
