"""Ids are blinded as points of an elliptic curve, by openmined-psi.

A party multiplies the point of each id by a secret number, and so does every other party in turn.
The order of these does not matter, so ids that all parties have end as equal points. Nobody gets
from a point to an id without all of the secrets (Meadows, 1986; Huberman, Franklin and Hogg, 1999).
The package's own protocol is for two parties; its two steps, used in a ring, are this one.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from simsplit.errors import ProtocolError, SimsplitError, install_command

POINT_BYTES = 33
"""Bytes of a point in compressed form."""
MOST_IDS = 2**20
"""Most ids that a party may bring: each takes every party about 0.1 ms."""
LEAST_IDS = 2
_CURVE = ec.SECP256R1()


def has_psi() -> bool:
    """Return whether openmined-psi is installed; a folder that it left behind is not it."""
    try:
        return find_spec("private_set_intersection.python") is not None
    except ModuleNotFoundError:
        return False


def require_psi() -> None:
    """Raise SimsplitError if openmined-psi is not installed."""
    if not has_psi():
        raise SimsplitError(
            f"data.source.align: psi needs the package openmined-psi: {install_command('psi')}"
        )


class Blinder:
    """One party's secret number, which is used for one alignment."""

    def __init__(self) -> None:
        """Draw a secret number; raise SimsplitError without openmined-psi."""
        require_psi()
        from private_set_intersection import python as psi

        self._own = psi.client.CreateWithNewKey(True)
        self._others = psi.server.CreateFromKey(self._own.GetPrivateKeyBytes(), True)
        self._request = psi.Request

    def blind(self, ids: Sequence[str]) -> Tensor:
        """Return a point for each id, in their order."""
        return _pack(self._own.CreateRequest(list(ids)).encrypted_elements)

    def blind_again(self, points: Tensor) -> Tensor:
        """Return another party's points, blinded by this party too, in their order."""
        request = self._request(reveal_intersection=True)
        request.encrypted_elements.extend(split_points(points))
        return _pack(self._others.ProcessRequest(request).encrypted_elements)


def _pack(points: Sequence[bytes]) -> Tensor:
    flat = torch.frombuffer(bytearray(b"".join(points)), dtype=torch.uint8)
    return flat.view(len(points), POINT_BYTES)


def split_points(points: Tensor) -> list[bytes]:
    """Return the bytes of each point."""
    return [row.tobytes() for row in points.numpy()]


def check_points(points: Tensor, count: int | None = None) -> None:
    """Raise ProtocolError unless these are different points of the curve, `count` in number."""
    good = points.dtype == torch.uint8 and points.dim() == 2 and points.shape[1] == POINT_BYTES
    if not good or not LEAST_IDS <= len(points) <= MOST_IDS:
        raise ProtocolError(f"blinded ids that are not {LEAST_IDS} to {MOST_IDS:,} points")
    if count not in (None, len(points)):
        raise ProtocolError(f"{len(points)} blinded ids for {count}")
    each = split_points(points)
    if len(set(each)) < len(each):
        raise ProtocolError("a blinded id that is there twice")
    try:
        for point in each:
            ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    except ValueError:
        raise ProtocolError("a blinded id that is no point of the curve") from None
