"""This room computes metrics, through thin calls into maintained libraries, and knows each one."""

from simsplit.metrics.metric_registry import METRICS as METRICS
from simsplit.metrics.metric_registry import Better as Better
from simsplit.metrics.metric_registry import Metric as Metric
from simsplit.metrics.metric_registry import find_better as find_better
from simsplit.metrics.metric_registry import find_decimals as find_decimals
from simsplit.metrics.metric_registry import find_headline as find_headline
from simsplit.metrics.metric_registry import find_metric as find_metric
from simsplit.metrics.metric_registry import format_column as format_column
from simsplit.metrics.metric_registry import is_lower_better as is_lower_better
from simsplit.metrics.metric_registry import strip_split as strip_split

SCALE_FREE = ("stretched_mse", "correlation")
"""Figures of images that do not depend on how bright an image is."""
SMALLEST = 11
"""Smallest height and width for SSIM, whose window has 11x11 pixels."""
