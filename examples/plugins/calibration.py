"""A metric: does a model that says 80 % have it right in 80 % of cases?"""

import torch

BINS = 15


def calibration_error(outputs, labels):
    """Compute the expected calibration error over 15 bins of confidence (Guo et al. 2017)."""
    confidence, predicted = outputs.softmax(-1).max(-1)
    right = (predicted == labels).float()
    place = (confidence * BINS).long().clamp_max(BINS - 1)
    gap = torch.zeros(BINS).index_add(0, place, right - confidence)
    return (gap.abs().sum() / len(labels)).item()


# no config: a metric has no options. A name that ends with error, loss or perplexity is one that
# should fall, for `stop` and for the best round
METRICS = {"calibration_error": calibration_error}
