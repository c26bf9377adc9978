"""A client seals hand-overs for other clients; the server can neither read nor change them.

Each hand-over is encrypted with a fresh ChaCha20-Poly1305 key. That key is encrypted to each
receiver by X25519, and the sender's certificate key signs the whole. The roster, which the
authority signed, names the clients and their keys.
"""

import hashlib
import json
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from simsplit.deploy.keys import (
    Keys,
    RosterEntry,
    client_name,
    parse_client,
    read_owner,
    read_roster,
)
from simsplit.errors import ProtocolError, RunError
from simsplit.packets import ClientId

_NONCE = bytes(12)
"""The nonce may be constant, since each key encrypts once."""
_LENGTHS = struct.Struct(">II")
_DOMAIN = b"simsplit hand-over 1"
_HASH = ec.ECDSA(hashes.SHA256())
_KEY_BYTES, _WRAPPED_BYTES = 32, 48
_UNSEALED = (
    *(InvalidSignature, InvalidTag, ValueError, KeyError, TypeError, AttributeError),
    *(struct.error, RecursionError, OverflowError),
)
"""The errors of bytes that are no valid seal."""


class SpoiltSeal(ProtocolError):  # noqa: N818 - evidence for the server
    """A seal that its own key does not open; the sender signed both, so the key is proof."""

    def __init__(self, sender: ClientId, key: bytes) -> None:
        super().__init__(f"a hand-over that the key of client {sender} does not open")
        self.key = key


class Seals:
    """The seals of one client: it seals to all others of a run, and opens their seals."""

    def __init__(self, keys: Keys, clients: int) -> None:
        """Load the keys for a run of `clients` clients; raise RunError if the roster lacks one."""
        self.number = parse_client(read_owner(keys))
        everyone = read_roster(keys)
        if missing := [client for client in range(clients) if client not in everyone]:
            raise RunError(
                f"the scenario has {clients} clients, and the keys were made for {len(everyone)} "
                f"({client_name(missing[0])} has none); make new keys, or change clients.count"
            )
        self.roster = {client: everyone[client] for client in range(clients)}
        signs = load_pem_private_key(keys.key, None)
        opens = load_pem_private_key(keys.sealing, None)
        assert isinstance(signs, ec.EllipticCurvePrivateKey), "make_keys makes no others"
        assert isinstance(opens, X25519PrivateKey), "make_keys makes no others"
        self._signs, self._opens = signs, opens

    def seal(self, about: dict[str, Any], content: bytes) -> bytes:
        """Seal a content for all other clients; the server can read `about`, but not change it."""
        once, key = X25519PrivateKey.generate(), ChaCha20Poly1305.generate_key()
        about = {**about, "from": self.number, "once": once.public_key().public_bytes_raw().hex()}
        about["opens"] = _fingerprint(key)
        # Without the keys, which are encrypted under it and so cannot be part of it.
        bound = _encode_associated_data(about)
        about["keys"] = {
            str(other): ChaCha20Poly1305(
                _derive_shared_key(once, X25519PublicKey.from_public_bytes(known.sealed_to), other)
            )
            .encrypt(_NONCE, key, bound)
            .hex()
            for other, known in self.roster.items()
            if other != self.number
        }
        closed = ChaCha20Poly1305(key).encrypt(_NONCE, content, bound)
        head = json.dumps(about).encode()
        signature = self._signs.sign(_DOMAIN + _hash_parts(head, closed), _HASH)
        return _LENGTHS.pack(len(head), len(signature)) + head + signature + closed

    def open(self, blob: bytes, sender: ClientId) -> "OpenedSeal":
        """Open a seal of another client; raise ProtocolError unless that client sealed it so.

        Raise SpoiltSeal if the sender signed a content that its key does not open.
        """
        try:
            return self._open(blob, sender)
        except _UNSEALED:
            raise ProtocolError(
                f"a hand-over that is not validly sealed by client {sender} to this client"
            ) from None

    def _open(self, blob: bytes, sender: ClientId) -> "OpenedSeal":
        about, closed = _verify_sender(self.roster[sender], blob)
        # A client's own hand-over, sent back to it, must not pass for another's.
        if about["from"] != sender or sender == self.number:
            raise ValueError("another sender")
        wrapped = bytes.fromhex(about.pop("keys")[str(self.number)])
        once = X25519PublicKey.from_public_bytes(bytes.fromhex(about["once"]))
        own = ChaCha20Poly1305(_derive_shared_key(self._opens, once, self.number or 0))
        key = own.decrypt(_NONCE, wrapped, _encode_associated_data(about))
        # the key proves the content to the server only if the sender signed its fingerprint
        if about["opens"] != _fingerprint(key):
            raise ValueError("the signature is for another key")
        return OpenedSeal(about, _decrypt(sender, about, closed, key), key)


@dataclass(frozen=True)
class OpenedSeal:
    """An opened seal: its readable header, its content, and the key that proves it to others."""

    about: dict[str, Any]
    content: bytes
    key: bytes


def open_with_key(sender: RosterEntry, blob: bytes, key: bytes) -> bytes:
    """Open a client's seal with a key from its receiver; raise ProtocolError if it is no proof.

    The key is proof because the sender signed its fingerprint. Raise SpoiltSeal if it is proof that
    the content cannot be opened.
    """
    try:
        about, closed = _verify_sender(sender, blob)
        about.pop("keys")
        if about["opens"] == _fingerprint(key):
            return _decrypt(about["from"], about, closed, key)
    except _UNSEALED:
        pass
    raise ProtocolError("a key that proves nothing")


def _decrypt(sender: ClientId, about: dict[str, Any], closed: bytes, key: bytes) -> bytes:
    """Return the content that a key opens, whose fingerprint the sender signed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, closed, _encode_associated_data(about))
    except InvalidTag:
        raise SpoiltSeal(sender, key) from None


def read_seal(sender: RosterEntry, blob: bytes, receivers: Collection[ClientId]) -> dict[str, Any]:
    """Return the header of a client's seal, which anyone may read.

    Raise ProtocolError unless that client signed it, with a key for each receiver.
    """
    try:
        about, _ = _verify_sender(sender, blob)
        keys = about["keys"]
        lengths = {len(bytes.fromhex(keys[str(receiver)])) for receiver in receivers}
        once, opens = (len(bytes.fromhex(about[name])) for name in ("once", "opens"))
        if lengths <= {_WRAPPED_BYTES} and once == opens == _KEY_BYTES:
            return about
    except _UNSEALED:
        pass
    raise ProtocolError("a hand-over that it did not seal for every other client")


def _verify_sender(sender: RosterEntry, blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a seal's header and closed content, after verifying the sender's signature."""
    length, signed = _LENGTHS.unpack_from(blob)
    start = _LENGTHS.size
    head, signature = blob[start : start + length], blob[start + length :][:signed]
    closed = blob[start + length + signed :]
    sender.signs.verify(signature, _DOMAIN + _hash_parts(head, closed), _HASH)
    about = json.loads(head)
    if not isinstance(about, dict):
        raise TypeError("the header is not an object")
    return about, closed


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(_DOMAIN + key).hexdigest()


def _derive_shared_key(own: X25519PrivateKey, other: X25519PublicKey, receiver: ClientId) -> bytes:
    """Derive the key that a sender shares with one receiver only."""
    about = _DOMAIN + str(receiver).encode()
    return HKDF(hashes.SHA256(), 32, None, about).derive(own.exchange(other))


def _hash_parts(head: bytes, closed: bytes) -> bytes:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(_LENGTHS.pack(len(head), 0) + head)
    digest.update(closed)
    return digest.finalize()


def _encode_associated_data(about: dict[str, Any]) -> bytes:
    """Return the associated data, without which no key opens the content."""
    return json.dumps(about, sort_keys=True).encode()
