"""Keys: a certificate authority of one deployment's own, and a certificate for each party.

A party is who its certificate says, and nothing that it sends can say otherwise. Names are fixed
(`server.simsplit`, `client-0.simsplit`), since only this authority is believed: no address has to
be known when keys are made, and no client can pass for the server.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.packets import ClientId

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
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


def client_name(client: ClientId) -> str:
    """The name of a client, and of its folder."""
    return f"client-{client}"


def make_keys(folder: Path, clients: int, days: int, now: datetime | None = None) -> list[Path]:
    """A folder for each party, to be brought to it; `ca/` signs and is needed no more."""
    if (folder / "ca").exists():
        raise RunError(f"{folder} already holds keys; give another folder")
    now = now or datetime.now(UTC)
    key = _fresh()
    dates = now - LEEWAY, now + timedelta(days=days)
    authority = _signed("ca", key, key, dates)
    text = _pem(authority)
    _write(folder / "ca", {AUTHORITY: text, KEY: _private(key)})
    made = []
    for name in (SERVER, *map(client_name, range(clients))):
        own = _fresh()
        signed = _signed(name, own, key, dates)
        files = {AUTHORITY: text, CERTIFICATE: _pem(signed), KEY: _private(own)}
        made.append(_write(folder / name, files))
    return made


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
    return Keys(*found)


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


def _private(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    """A folder whose private key its owner alone can read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        mode = 0o600 if name == KEY else 0o644
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return folder
