"""Keys: a certificate authority of one deployment's own, and a certificate for each party.

A party is who its certificate says, and nothing that it sends can say otherwise. Names are fixed
(`server.simsplit`, `client-0.simsplit`), since only this authority is believed: no address has to
be known when keys are made, and no client can pass for the server.

Clients know each other by a roster that the authority has signed: each one's certificate, and the
key that is sealed to. What clients hand on to each other the server carries, and cannot open.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.packets import ClientId

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
SEALING, ROSTER = "sealing.pem", "roster.json"
SERVER = "server"
DOMAIN = ".simsplit"
LEEWAY = timedelta(hours=1)
"""By how much the parties' clocks may differ when a certificate is new."""


@dataclass(frozen=True)
class Keys:
    """What one party proves itself with, and whom it believes."""

    authority: bytes
    certificate: bytes
    key: bytes
    sealing: bytes = b""
    """Of a client: what opens that which is sealed to it."""
    roster: bytes = b""
    """How all clients are known to each other, and to the server."""


def client_name(client: ClientId) -> str:
    """The name of a client, and of its folder."""
    return f"client-{client}"


def make_keys(folder: Path, clients: int, days: int, now: datetime | None = None) -> list[Path]:
    """A folder for each party, to be brought to it; `ca/` signs and is needed no more."""
    if (folder / "ca").exists():
        raise RunError(f"{folder} already holds keys; give another folder")
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    now = now or datetime.now(UTC)
    key = _fresh()
    dates = now - LEEWAY, now + timedelta(days=days)
    authority = _signed("ca", key, key, dates)
    text = _pem(authority)
    _write(folder / "ca", {AUTHORITY: text, KEY: _private(key)})
    made: dict[str, dict[str, bytes]] = {}
    entries = {}
    for name in (SERVER, *map(client_name, range(clients))):
        own = _fresh()
        signed = _pem(_signed(name, own, key, dates))
        made[name] = {AUTHORITY: text, CERTIFICATE: signed, KEY: _private(own)}
        if name != SERVER:
            opens = X25519PrivateKey.generate()
            made[name][SEALING] = _private(opens)
            sealed_to = opens.public_key().public_bytes_raw().hex()
            entries[name] = {"certificate": signed.decode(), "sealed_to": sealed_to}
    roster = _roster(entries, key)
    return [_write(folder / name, {**files, ROSTER: roster}) for name, files in made.items()]


@dataclass(frozen=True)
class Known:
    """What a client knows of another: whose signatures are its own, and what is sealed to."""

    signs: "EllipticCurvePublicKey"
    sealed_to: bytes


def roster_of(keys: Keys) -> dict[ClientId, Known]:
    """All clients, as the authority has signed; RunError for anything else."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if not keys.roster or not (keys.sealing or named(keys) == SERVER):
        raise RunError(
            f"the keys of {named(keys)} have no {ROSTER} or {SEALING}, by which clients hand on "
            "what the server must not read; make new keys with: simsplit deploy keys"
        )
    authority = _loaded(keys.authority)
    try:
        told = json.loads(keys.roster)
        entries, signature = told["clients"], bytes.fromhex(told["signature"])
        signer = authority.public_key()
        assert isinstance(signer, ec.EllipticCurvePublicKey), "as they are made"
        signer.verify(signature, _canonical(entries), ec.ECDSA(hashes.SHA256()))
        return {c: each for name, entry in entries.items() for c, each in _known(name, entry)}
    except (ValueError, KeyError, TypeError, InvalidSignature):
        raise RunError(f"{ROSTER} is not what this deployment's authority signed") from None


def _known(name: str, entry: Mapping[str, str]) -> list[tuple[ClientId, Known]]:
    from cryptography.hazmat.primitives.asymmetric import ec

    certificate, client = _loaded(entry["certificate"].encode()), client_of(name)
    signs = certificate.public_key()
    if client is None or _name_of(certificate) != name:
        raise ValueError("an entry of another's certificate")
    assert isinstance(signs, ec.EllipticCurvePublicKey), "as they are made"
    return [(client, Known(signs, bytes.fromhex(entry["sealed_to"])))]


def _roster(entries: Mapping[str, Mapping[str, str]], signer: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    signature = signer.sign(_canonical(entries), ec.ECDSA(hashes.SHA256()))
    return json.dumps({"clients": entries, "signature": signature.hex()}, indent=1).encode()


def _canonical(entries: object) -> bytes:
    return b"simsplit roster\n" + json.dumps(entries, sort_keys=True).encode()


def keys_of(folder: Path, name: str) -> Keys:
    """A party's keys: in its folder below `folder`, or in `folder` itself."""
    place = folder / name if (folder / name).is_dir() else folder
    found = []
    for file in (AUTHORITY, CERTIFICATE, KEY):
        try:
            found.append((place / file).read_bytes())
        except OSError as error:
            raise RunError(
                f"cannot read {place / file}: {error.strerror}; the keys of {name} are made by: "
                f"simsplit deploy keys {folder} --clients N"
            ) from None
    later = ((place / file) for file in (SEALING, ROSTER))
    return Keys(*found, *(file.read_bytes() if file.exists() else b"" for file in later))


def named(keys: Keys) -> str:
    """Whose certificate it is."""
    return _name_of(_loaded(keys.certificate))


def valid_until(keys: Keys, now: datetime | None = None) -> datetime:
    """Until when a certificate is valid; RunError where it is not valid now, or not of `ca.pem`."""
    from cryptography.exceptions import InvalidSignature

    certificate, authority = _loaded(keys.certificate), _loaded(keys.authority)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise RunError(f"the certificate of {named(keys)} is none of its {AUTHORITY}'s") from None
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= (now or datetime.now(UTC)) <= end:
        raise RunError(
            f"the certificate of {named(keys)} is valid from {start:%Y-%m-%d %H:%M} to "
            f"{end:%Y-%m-%d %H:%M} UTC, and not now; make new keys, or mend the clock"
        )
    return end


def client_of(name: str) -> ClientId | None:
    """The number of the client whose certificate has this name; None of any other party's."""
    number = name.removeprefix("client-")
    return int(number) if name.startswith("client-") and number.isdecimal() else None


def _fresh() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _signed(
    name: str,
    key: "EllipticCurvePrivateKey",
    signer: "EllipticCurvePrivateKey",
    dates: tuple[datetime, datetime],
) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    is_authority = key is signer
    made = (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(_subject("ca"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dates[0])
        .not_valid_after(dates[1])
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
    )
    if not is_authority:
        usage = ExtendedKeyUsageOID
        used = usage.SERVER_AUTH if name == SERVER else usage.CLIENT_AUTH
        made = made.add_extension(x509.ExtendedKeyUsage([used]), critical=True)
        names = x509.SubjectAlternativeName([x509.DNSName(name + DOMAIN)])
        made = made.add_extension(names, critical=False)
    return made.sign(signer, hashes.SHA256())


def _subject(name: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _name_of(certificate: "x509.Certificate") -> str:
    from cryptography.x509 import NameOID

    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _loaded(text: bytes) -> "x509.Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(text)
    except ValueError as error:
        raise RunError(f"a certificate cannot be read: {error}") from None


def _pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _private(key: "EllipticCurvePrivateKey | X25519PrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    """A folder whose private keys its owner alone can read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        mode = 0o600 if name in (KEY, SEALING) else 0o644
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return folder
