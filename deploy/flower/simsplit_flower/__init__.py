"""`simsplit serve` and `simsplit join` as a Flower app: one message to each node, and streams."""

import hashlib
from typing import get_args

from simsplit.deploy.keys import Keys
from simsplit.deploy.terms import Mode
from simsplit.errors import RunError


def pin_of(keys: Keys) -> str:
    """Return the digest of a deployment's authority, by which clients know it."""
    return hashlib.sha256(keys.authority).hexdigest()


def mode_of(given: object) -> Mode:
    """Return a mode that exists: a typing error must not become a rehearsal."""
    for mode in get_args(Mode):
        if given == mode:
            return mode
    raise RunError(f"mode: got {given}; allowed: {', '.join(get_args(Mode))}")
