"""Samplers: user-defined sampling functions (the paper's UDSF), and how they are found.

A sampler thins labels where the data lives: those of a CCQ before they are cached, those of a
one-shot query before they are sent. It decides in one or two steps.

`sample` sees whole commits. Its decision about a label must depend on nothing but the labels of
the *same commit* (equal partition and sequence), its own options and the seed. Then a cycle that
is retried, split in two or repeated by another coordinator keeps the very same labels, which is
what makes exactly-once hold for sampled queries too. `label_hashes` and `label_uniforms` give
random numbers that obey this rule. A sampler that says `needs_observations` gets the commit's
observations with its labels, and may depend on them, too. One that says `needs_columns` is shown
no others, which spares copying them to where sent code runs.

`merge` is for samplers that promise something about all commits together, such as "1,000 of
everything"; see `MergingSampler`. It is applied to answers that are complete when they are made:
those of one-shot queries. For CCQs `merged` does the same where the labels are kept.

Samplers are found by the entry-point group `galileo.samplers`.
"""

from __future__ import annotations

import inspect
import json
import secrets
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError, InternalError, SamplerFailed, UnknownSampler, reason_of
from galileo.geo import geohash
from galileo.hashing import mix64
from galileo.labels import LabelSet
from galileo.model.schema import Schema, nearest_name
from galileo.sampler_package import SamplerArchive

ENTRY_POINTS = "galileo.samplers"

Scope = Literal["commit", "node", "global"]
"""What a sample is of: of each commit, of what each node keeps, or of everything."""

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Labels = TypeVar("Labels", bound=LabelSet)
Observe: TypeAlias = Callable[[LabelSet], pa.Table]
"""Reads the observations behind labels, in columns of `observed_schema`."""

IDENTITY = ("partition", "sequence", "row")
"""The columns that every sampler is shown: together they identify a label."""
COLUMNS_MAX = 1_024
"""That a sampler may name."""
LABEL = "label"
"""The column that says of an observation which label it belongs to."""
OBSERVED_ROWS_MAX = 131_072
"""Observations that a sampler is shown at a time; where one commit has more, all of it."""

_LABEL_FIELD = pa.field(LABEL, pa.int32(), nullable=False)
_TRACEBACK_CHARACTERS_MAX = 1_500
_MANTISSA_BITS = 52
"""One more, and the largest would round to 1."""


@runtime_checkable
class Sampler(Protocol):
    """What a sampler class must offer; it is constructed with the options of its `SamplerSpec`.

    The constructor raises `InputError` for options that are wrong. An attribute or property
    `needs_columns`, a list or tuple, may name the columns of `labels.table` that `sample` and
    `merge` look at: the table then has these and `IDENTITY`, as far as there are such. Without
    it, it has all.
    """

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        """Which labels to keep, as a mask of `len(labels)`.

        Args:
            labels: whole commits: every matching label of each commit that occurs.
            seed: 64 bits, fixed for the life of the query.
        """
        ...


class ObservingSampler(Protocol):
    """A sampler that looks at observations, too.

    Attributes:
        needs_observations: True.
    """

    needs_observations: bool

    def sample(self, labels: LabelSet, *, observations: pa.Table, seed: int) -> Mask:
        """Which labels to keep; as `Sampler.sample`.

        Args:
            labels: whole commits, fewer at a time than without observations.
            observations: those behind the labels that match the query exactly, in the order of
                their labels: coordinates, time, all features, and `label`, the place in `labels`
                of the one that each belongs to. A label whose cell or bucket lies across the
                edge of the query may have none.
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
            is merged at once, at the node that received the query.
    """

    scope: Scope
    regroups: bool

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        """Which labels to keep of those that `sample` kept, in any order."""
        ...


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """A sampler by name, with its options and seed: what travels and is stored.

    Attributes:
        name: of an installed sampler, or what people call one that was sent.
        options: handed to its constructor; JSON values.
        seed: of every choice.
        archive: digest of the code of a sampler that was sent; empty: it is installed.
        code: that archive, for a client to send before it names the digest; does not travel.

    Example:
        >>> galileo.sampler("uniform", seed=7, fraction=0.1)
        SamplerSpec(name='uniform', options={'fraction': 0.1}, seed=7, archive='')
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    archive: str = ""
    code: SamplerArchive | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> str:
        """As JSON text, which `from_json` reads.

        Example:
            >>> galileo.sampler("uniform", seed=7, fraction=0.1).to_json()
            '{"name":"uniform","options":{"fraction":0.1},"seed":7}'
        """
        raw: dict[str, Any] = {"name": self.name, "options": dict(self.options), "seed": self.seed}
        if self.archive:
            raw["archive"] = self.archive
        return json.dumps(raw, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> SamplerSpec:
        """The inverse of `to_json`.

        Example:
            >>> spec = galileo.sampler("uniform", fraction=0.1)
            >>> galileo.SamplerSpec.from_json(spec.to_json()) == spec
            True
        """
        try:
            raw = json.loads(text)
            name, archive = str(raw["name"]), str(raw.get("archive", ""))
            return SamplerSpec(name, dict(raw["options"]), int(raw["seed"]), archive)
        except (
            AttributeError,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise InputError(
                f"expected a sampler as `SamplerSpec.to_json` gives it: {reason_of(error)}",
                expected="sampler_spec",
            ) from error

    def __hash__(self) -> int:
        return hash(self.to_json())


def sampler(name: str | SamplerArchive, *, seed: int | None = None, **options: Any) -> SamplerSpec:
    """Names a sampler for `submit`, as in `sampler("uniform", fraction=0.1)`.

    Args:
        name: its entry-point name; or the archive of one that goes along with the query.
        seed: for a reproducible choice; drawn at random when absent.
        options: handed to the sampler's constructor; JSON values.

    Example:
        >>> labels = client.query("weather", sampler=galileo.sampler("uniform", fraction=1.0))
        >>> len(labels)
        4
    """
    if not isinstance(name, str | SamplerArchive):
        raise InputError(f"expected the name of a sampler, or its archive, got {name!r}")
    if seed is not None and type(seed) is not int:
        raise InputError(f"expected a whole number as seed, got {seed!r}")
    try:
        json.dumps(options)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected JSON values as options of sampler {name!r}: {error}",
            expected="json",
            sampler=name,
        ) from error
    seed = secrets.randbits(63) if seed is None else seed
    if isinstance(name, str):
        return SamplerSpec(name, options, seed)
    return SamplerSpec(name.name, options, seed, archive=name.digest, code=name)


def installed() -> dict[str, metadata.EntryPoint]:
    """The samplers of all installed distributions, by name."""
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def describe(point: metadata.EntryPoint) -> dict[str, str]:
    """A sampler's name, distribution, version, and first line of its documentation.

    It imports the sampler; of one that cannot be imported, the last says why.
    """
    try:
        words = (inspect.getdoc(point.load()) or "").partition("\n")[0]
    except Exception as error:
        words = f"cannot be imported: {type(error).__name__}: {error}"
    distribution = point.dist
    return {
        "name": point.name,
        "distribution": distribution.name if distribution else "",
        "version": distribution.version if distribution else "",
        "about": words,
    }


def describe_installed() -> list[dict[str, str]]:
    """The installed samplers, by name; see `describe`."""
    return [describe(point) for _, point in sorted(installed().items())]


def load(spec: SamplerSpec) -> Sampler:
    """Constructs the sampler that `spec` names.

    Raises:
        UnknownSampler: no installed distribution offers the name, or it is one that was sent,
            whose code must not run in this process.
        InputError: the sampler refuses the options.
    """
    if spec.archive:
        raise UnknownSampler(
            f"expected a sampler that is installed here, got {spec.name!r}, which is sent to "
            "nodes; where its class is at hand, construct it and use `merge` or `apply`",
            sampler=spec.name,
        )
    points = installed()
    if spec.name not in points:
        close = nearest_name(spec.name, list(points))
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownSampler(
            f"sampler {spec.name!r} is not installed{hint} "
            f"Installed: {', '.join(sorted(points)) or 'none'}. "
            "Install its distribution on every node (the built-in ones: galileo-samplers)",
            sampler=spec.name,
            nearest=close,
        )
    return construct(points[spec.name].load(), spec)


def construct(made_by: Any, spec: SamplerSpec) -> Sampler:
    """A sampler of a class that was found elsewhere, with the options of `spec`.

    Raises:
        InputError: the class refuses the options, or is no sampler.
    """
    _check_options(made_by, spec)
    try:
        instance = made_by(**spec.options)
    except TypeError as error:
        raise InputError(
            f"sampler {spec.name!r} does not take these options: {error}",
            expected="options",
            sampler=spec.name,
        ) from error
    if not isinstance(instance, Sampler):
        raise InputError(
            f"sampler {spec.name!r} has no method sample(labels, *, seed)",
            expected="sample",
            sampler=spec.name,
        )
    scope = scope_of(instance)
    if scope not in get_args(Scope):
        raise InputError(
            f"expected a scope of {get_args(Scope)} of {spec.name!r}, got {scope!r}",
            expected="scope",
            sampler=spec.name,
        )
    if scope != "commit" and not isinstance(instance, MergingSampler):
        raise InputError(
            f"sampler {spec.name!r} has scope {scope!r}, and so needs regroups and "
            "merge(labels, *, seed)",
            expected="merge",
            sampler=spec.name,
        )
    _check_columns(instance, spec.name)
    return instance


def _check_options(made_by: Any, spec: SamplerSpec) -> None:
    """Refuses options that the constructor does not have, or lacks."""
    try:
        parameters = inspect.signature(made_by).parameters.values()
    except (TypeError, ValueError):  # Some callables have no signature.
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    options = f"its options are {', '.join(names)}" if names else "it has no options"
    for name in spec.options:
        if name not in names:
            close = nearest_name(name, names)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise InputError(
                f"sampler {spec.name!r} has no option {name!r}{hint}; {options}",
                expected="known_option",
                sampler=spec.name,
                option=name,
                nearest=close,
            )
    for parameter in parameters:
        is_required = parameter.name in names and parameter.default is parameter.empty
        if is_required and parameter.name not in spec.options:
            raise InputError(
                f"sampler {spec.name!r} needs the option {parameter.name!r}; {options}",
                expected="option",
                sampler=spec.name,
                option=parameter.name,
            )


def _check_columns(instance: Sampler, name: str) -> None:
    columns = getattr(instance, "needs_columns", None)
    if columns is None:
        return
    named = isinstance(columns, list | tuple) and all(isinstance(column, str) for column in columns)
    if not named or len(columns) > COLUMNS_MAX:
        raise InputError(
            f"expected needs_columns of {name!r} as a tuple of up to {COLUMNS_MAX} names of "
            f"columns, got {str(columns)[:100]!r}"
        )


def scope_of(chosen: Sampler) -> Scope:
    """What its sample is of; "commit" where it does not say."""
    scope: Scope = getattr(chosen, "scope", "commit")
    return scope


def needs_observations(chosen: Sampler) -> bool:
    """Whether it looks at observations; False where it does not say."""
    return bool(getattr(chosen, "needs_observations", False))


def needed_columns(chosen: Sampler) -> tuple[str, ...] | None:
    """The columns of labels that it looks at, besides `IDENTITY`; None for all of them."""
    names = getattr(chosen, "needs_columns", None)
    return None if names is None else tuple(names)


def shown(chosen: Sampler, labels: Labels) -> Labels:
    """The labels with the columns that the sampler looks at."""
    names = needed_columns(chosen)
    return labels if names is None else labels.only({*IDENTITY, *names})  # type: ignore[return-value]


def apply(
    chosen: Sampler, labels: Labels, *, seed: int, observations: pa.Table | None = None
) -> Labels:
    """The labels that the sampler keeps of whole commits.

    Args:
        chosen: the sampler.
        labels: whole commits.
        seed: of the query.
        observations: of the labels, for a sampler that looks at them.

    Raises:
        InputError: it returned something else than a mask of the right length.
    """
    if len(labels) == 0:
        return labels
    seen = shown(chosen, labels)
    if not needs_observations(chosen):
        return _where(labels, chosen.sample(seen, seed=seed))
    if observations is None:
        raise InternalError("expected observations for a sampler that looks at them, got none")
    observing: Any = chosen
    return _where(labels, observing.sample(seen, observations=observations, seed=seed))


def observed_parts(labels: LabelSet, rows_max: int = OBSERVED_ROWS_MAX) -> Iterator[LabelSet]:
    """Whole commits in their order, as many at a time as are shown to a sampler together."""
    labels = labels.in_commit_order()
    partitions, sequences = labels.partitions, labels.sequences
    differs = (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(labels)), np.bool_), differs)))
    stops = np.append(starts[1:], len(labels))
    ends = np.concatenate(([0], np.cumsum(labels.table.column("rows").to_numpy(), dtype=np.int64)))
    first = 0
    while first < len(starts):
        fitting = np.searchsorted(ends[stops], ends[starts[first]] + rows_max, "right")
        last = max(int(fitting), first + 1)
        yield labels.slice(int(starts[first]), int(stops[last - 1]))
        first = last


def numbered_parts(labels: LabelSet) -> pa.Table:
    """The block parts of labels, with each label's place: what there is to read for a sampler."""
    parts = labels.table.select(["partition", "sequence", "row", "rows"])
    return parts.append_column(_LABEL_FIELD, pa.array(np.arange(len(labels)), pa.int32()))


def observed_schema(schema: Schema) -> pa.Schema:
    """The columns of the observations that a sampler gets."""
    return schema.observation_schema.append(_LABEL_FIELD)


def merge(chosen: Sampler, labels: Labels, *, seed: int) -> Labels:
    """What is left of the samples of many commits; all of them where nothing is merged.

    Raises:
        InputError: it returned something else than a mask of the right length.
    """
    if len(labels) == 0 or scope_of(chosen) == "commit" or not isinstance(chosen, MergingSampler):
        return labels
    return _where(labels, chosen.merge(shown(chosen, labels), seed=seed))


def merged(spec: SamplerSpec, labels: Labels) -> Labels:
    """Makes one sample of the sampled labels of many commits, such as all updates of a CCQ.

    What is left is what `query` with the same sampler would give of the same commits, where the
    sampler's scope is "global".

    Raises:
        UnknownSampler: it is not installed here.
    """
    return merge(load(spec), labels, seed=spec.seed)


def failed(error: BaseException, spec: SamplerSpec, *, labels: int) -> SamplerFailed:
    """The error for an exception of a sampler, with the sampler's part of the traceback."""
    return SamplerFailed(
        f"sampler {spec.name!r} failed on {labels} labels: {type(error).__name__}: {error}",
        sampler=spec.name,
        traceback=_own_traceback(error),
    )


def _own_traceback(error: BaseException) -> str:
    """The end of the traceback, from where Galileo called the sampler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("galileo."):
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(type(error), error, trace, chain=False))
    return lines[-_TRACEBACK_CHARACTERS_MAX:]


def _where(labels: Labels, answer: Any) -> Labels:
    mask = np.asarray(answer)
    if mask.dtype != np.bool_ or mask.shape != (len(labels),):
        raise InputError(
            f"expected the sampler to return {len(labels)} booleans, "
            f"got {mask.dtype} of shape {mask.shape}",
            expected="booleans",
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
