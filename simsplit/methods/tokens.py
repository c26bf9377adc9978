"""What clients know of their model's vocabulary before training: embeddings, and how often each
token occurs. Methods that replace tokens choose by it.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Groups(NamedTuple):
    """Disjoint groups of tokens that are near each other."""

    members: Tensor
    """A row for each group, its tokens; -1 where a group has fewer."""
    of: Tensor
    """Each token's group; -1 of special ones."""


class Clusters(NamedTuple):
    """Tokens that k-means puts together."""

    centres: Tensor
    """A row for each cluster."""
    of: Tensor
    """Each token's cluster, of special ones too."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A vocabulary as it is before training; shared by all methods of a process."""

    embeddings: Tensor
    """V x D."""
    counts: Tensor
    """V: how often each token occurs in all clients' training texts."""
    special: frozenset[int]
    """Tokens that stand for no text, such as padding."""
    _groups: dict[int, Groups] = field(default_factory=dict, init=False, repr=False)
    _clusters: dict[int, Clusters] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def is_ordinary(self) -> Tensor:
        """V: whether a token stands for text."""
        mask = torch.ones(len(self.counts), dtype=torch.bool, device=self.embeddings.device)
        mask[[token for token in self.special if token < len(mask)]] = False
        return mask

    @cached_property
    def ordinary(self) -> Tensor:
        """The tokens that stand for text, the most frequent first."""
        order = self.counts.to(self.embeddings.device).argsort(descending=True, stable=True)
        return order[self.is_ordinary[order]]

    @cached_property
    def directions(self) -> Tensor:
        """V x D: embeddings of length 1, so that products are cosines."""
        return torch.nn.functional.normalize(self.embeddings.float(), dim=1)

    def groups(self, size: int) -> Groups:
        """From the most frequent token on, each with those nearest to it by cosine that no group
        has yet; the last group may be smaller. Worked out once, without a table of V x V.
        """
        if size not in self._groups:
            self._groups[size] = self._grouped(size)
        return self._groups[size]

    def clusters(self, count: int) -> Clusters:
        """So many clusters of embeddings (no more than there are tokens), by k-means on the tokens
        that occur, weighted by how often; others belong to the nearest. Worked out once.
        """
        if count not in self._clusters:
            self._clusters[count] = self._clustered(count)
        return self._clusters[count]

    def _clustered(self, count: int) -> Clusters:
        from sklearn.cluster import KMeans

        counts = self.counts.to(self.ordinary.device)
        chosen = self.ordinary[counts[self.ordinary] > 0]
        if len(chosen) < count:
            chosen = self.ordinary[:count]
        rows, table = chosen.cpu().numpy(), self.embeddings.float().cpu().numpy()
        often = self.counts.cpu().numpy()[rows].clip(1)
        means = KMeans(min(count, len(rows)), n_init=1, random_state=0)
        means.fit(table[rows], sample_weight=often)
        centres, of = (
            torch.from_numpy(means.cluster_centers_),
            torch.from_numpy(means.predict(table)),
        )
        device = self.embeddings.device
        return Clusters(centres.to(device), of.long().to(device))

    def _grouped(self, size: int) -> Groups:
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
        return Groups(torch.stack(rows), of)
