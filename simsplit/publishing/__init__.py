"""Runs and sweeps are published on the Hugging Face hub, or in a folder, and fetched from there."""

from simsplit.publishing.pulling import pull
from simsplit.publishing.pushing import push

__all__ = ["pull", "push"]
