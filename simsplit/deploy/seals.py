"""A client seals hand-overs for other clients; the server can neither read nor change them.

Each hand-over is encrypted with a fresh ChaCha20-Poly1305 key. That key is encrypted to each
receiver by X25519, and the sender's certificate key signs the whole. The roster, which the
authority signed, names the clients and their keys.

A receiver that cannot decrypt its key signs a complaint. Only for such a complaint the sender
discloses the seal's one-time secret, by which the server decrypts the receiver's key as the
receiver would: either the sender or the receiver has lied. The server could then read that one
hand-over, as it could if the receiver showed it.
"""

import hashlib
import json
import secrets
import struct
from collections.abc import Collection, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from torch import Tensor

from simsplit.deploy.keys import (
    Keys,
    RosterEntry,
    client_name,
    parse_client,
    read_owner,
    read_roster,
)
from simsplit.errors import ProtocolError, RunError
from simsplit.legs import ClientId

_NONCE = bytes(12)
"""The nonce may be constant, since each key encrypts once."""
_LENGTHS = struct.Struct(">II")
_DOMAIN = b"simsplit hand-over 1"
_ONCE = b"simsplit one-time secret 1"
_COMPLAINT = b"simsplit complaint 1"
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


class UnopenedSeal(ProtocolError):  # noqa: N818 - evidence for the server
    """A seal that its sender signed, and whose key for this client cannot be decrypted."""

    def __init__(self, sender: ClientId, complaint: bytes) -> None:
        super().__init__(f"a hand-over of client {sender} without a usable key for this client")
        self.sender, self.complaint = sender, complaint


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
        nonce, key = secrets.token_bytes(_KEY_BYTES), ChaCha20Poly1305.generate_key()
        once = self._derive_once(nonce)
        about = {**about, "from": self.number, "once": once.public_key().public_bytes_raw().hex()}
        about |= {"nonce": nonce.hex(), "opens": _fingerprint(key)}
        # Without the keys, which are encrypted under it and so cannot be part of it.
        bound = _encode_associated_data(about)
        about["keys"] = wrapped = dict[str, str]()
        for other, known in self.roster.items():
            if other != self.number:
                to = X25519PublicKey.from_public_bytes(known.sealed_to)
                shared = ChaCha20Poly1305(_derive_shared_key(once, to, other))
                wrapped[str(other)] = shared.encrypt(_NONCE, key, bound).hex()
        closed = ChaCha20Poly1305(key).encrypt(_NONCE, content, bound)
        head = json.dumps(about).encode()
        signature = self._signs.sign(_DOMAIN + _hash_parts(head, closed), _HASH)
        return _LENGTHS.pack(len(head), len(signature)) + head + signature + closed

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement, which begins with what it is about."""
        return self._signs.sign(statement, _HASH)

    def open(self, blob: bytes, sender: ClientId) -> tuple[dict[str, Any], bytes, bytes]:
        """Return a seal's readable header, its content, and the key that proves it to others.

        Raise ProtocolError unless `sender` sealed it so, and is another client; UnopenedSeal if it
        signed a key that cannot be decrypted here; SpoiltSeal if it signed a content that its key
        does not open.
        """
        try:
            about, closed = _verify_sender(self.roster[sender], blob)
            # A client's own hand-over, sent back to it, must not pass for another's.
            if about["from"] != sender or sender == self.number:
                raise ValueError("another sender")
        except _UNSEALED:
            raise ProtocolError(
                f"a hand-over that is not validly sealed by client {sender} to this client"
            ) from None
        try:
            once = X25519PublicKey.from_public_bytes(bytes.fromhex(about["once"]))
            shared = _derive_shared_key(self._opens, once, self.number or 0)
            key = _unwrap(about, self.number or 0, shared)
        except _UNSEALED:
            complaint = self._signs.sign(_COMPLAINT + _hash_parts(blob, b""), _HASH)
            raise UnopenedSeal(sender, complaint) from None
        about.pop("keys")
        return about, _decrypt(sender, about, closed, key), key

    def disclose(self, blob: bytes, receiver: ClientId, complaint: bytes) -> bytes:
        """Return the one-time secret of an own seal, of which a receiver complains.

        Raise ProtocolError unless this client sealed it and the receiver signed the complaint: to
        the server alone nothing is disclosed.
        """
        try:
            about, _ = _verify_sender(self.roster[self.number or 0], blob)
            if receiver == self.number or about["from"] != self.number:
                raise ValueError("no other receiver")
            verify_complaint(self.roster[receiver], blob, complaint)
            return self._derive_once(bytes.fromhex(about["nonce"])).private_bytes_raw()
        except _UNSEALED:
            raise ProtocolError("to disclose a secret without a receiver's complaint") from None

    def _derive_once(self, nonce: bytes) -> X25519PrivateKey:
        """Derive the one-time secret of a seal, so that a complaint may come after a restart."""
        own = self._opens.private_bytes_raw()
        return X25519PrivateKey.from_private_bytes(
            HKDF(hashes.SHA256(), _KEY_BYTES, nonce, _ONCE).derive(own)
        )


def open_with_key(sender: RosterEntry, blob: bytes, key: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a seal's header and content, opened with a key from its receiver.

    Raise ProtocolError if the key is no proof. It is one because the sender signed its fingerprint.
    Raise SpoiltSeal if it is proof that the content cannot be opened.
    """
    try:
        about, closed = _verify_sender(sender, blob)
        about.pop("keys")
        if about["opens"] == _fingerprint(key):
            return about, _decrypt(about["from"], about, closed, key)
    except _UNSEALED:
        pass
    raise ProtocolError("a key that proves nothing")


def verify_signature(signer: RosterEntry, statement: bytes, signature: Tensor) -> None:
    """Raise ProtocolError unless a client signed a statement."""
    try:
        signer.signs.verify(signature.numpy().tobytes(), statement, _HASH)
    except _UNSEALED:
        raise ProtocolError("a signature by another client than it names") from None


def verify_complaint(receiver: RosterEntry, blob: bytes, complaint: bytes) -> None:
    """Raise ProtocolError unless a receiver has signed a complaint about this seal."""
    try:
        receiver.signs.verify(complaint, _COMPLAINT + _hash_parts(blob, b""), _HASH)
    except _UNSEALED:
        raise ProtocolError("a complaint that its receiver did not sign") from None


def is_wrapped(
    roster: Mapping[ClientId, RosterEntry],
    sender: ClientId,
    receiver: ClientId,
    blob: bytes,
    once: bytes,
) -> bool:
    """Return whether a seal has a usable key for a receiver, by its disclosed one-time secret.

    False too if the secret is not the one of this seal.
    """
    try:
        about, _ = _verify_sender(roster[sender], blob)
        secret = X25519PrivateKey.from_private_bytes(once)
        if secret.public_key().public_bytes_raw().hex() != about["once"]:
            return False
        known = X25519PublicKey.from_public_bytes(roster[receiver].sealed_to)
        _unwrap(about, receiver, _derive_shared_key(secret, known, receiver))
    except _UNSEALED:
        return False
    return True


def _unwrap(about: Mapping[str, Any], receiver: ClientId, shared: bytes) -> bytes:
    """Return the key of a seal, decrypted with the key that sender and receiver share."""
    wrapped = bytes.fromhex(about["keys"][str(receiver)])
    bound = {name: value for name, value in about.items() if name != "keys"}
    key = ChaCha20Poly1305(shared).decrypt(_NONCE, wrapped, _encode_associated_data(bound))
    # the key proves the content to the server only if the sender signed its fingerprint
    if about["opens"] != _fingerprint(key):
        raise ValueError("the signature is for another key")
    return key


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
    digest = hashlib.sha256(_LENGTHS.pack(len(head), 0) + head)
    digest.update(closed)
    return digest.digest()


def _encode_associated_data(about: dict[str, Any]) -> bytes:
    """Return the associated data, without which no key opens the content."""
    return json.dumps(about, sort_keys=True).encode()
