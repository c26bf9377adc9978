"""An attack on `private_backprop`, ours: one server's messages give the gradient away by its size.

The client hides a gradient g in m messages, each a sum of g and m - 1 noises. A server that gets
all of them stacks them as rows of a matrix. Noise hides a gradient only if it is larger, so g is
the combination of the rows that is smallest: the matrix's direction of the smallest singular value.
The combination's weights have length 1, as the client's own have, so its size is right too. It
takes one step, and no knowledge of the optimizer. With a part of the messages the noises outnumber
the equations, and what is smallest is still noise.

The sign of a singular direction is arbitrary, batch by batch. Labels of one batch then come out
flipped against those of another. Features help: how they go together with the gradient is alike in
all batches, so signs are chosen by which these products agree most (see `align_signs`). Where
features tell nothing of labels, each batch keeps a sign of its own.

Labels are read as in `kmeans`, from rows of unit length, and of two classes as in `spectral` too,
but without centring: the gradient of a sample's features is p - y times one direction or nearly so,
and the sign of p - y is the class.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from simsplit.attacks.kmeans import find_clusters
from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig
from simsplit.attacks.threat import Knows, Sees, Threat


class SingularDirectionConfig(LabelAttackConfig):
    """The gradient as the smallest combination of all messages that one server gets."""

    kind: Literal["singular_direction"] = "singular_direction"
    threat: ClassVar[Threat] = Threat(
        (Sees.ROWS,),
        (Knows.CLASSES, Knows.NOISE),
        limits="fewer servers than messages; elsewhere it reads the gradient as it is sent",
    )
    views: tuple[Literal["recovered", "gradient"], ...] = Field(
        default=("recovered", "gradient"), min_length=1
    )
    """The views that it uses: the recovered gradient where the server gets several messages, else
    the only message that it gets. The first that there is counts."""
    starts: int = Field(default=10, ge=1)
    """Number of runs of k-means; the best one counts."""

    def build(self, known: Knowledge) -> "SingularDirection":
        return SingularDirection(self, known)


class SingularDirection(LabelAttack):
    """An attack that reads labels off the recovered gradient of all targets."""

    config: SingularDirectionConfig
    reads_first: ClassVar[bool] = True

    def read(self, view: SeenView) -> list[Clue]:
        """Return scores, if there are two classes, and clusters."""
        place, classes = (view.name, view.adapter), self.known_labels.classes
        unit = torch.nn.functional.normalize(view.rows)
        groups = find_clusters(unit, classes, self.config.starts, self.known.seed)
        clues = [Clue(*place, "accuracy", groups)]
        if classes != 2:
            return clues
        rows_ND = view.rows.float()
        direction_D = torch.linalg.svd(rows_ND, full_matrices=False)[2][0]
        return [Clue(*place, "auc", rows_ND @ direction_D), *clues]
