"""Samplers: user-defined sampling functions (the paper's UDSF), and how they are found.

A sampler thins labels where the data lives: those of a CCQ before anything is cached, those of
a query that is asked once before they are sent. It decides in one or two steps.

`sample` sees whole commits. Its decision about a label must depend on nothing but the labels of
the *same commit* (equal partition and sequence), its own options and the seed. Then a cycle that
is retried, split in two or repeated by another coordinator keeps the very same labels, which is
what makes exactly-once hold for sampled queries too. `label_hashes` and `label_uniforms` give
random numbers that obey this rule.

`merge` is for samplers that promise something about all commits together, such as "1,000 of
everything"; see `MergingSampler`. It is applied to answers that are complete when they are made:
those of queries asked once. For CCQs `merged` does the same where the labels are kept.

Samplers are found by the entry-point group `galileo.samplers`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError, UnknownSampler
from galileo.geo import geohash
from galileo.hashing import mix64
from galileo.labels import LabelSet
from galileo.model.schema import nearest_name

ENTRY_POINTS = "galileo.samplers"

Scope = Literal["commit", "node", "global"]
"""What a sample is of: of each commit, of what each node keeps, or of everything."""

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Labels = TypeVar("Labels", bound=LabelSet)

_MANTISSA_BITS = 52
"""One more, and the largest would round to 1."""


@runtime_checkable
class Sampler(Protocol):
    """What a sampler class must offer; it is constructed with the options of its `SamplerSpec`.

    The constructor raises `InputError` for options that are wrong.
    """

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        """Which labels to keep, as a mask of `len(labels)`.

        Args:
            labels: whole commits: every matching label of each commit that occurs.
            seed: 64 bits, fixed for the life of the query.
        """
        ...


@runtime_checkable
class MergingSampler(Sampler, Protocol):
    """A sampler that thins once more what `sample` kept of many commits.

    Attributes:
        scope: whose samples are merged: those of each node's commits, or all. With "commit"
            nothing is merged, and `merge` is not called.
        regroups: whether samples may be merged in groups, and the merged ones again, with the
            same result: `merge(merge(A) + merge(B)) = merge(A + B)` for samples A and B of
            different commits. Nodes then merge their own before they send them. Else everything
            is merged at once, at the node that was asked.
    """

    scope: Scope
    regroups: bool

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        """Which labels to keep of those that `sample` kept, in any order."""
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


def installed() -> dict[str, metadata.EntryPoint]:
    """The samplers of all installed distributions, by name."""
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def load(spec: SamplerSpec) -> Sampler:
    """Constructs the sampler that `spec` names.

    Raises:
        UnknownSampler: no installed distribution offers the name.
        InputError: the sampler refuses the options.
    """
    found = installed()
    if spec.name not in found:
        close = nearest_name(spec.name, list(found))
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownSampler(
            f"expected a sampler of {sorted(found)}, got {spec.name!r}{hint} "
            "Install its distribution on every node (the built-in ones: galileo-samplers)"
        )
    return construct(found[spec.name].load(), spec)


def construct(made_by: Any, spec: SamplerSpec) -> Sampler:
    """A sampler of a class that was found elsewhere, with the options of `spec`.

    Raises:
        InputError: the class refuses the options, or is no sampler.
    """
    try:
        made = made_by(**spec.options)
    except TypeError as error:
        raise InputError(f"sampler {spec.name!r} does not take these options: {error}") from error
    if not isinstance(made, Sampler):
        raise InputError(f"sampler {spec.name!r} has no method sample(labels, *, seed)")
    scope = scope_of(made)
    if scope not in get_args(Scope):
        raise InputError(f"expected a scope of {get_args(Scope)} of {spec.name!r}, got {scope!r}")
    if scope != "commit" and not isinstance(made, MergingSampler):
        raise InputError(
            f"sampler {spec.name!r} has scope {scope!r}, and so needs regroups and "
            "merge(labels, *, seed)"
        )
    return made


def scope_of(chosen: Sampler) -> Scope:
    """What its sample is of; "commit" where it does not say."""
    scope: Scope = getattr(chosen, "scope", "commit")
    return scope


def apply(chosen: Sampler, labels: Labels, *, seed: int) -> Labels:
    """The labels that the sampler keeps of whole commits.

    Raises:
        InputError: it returned something else than a mask of the right length.
    """
    return labels if len(labels) == 0 else _where(labels, chosen.sample(labels, seed=seed))


def merge(chosen: Sampler, labels: Labels, *, seed: int) -> Labels:
    """What is left of the samples of many commits; all of them where nothing is merged.

    Raises:
        InputError: it returned something else than a mask of the right length.
    """
    if len(labels) == 0 or scope_of(chosen) == "commit" or not isinstance(chosen, MergingSampler):
        return labels
    return _where(labels, chosen.merge(labels, seed=seed))


def merged(spec: SamplerSpec, labels: Labels) -> Labels:
    """Makes one sample of the sampled labels of many commits, such as all updates of a CCQ.

    What is left is what `query` with the same sampler would give of the same commits, where the
    sampler's scope is "global".

    Raises:
        UnknownSampler: it is not installed here.
    """
    return merge(load(spec), labels, seed=spec.seed)


def _where(labels: Labels, answer: Any) -> Labels:
    mask = np.asarray(answer)
    if mask.dtype != np.bool_ or mask.shape != (len(labels),):
        raise InputError(
            f"expected the sampler to return {len(labels)} booleans, "
            f"got {mask.dtype} of shape {mask.shape}"
        )
    return labels.where(mask)  # type: ignore[return-value]


def label_hashes(labels: LabelSet, *, seed: int) -> npt.NDArray[np.uint64]:
    """A uniform 64-bit number per label, a function of its identity and the seed alone."""
    state = np.full(len(labels), np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
    for part in (labels.partitions, labels.sequences, labels.rows):
        state = mix64(state ^ part.astype(np.int64).view(np.uint64))
    return state


def label_uniforms(labels: LabelSet, *, seed: int) -> Floats:
    """`label_hashes` as numbers strictly between 0 and 1, with 52 random bits."""
    high = label_hashes(labels, seed=seed) >> np.uint64(64 - _MANTISSA_BITS)
    return (high.astype(np.float64) + 0.5) * 2.0**-_MANTISSA_BITS


def positions(labels: LabelSet) -> tuple[Floats, Floats]:
    """Latitude and longitude of the centre of each label's cell, degrees."""
    west, south, east, north = geohash.bounds(labels.cells, labels.schema.geohash_precision)
    return (south + north) / 2, (west + east) / 2
