"""Which conformance checks a sampler has: its own, or those made for it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from galileo import samplers
from galileo.errors import InputError
from galileo.samplers import Sampler, SamplerSpec
from galileo.testing.conformance import SamplerConformance

Checks = type[SamplerConformance]


def checks_of(target: str, *, spec: SamplerSpec, seed_matters: bool) -> Sequence[Checks]:
    """The conformance classes of a sampler.

    Args:
        target: the directory of a distribution, whose tests have such classes; a Python file with
            such classes or with samplers; or the name of an installed sampler.
        spec: the options for a sampler without a class of its own.
        seed_matters: likewise; whether another seed may give another choice.

    Raises:
        InputError: there is nothing to check.
        UnknownSampler: it is neither a path nor installed.
    """
    path = Path(target)
    if path.is_dir():
        classes = [checks for file in _tests(path) for checks in _classes(_loaded(file, home=path))]
        if not classes:
            raise InputError(
                f"expected subclasses of SamplerConformance in {path}/tests/test_*.py, found none"
            )
        return classes
    if path.is_file():
        return _of_file(path, spec=spec, seed_matters=seed_matters)
    samplers.load(spec)
    return [_made(lambda: samplers.load(spec), name=spec.name, seed_matters=seed_matters)]


def _tests(directory: Path) -> list[Path]:
    return sorted((directory / "tests").glob("test_*.py"))


def _of_file(path: Path, *, spec: SamplerSpec, seed_matters: bool) -> Sequence[Checks]:
    module = _loaded(path, home=path.parent)
    if classes := list(_classes(module)):
        return classes
    classes = [
        _made(_maker(cls, spec), name=cls.__name__, seed_matters=seed_matters)
        for cls in _own(module)
        if callable(getattr(cls, "sample", None))
    ]
    if not classes:
        raise InputError(f"expected a class with a method sample in {path}, found none")
    return classes


def _maker(cls: Any, spec: SamplerSpec) -> Any:
    samplers.construct(cls, spec)
    return lambda: samplers.construct(cls, spec)


def _made(make: Any, *, name: str, seed_matters: bool) -> Checks:
    """A conformance class of a sampler that has none."""

    def made(self: SamplerConformance) -> Sampler:
        instance: Sampler = make()
        return instance

    return type(name, (SamplerConformance,), {"make": made, "seed_matters": seed_matters})


def _loaded(path: Path, *, home: Path) -> ModuleType:
    """The module of a file, which may import what lies in `home`."""
    if str(home.resolve()) not in sys.path:
        sys.path.insert(0, str(home.resolve()))
    name = f"galileo_checked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"expected Python code in {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _own(module: ModuleType) -> Iterator[type]:
    """The classes that a module defines itself."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value


def _classes(module: ModuleType) -> Iterator[Checks]:
    for cls in _own(module):
        if issubclass(cls, SamplerConformance):
            yield cls
