"""Uploaded samplers: the rows of a system table, and what changes them.

A revocation is final: its row remains, without the archive. A changed archive has another digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from galileo.errors import CorruptData, InputError, SamplerRevoked, UnknownSampler
from galileo.model.system import SAMPLERS
from galileo.model.system_rows import Draft, LookUp, RowKind

FORMAT = 1
"""Of stored facts."""
ARCHIVES_MAX = 256
"""Archives that a cluster keeps."""
BYTES_MAX = 64 << 20
"""Bytes of all of them."""
REVOKED_MAX = 100_000
"""Revocations, which are kept for ever."""
CHANGES_MAX = 8
"""Changes of one commit, each with an archive."""

_REVOKED, _KEPT, _BYTES = "revoked", "kept", "bytes"


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """Metadata of a sampler that a user has sent.

    Attributes:
        digest: of its archive.
        name: of the sampler.
        entry: its class, `module:Class`.
        bytes: of the archive.
        sent_by: the first sender, as its client says.
        sent_at: seconds since 1970.
        revoked_at: seconds since 1970; 0 while the sampler is not revoked.
    """

    digest: str
    name: str
    entry: str
    bytes: int
    sent_by: str
    sent_at: float
    revoked_at: float = 0.0


NOTHING = SamplerFacts("", "", "", 0, "", 0.0)


def encode(facts: SamplerFacts) -> str:
    return json.dumps([FORMAT, *astuple(facts)])


def decode(data: str) -> SamplerFacts:
    """The inverse of `encode`.

    Raises:
        CorruptData: it was not written by `encode`.
    """
    try:
        number, *texts, size, sent_by, sent_at, revoked_at = json.loads(data)
        if number != FORMAT:
            raise ValueError(f"format {number}, not {FORMAT}")
        digest, name, entry = map(str, texts)
        times = float(sent_at), float(revoked_at)
        return SamplerFacts(digest, name, entry, int(size), str(sent_by), *times)
    except (ValueError, TypeError) as error:
        raise CorruptData(f"expected facts of a sampler, got {data!r:.200}") from error


def merged(known: SamplerFacts, other: SamplerFacts) -> SamplerFacts:
    """What was said of a digest at first, and its first revocation."""
    both = [one for one in (known, other) if one != NOTHING]
    first = min(both, key=lambda one: (one.sent_at, one.sent_by), default=NOTHING)
    revoked = min((one.revoked_at for one in both if one.revoked_at), default=0.0)
    return replace(first, revoked_at=revoked)


def _totals(facts: SamplerFacts) -> Mapping[str, int]:
    return {_REVOKED: 1} if facts.revoked_at else {_KEPT: 1, _BYTES: facts.bytes}


SAMPLER_ROWS = RowKind(
    SAMPLERS,
    NOTHING,
    encode=encode,
    decode=decode,
    merged=merged,
    totals=_totals,
    changes_max=CHANGES_MAX,
)


@dataclass(frozen=True, slots=True)
class KeepSampler:
    """Keeps an archive; the first of several uploads counts.

    Raises:
        SamplerRevoked: it was revoked.
        InputError: the cluster keeps as many as it may.
    """

    facts: SamplerFacts
    archive: pa.Buffer

    @property
    def name(self) -> str:
        return self.facts.digest

    def begun(self, present: SamplerFacts) -> KeepSampler | LookUp:
        check_not_revoked(present)
        return self if present == NOTHING else LookUp(self.name)

    def apply(self, draft: Draft[SamplerFacts]) -> None:
        present = draft[self.name]
        check_not_revoked(present)
        if present != NOTHING:
            return
        kept, size = draft.total(_KEPT), draft.total(_BYTES) + self.facts.bytes
        if kept >= ARCHIVES_MAX or size > BYTES_MAX:
            raise InputError(
                f"expected at most {ARCHIVES_MAX} uploaded samplers of {BYTES_MAX:,} bytes "
                f"together in a cluster, which has {kept} already, got another one; revoke some",
                bound=ARCHIVES_MAX,
            )
        draft.put(self.name, self.facts, attachment=self.archive)


@dataclass(frozen=True, slots=True)
class RevokeSampler:
    """Revokes a digest, and deletes its archive.

    Raises:
        UnknownSampler: there is none with this digest.
        InputError: the cluster keeps as many revocations as it may.
    """

    name: str
    revoked_at: float

    def begun(self, present: SamplerFacts) -> RevokeSampler:
        return self

    def apply(self, draft: Draft[SamplerFacts]) -> None:
        present = draft[self.name]
        if present == NOTHING:
            raise unknown(self.name)
        if present.revoked_at:
            return
        if draft.total(_REVOKED) >= REVOKED_MAX:
            raise InputError(
                f"expected at most {REVOKED_MAX:,} revoked samplers in a cluster, got another one",
                bound=REVOKED_MAX,
            )
        draft.put(self.name, replace(present, revoked_at=self.revoked_at))


SamplerChange: TypeAlias = KeepSampler | RevokeSampler


def check_not_revoked(facts: SamplerFacts) -> None:
    """Raises `SamplerRevoked` where it was."""
    if facts.revoked_at:
        raise SamplerRevoked(
            f"the sampler {facts.name!r} with the digest {facts.digest[:12]} was revoked; submit "
            "the query again with another one",
            digest=facts.digest,
        )


def unknown(digest: str) -> UnknownSampler:
    return UnknownSampler(
        f"expected a sampler that was sent, got the digest {digest[:64]!r}, which the cluster does "
        "not have",
        digest=digest[:64],
        remedy="send_sampler",
    )
