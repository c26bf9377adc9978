"""This room computes metrics, through thin calls into maintained libraries, and knows each one."""

from simsplit.metrics.metric_registry import (
    METRICS,
    Better,
    Metric,
    find_better,
    find_decimals,
    find_headline,
    find_metric,
    format_column,
    is_lower_better,
    strip_split,
)

__all__ = [
    "METRICS",
    "SCALE_FREE",
    "SMALLEST",
    "Better",
    "Metric",
    "find_better",
    "find_decimals",
    "find_headline",
    "find_metric",
    "format_column",
    "is_lower_better",
    "strip_split",
]
SCALE_FREE = ("stretched_mse", "correlation")
"""Figures of images that do not depend on how bright an image is."""
SMALLEST = 11
"""Smallest height and width for SSIM, whose window has 11x11 pixels."""
