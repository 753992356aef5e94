"""What the parts of the cache promise each other: vector index, latent store, entry store, and their values.

Chorus section 3.1. A missing, expired or damaged value reads as `None`; an unreachable store raises
`StoreUnavailableError`. Conformance suites for every contract are in testing.py. Knows no backend.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
KeyArray = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Neighbor:
    """A stored vector and its cosine similarity to the one asked for."""

    key: int
    score: float


class VectorIndex(Protocol):
    """Unit vectors under explicit keys, searched by inner product; safe to call from several threads."""

    @property
    def dim(self) -> int:
        """Length of every vector."""

    def add(self, keys: KeyArray, vectors: FloatArray) -> None:
        """Store one row per key; a key that is present already gets the new vector."""

    def remove(self, keys: KeyArray) -> int:
        """Forget the keys, ignoring unknown ones; return how many were there."""

    def nearest(self, vector: FloatArray, count: int) -> list[Neighbor]:
        """Return `min(count, len(self))` neighbours, best first, equal scores by key."""

    def __len__(self) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LatentKey:
    """One latent of one request; `step` is the denoising step that the latent enters."""

    tenant: str
    source_id: str
    step: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LatentRecord:
    """A latent as plain bytes: C-ordered elements of `dtype`, named as torch names it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class LatentStore(Protocol):
    """Latents by tenant, source and step; what is put is not changed, only deleted or left to expire.

    With a source go the masks of what its prompt names, made later than its latents and gone with them.
    """

    def put(self, key: LatentKey, record: LatentRecord) -> bool:
        """Store the record; `False` when it is too large or the store is full: then nothing was kept."""

    def get(self, key: LatentKey) -> LatentRecord | None:
        """Return the record; `None` when it is missing, expired or does not match its checksum."""

    def put_mask(self, tenant: str, source_id: str, phrase: str, data: bytes) -> bool:
        """Store a phrase's mask; `False` when nothing was kept: as for `put`, or since the source has no latents."""

    def mask(self, tenant: str, source_id: str, phrase: str) -> bytes | None:
        """Return the mask; `None` when it is missing, expired or does not match its checksum."""

    def sizes(self, tenant: str, source_id: str) -> dict[int, int]:
        """Return the stored bytes of each step of a source; masks are in no step's."""

    def delete(self, tenant: str, source_id: str) -> None:
        """Remove every step and mask of a source."""

    def delete_tenant(self, tenant: str) -> None:
        """Remove every source of a tenant."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EncoderTag:
    """Which encoder made an embedding; embeddings under different tags are never compared."""

    name: str
    revision: str
    dim: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EntryKey:
    """Identity of a cached source."""

    tenant: str
    source_id: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EntryRecord:
    """What is known about a cached source besides its latents."""

    source_id: str
    tenant: str
    partition: str
    """Digest of the PartitionKey; only requests of the same partition may see the entry."""
    vector_id: int
    """Key of the embedding in the index, drawn once and never used again."""
    prompt: str
    seed: int
    embedding: bytes = dataclasses.field(repr=False)
    """Unit vector, little-endian float32."""
    encoder: EncoderTag
    steps: tuple[int, ...]
    """Steps whose entering latent is stored, rising."""
    num_steps: int
    num_bytes: int
    """What the latents take in the store."""
    created_at: float
    expires_at: float
    last_used_at: float
    uses: int = 0
    steps_saved: int = 0
    """Denoising steps that other requests skipped thanks to this entry, summed over its uses."""

    @property
    def key(self) -> EntryKey:
        """Identity in the EntryStore."""
        return EntryKey(tenant=self.tenant, source_id=self.source_id)


class EntryStore(Protocol):
    """The one source of truth about what is cached; an index is rebuilt from it."""

    @property
    def encoder(self) -> EncoderTag:
        """Tag of the embeddings in view; entries under another tag are invisible."""

    def next_vector_id(self) -> int:
        """Draw a vector id that was never drawn before."""

    def put(self, record: EntryRecord) -> None:
        """Store or replace an entry; raises StoreFullError when there is no room."""

    def get_many(self, keys: Sequence[EntryKey]) -> list[EntryRecord | None]:
        """Return the entries in order, `None` for what is missing or damaged."""

    def touch(self, key: EntryKey, *, steps_saved: int, now: float) -> None:
        """Count one use; an entry that is gone stays gone."""

    def delete(self, keys: Collection[EntryKey]) -> None:
        """Remove the entries, ignoring unknown ones."""

    def delete_tenant(self, tenant: str) -> None:
        """Remove every entry of a tenant, under whatever encoder it was made."""

    def scan(self) -> Iterator[EntryRecord]:
        """Yield every readable entry of this encoder, in no order."""
