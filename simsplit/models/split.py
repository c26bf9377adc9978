"""A network cut in three, which is all that the rest of simsplit knows of a model."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class CutNetwork:
    """Head and tail (the client's) around a trunk (the server's), and the shapes between them."""

    head: nn.Module
    trunk: nn.Module
    tail: nn.Module
    cut_shape: tuple[int, ...]
    """Per sample, what the head puts out, e.g. (64, 8, 8)."""
    feature_shape: tuple[int, ...]
    """Per sample, what the trunk puts out, e.g. (512,)."""

    def loss(self, outputs: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Cross entropy of the tail's logits, averaged over what is to be learned; that share of
        each label is spread over all classes.
        """
        flat = outputs.flatten(0, -2), labels.flatten()
        return F.cross_entropy(*flat, label_smoothing=smoothing)
