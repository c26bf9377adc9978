"""What a client seals for others: the server carries it, and can neither read nor change it.

Encrypted by a fresh key with ChaCha20-Poly1305, the key sealed to each of the others by X25519,
and all of it signed by the sender's certificate's key. The authority's roster says who they are.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from simsplit.deploy.keys import Keys, Known, client_name, client_of, named, roster_of
from simsplit.errors import ProtocolError, RunError
from simsplit.packets import ClientId

_NONCE = bytes(12)
"""Each key encrypts once."""
_LENGTHS = struct.Struct(">II")
_DOMAIN = b"simsplit hand-over 1"
_HASH = ec.ECDSA(hashes.SHA256())


class Seals:
    """One client's: it seals to all others of a run, and opens what they have sealed."""

    def __init__(self, keys: Keys, clients: int) -> None:
        """`clients` is how many take part; RunError where the roster lacks one of them."""
        self.number = client_of(named(keys))
        everyone = roster_of(keys)
        if missing := [client for client in range(clients) if client not in everyone]:
            raise RunError(
                f"the scenario has {clients} clients, and the keys were made for {len(everyone)} "
                f"({client_name(missing[0])} has none); make new keys, or change clients.count"
            )
        self.known = {client: everyone[client] for client in range(clients)}
        signs = load_pem_private_key(keys.key, None)
        opens = load_pem_private_key(keys.sealing, None)
        assert isinstance(signs, ec.EllipticCurvePrivateKey), "as they are made"
        assert isinstance(opens, X25519PrivateKey), "as they are made"
        self._signs, self._opens = signs, opens

    def sealed(self, told: dict[str, Any], content: bytes) -> bytes:
        """Something for all others; `told` is what they have to know of it, and all may read."""
        once, key = X25519PrivateKey.generate(), ChaCha20Poly1305.generate_key()
        about = {**told, "from": self.number, "once": once.public_key().public_bytes_raw().hex()}
        about["opens"] = _fingerprint(key)
        bound = _bound(about)
        about["keys"] = {
            str(other): ChaCha20Poly1305(
                _shared(once, X25519PublicKey.from_public_bytes(known.sealed_to), other)
            )
            .encrypt(_NONCE, key, bound)
            .hex()
            for other, known in self.known.items()
            if other != self.number
        }
        closed = ChaCha20Poly1305(key).encrypt(_NONCE, content, bound)
        head = json.dumps(about).encode()
        signature = self._signs.sign(_DOMAIN + _digest(head, closed), _HASH)
        return _LENGTHS.pack(len(head), len(signature)) + head + signature + closed

    def opened(self, blob: bytes, sender: ClientId) -> "Opened":
        """What a client has sealed to this one; ProtocolError for what it has not."""
        try:
            return self._opened(blob, sender)
        except (InvalidSignature, InvalidTag, ValueError, KeyError, TypeError, struct.error):
            raise ProtocolError(
                f"a hand-over that client {sender} has not sealed to this one, or not so"
            ) from None

    def _opened(self, blob: bytes, sender: ClientId) -> "Opened":
        about, closed = _signed_by(self.known[sender], blob)
        if about["from"] != sender or sender == self.number:
            raise ValueError("another sender")
        wrapped = bytes.fromhex(about.pop("keys")[str(self.number)])
        once = X25519PublicKey.from_public_bytes(bytes.fromhex(about["once"]))
        own = ChaCha20Poly1305(_shared(self._opens, once, self.number or 0))
        key = own.decrypt(_NONCE, wrapped, _bound(about))
        if about["opens"] != _fingerprint(key):
            raise ValueError("another key than was promised")
        return Opened(about, ChaCha20Poly1305(key).decrypt(_NONCE, closed, _bound(about)), key)


@dataclass(frozen=True)
class Opened:
    """What was sealed: what is told of it, its content, and the key that shows it to others."""

    about: dict[str, Any]
    content: bytes
    key: bytes


def shown(known: Known, blob: bytes, key: bytes) -> bytes:
    """What a client has sealed, to one who was given its key; ProtocolError if this is no proof.

    A key is proof since its fingerprint is among what the sender has signed.
    """
    try:
        about, closed = _signed_by(known, blob)
        about.pop("keys")
        if about["opens"] == _fingerprint(key):
            return ChaCha20Poly1305(key).decrypt(_NONCE, closed, _bound(about))
    except (InvalidSignature, InvalidTag, ValueError, KeyError, TypeError, struct.error):
        pass
    raise ProtocolError("a key that shows nothing")


def _signed_by(known: Known, blob: bytes) -> tuple[dict[str, Any], bytes]:
    """What is told of a seal, and what is in it, if it is whose it is said to be."""
    length, signed = _LENGTHS.unpack_from(blob)
    start = _LENGTHS.size
    head, signature = blob[start : start + length], blob[start + length :][:signed]
    closed = blob[start + length + signed :]
    known.signs.verify(signature, _DOMAIN + _digest(head, closed), _HASH)
    about = json.loads(head)
    if not isinstance(about, dict):
        raise TypeError("tells nothing")
    return about, closed


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(_DOMAIN + key).hexdigest()


def _shared(own: X25519PrivateKey, other: X25519PublicKey, receiver: ClientId) -> bytes:
    about = _DOMAIN + str(receiver).encode()
    return HKDF(hashes.SHA256(), 32, None, about).derive(own.exchange(other))


def _digest(head: bytes, closed: bytes) -> bytes:
    made = hashes.Hash(hashes.SHA256())
    made.update(_LENGTHS.pack(len(head), 0) + head)
    made.update(closed)
    return made.finalize()


def _bound(about: dict[str, Any]) -> bytes:
    """What no key opens without."""
    return json.dumps(about, sort_keys=True).encode()
