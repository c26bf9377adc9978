"""This module describes a model's vocabulary before training, for methods that replace tokens.

Clients know the embeddings, and how often each token occurs in all clients' training texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from simsplit.data.batches import Batch


class Groups(NamedTuple):
    """Disjoint groups of tokens that are near each other."""

    members: Tensor
    """The tokens of each group, a row per group; smaller groups are filled up with -1."""
    of: Tensor
    """The group of each token; -1 for special tokens."""


class Clusters(NamedTuple):
    """Clusters of tokens by k-means."""

    centres: Tensor
    """The centre of each cluster, a row per cluster."""
    of: Tensor
    """The cluster of each token, including special tokens."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A model's vocabulary before training; all methods of a process share it."""

    embeddings: Tensor
    """The embeddings, V x D."""
    counts: Tensor
    """How often each of the V tokens occurs in all clients' training texts."""
    special: frozenset[int]
    """Tokens that do not represent text, such as padding."""
    _groups: dict[int, Groups] = field(default_factory=dict, init=False, repr=False)
    _clusters: dict[int, Clusters] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def is_ordinary(self) -> Tensor:
        """Whether each of the V tokens represents text."""
        mask = torch.ones(len(self.counts), dtype=torch.bool, device=self.embeddings.device)
        mask[[token for token in self.special if token < len(mask)]] = False
        return mask

    @cached_property
    def ordinary(self) -> Tensor:
        """The tokens that represent text, the most frequent first."""
        order = self.counts.to(self.embeddings.device).argsort(descending=True, stable=True)
        return order[self.is_ordinary[order]]

    @cached_property
    def directions(self) -> Tensor:
        """The embeddings normalised to length 1 (V x D), whose products are cosines."""
        return torch.nn.functional.normalize(self.embeddings.float(), dim=1)

    def get_groups(self, size: int) -> Groups:
        """Return groups of `size` tokens, computed once for each size.

        From the most frequent token on, each token that has no group yet forms one with the
        tokens nearest by cosine that have none either. The last group may be smaller.
        """
        if size in self._groups:
            return self._groups[size]
        # One row of cosines at a time, since a table of V x V would not fit in memory.
        taken, left = ~self.is_ordinary, len(self.ordinary)
        of = torch.full_like(self.counts, -1, device=taken.device)
        rows: list[Tensor] = []
        for first in self.ordinary.tolist():
            if taken[first]:
                continue
            near = self.directions @ self.directions[first]
            near[taken] = -torch.inf
            near[first] = torch.inf
            members = near.topk(min(size, left)).indices
            taken[members], of[members] = True, len(rows)
            left -= len(members)
            rows.append(torch.nn.functional.pad(members, (0, size - len(members)), value=-1))
        self._groups[size] = Groups(torch.stack(rows), of)
        return self._groups[size]

    def get_clusters(self, count: int) -> Clusters:
        """Return `count` clusters of embeddings (at most one per token), computed once.

        K-means runs on the tokens that occur, weighted by their counts; all other tokens belong to
        the nearest cluster.
        """
        if count in self._clusters:
            return self._clusters[count]
        from sklearn.cluster import KMeans

        counts = self.counts.to(self.ordinary.device)
        chosen = self.ordinary[counts[self.ordinary] > 0]
        # K-means needs at least as many tokens as clusters: then rare tokens are used as well.
        if len(chosen) < count:
            chosen = self.ordinary[:count]
        rows, table = chosen.cpu().numpy(), self.embeddings.float().cpu().numpy()
        weights = self.counts.cpu().numpy()[rows].clip(1)
        means = KMeans(min(count, len(rows)), n_init=1, random_state=0)
        means.fit(table[rows], sample_weight=weights)
        centres = torch.from_numpy(means.cluster_centers_).to(self.embeddings.device)
        of = torch.from_numpy(means.predict(table)).long().to(self.embeddings.device)
        self._clusters[count] = Clusters(centres, of)
        return self._clusters[count]


class Stock(Protocol):
    """The public texts and tokens that a client may add to its own."""

    vocabulary: int
    """Number of tokens in the vocabulary."""
    pad: int
    """The padding token."""
    size: int
    """Number of public texts."""

    def draw_support(self, count: int, rows: int, rng: torch.Generator) -> Sequence[Batch]:
        """Draw `count` batches of `rows` public texts."""

    def get_texts(self, rows: Tensor) -> Batch:
        """Return the public texts with these row numbers."""
