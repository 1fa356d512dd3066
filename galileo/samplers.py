"""Samplers: user-defined sampling functions (the paper's UDSF), and how they are found.

A sampler thins the labels of a CCQ before anything is cached. Its decision about a label must
depend on nothing but the labels of the *same commit* (equal partition and sequence), its own
options and the seed. Then a cycle that is retried, split in two or repeated by another
coordinator keeps the very same labels, which is what makes exactly-once hold for sampled
queries too. `label_hashes` gives uniform numbers that obey this rule.

Samplers are found by the entry-point group `galileo.samplers`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError, UnknownSampler
from galileo.hashing import mix64
from galileo.labels import LabelSet
from galileo.model.schema import nearest_name

ENTRY_POINTS = "galileo.samplers"


@runtime_checkable
class Sampler(Protocol):
    """What a sampler class must offer; it is constructed with the options of its `SamplerSpec`.

    The constructor raises `InputError` for options that are wrong.
    """

    def sample(self, labels: LabelSet, *, seed: int) -> npt.NDArray[np.bool_]:
        """Which labels to keep, as a mask of `len(labels)`.

        Args:
            labels: whole commits: every matching label of each commit that occurs.
            seed: 64 bits, fixed for the life of the CCQ.
        """
        ...


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """A sampler by name, with its options and seed: what travels and is stored."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def to_json(self) -> str:
        raw = {"name": self.name, "options": dict(self.options), "seed": self.seed}
        return json.dumps(raw, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> SamplerSpec:
        try:
            raw = json.loads(text)
            return SamplerSpec(str(raw["name"]), dict(raw["options"]), int(raw["seed"]))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise InputError(
                f"expected a sampler as `SamplerSpec.to_json` gives it: {error}"
            ) from error

    def __hash__(self) -> int:
        return hash(self.to_json())


def sampler(name: str, *, seed: int | None = None, **options: Any) -> SamplerSpec:
    """Names a sampler for `submit`, as in `sampler("uniform", fraction=0.1)`.

    Args:
        name: its entry-point name.
        seed: for a reproducible choice; drawn at random when absent.
        options: handed to the sampler's constructor; JSON values.
    """
    try:
        json.dumps(options)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected JSON values as options of sampler {name!r}: {error}") from error
    return SamplerSpec(name, options, secrets.randbits(63) if seed is None else seed)


def load(spec: SamplerSpec) -> Sampler:
    """Constructs the sampler that `spec` names.

    Raises:
        UnknownSampler: no installed distribution offers the name.
        InputError: the sampler refuses the options.
    """
    found = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
    if spec.name not in found:
        close = nearest_name(spec.name, list(found))
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownSampler(
            f"expected a sampler of {sorted(found)}, got {spec.name!r}{hint} "
            "Install its distribution on every node (the built-in ones: galileo-samplers)"
        )
    try:
        made = found[spec.name].load()(**spec.options)
    except TypeError as error:
        raise InputError(f"sampler {spec.name!r} does not take these options: {error}") from error
    if not isinstance(made, Sampler):
        raise InputError(f"sampler {spec.name!r} has no method sample(labels, *, seed)")
    return made


def apply(chosen: Sampler, labels: LabelSet, *, seed: int) -> LabelSet:
    """The labels that the sampler keeps.

    Raises:
        InputError: it returned something else than a mask of the right length.
    """
    if len(labels) == 0:
        return labels
    mask = np.asarray(chosen.sample(labels, seed=seed))
    if mask.dtype != np.bool_ or mask.shape != (len(labels),):
        raise InputError(
            f"expected the sampler to return {len(labels)} booleans, "
            f"got {mask.dtype} of shape {mask.shape}"
        )
    return labels.where(mask)


def label_hashes(labels: LabelSet, *, seed: int) -> npt.NDArray[np.uint64]:
    """A uniform 64-bit number per label, a function of its identity and the seed alone."""
    state = np.full(len(labels), np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
    for part in (labels.partitions, labels.sequences, labels.rows):
        state = mix64(state ^ part.astype(np.int64).view(np.uint64))
    return state
