"""Each deployment has a certificate authority of its own, which issues each party's certificate.

A party is identified by its certificate, and by nothing that it sends. Names are fixed
(`server.simsplit`, `client-0.simsplit`), since only this authority is trusted. So addresses need
not be known when keys are made, and no client can pass for the server.

Clients know each other by a roster that the authority signed. It holds each client's certificate
and sealing key, so the server carries hand-overs between clients but cannot open them.
"""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from simsplit.errors import RunError
from simsplit.legs import ClientId
from simsplit.results.directory import make_folder

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
SEALING, ROSTER = "sealing.pem", "roster.json"
SERVER = "server"
DOMAIN = ".simsplit"
LEEWAY = timedelta(hours=1)
"""How far the parties' clocks may differ when a certificate is new."""
_CURVE, _HASH = ec.SECP256R1(), ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class Keys:
    """The files by which one party proves its identity, and the ones that it trusts."""

    authority: bytes
    certificate: bytes
    key: bytes
    sealing: bytes = b""
    """A client's private key, which opens what is sealed to it; empty for the server."""
    roster: bytes = b""
    """The signed list of all clients; empty in keys of earlier versions."""


def client_name(client: ClientId) -> str:
    """Return the name of a client, which its folder has too."""
    return f"client-{client}"


def make_keys(folder: Path, clients: int, days: int, now: datetime | None = None) -> list[Path]:
    """Create a folder of keys for each party, and return the folders.

    `ca/` holds the authority's private key. No run needs it, so it can be kept offline.
    """
    if (folder / "ca").exists():
        raise RunError(f"{folder} already holds keys; give another folder")
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(_CURVE)
    # A party whose clock is slow must not find a new certificate not yet valid.
    dates = now - LEEWAY, now + timedelta(days=days)
    text = _issue_certificate("ca", key, key, dates)
    _write_folder(folder / "ca", {AUTHORITY: text, KEY: _encode_private_key(key)})
    made: dict[str, dict[str, bytes]] = {}
    entries = {}
    for name in (SERVER, *map(client_name, range(clients))):
        own = ec.generate_private_key(_CURVE)
        signed = _issue_certificate(name, own, key, dates)
        made[name] = {AUTHORITY: text, CERTIFICATE: signed, KEY: _encode_private_key(own)}
        if name != SERVER:
            opens = X25519PrivateKey.generate()
            made[name][SEALING] = _encode_private_key(opens)
            sealed_to = opens.public_key().public_bytes_raw().hex()
            entries[name] = {"certificate": signed.decode(), "sealed_to": sealed_to}
    signature = key.sign(_encode_entries(entries), _HASH)
    roster = json.dumps({"clients": entries, "signature": signature.hex()}, indent=1).encode()
    return [_write_folder(folder / name, {**files, ROSTER: roster}) for name, files in made.items()]


@dataclass(frozen=True)
class RosterEntry:
    """The keys of one client that others know: one verifies, the other seals."""

    signs: ec.EllipticCurvePublicKey
    """Verifies the client's signatures."""
    sealed_to: bytes
    """The X25519 public key to which others seal hand-overs."""


def read_roster(keys: Keys) -> dict[ClientId, RosterEntry]:
    """Return the roster's clients; raise RunError unless this authority signed it."""
    if not keys.roster or not (keys.sealing or read_owner(keys) == SERVER):
        raise RunError(
            f"the keys of {read_owner(keys)} lack {ROSTER} or {SEALING}, which clients need to "
            "hand weights to each other; make new keys with: simsplit deploy keys"
        )
    authority = _load_certificate(keys.authority)
    try:
        roster = json.loads(keys.roster)
        entries, signature = roster["clients"], bytes.fromhex(roster["signature"])
        signer = authority.public_key()
        assert isinstance(signer, ec.EllipticCurvePublicKey), "make_keys makes no others"
        signer.verify(signature, _encode_entries(entries), _HASH)
        return dict(_read_entry(name, entry) for name, entry in entries.items())
    except (ValueError, KeyError, TypeError, InvalidSignature):
        raise RunError(f"{ROSTER} is not what this deployment's authority signed") from None


def _read_entry(name: str, entry: Mapping[str, str]) -> tuple[ClientId, RosterEntry]:
    """Return a client's number and keys; raise ValueError if the certificate has another name."""
    certificate, client = _load_certificate(entry["certificate"].encode()), parse_client(name)
    signs = certificate.public_key()
    # The entry's name decides whose signatures the key verifies, so both must have it.
    if client is None or _read_common_name(certificate) != name:
        raise ValueError("the certificate has another name than its entry")
    assert isinstance(signs, ec.EllipticCurvePublicKey), "make_keys makes no others"
    return client, RosterEntry(signs, bytes.fromhex(entry["sealed_to"]))


def _encode_entries(entries: object) -> bytes:
    """Return the bytes that the authority signs, the same for equal entries."""
    # the prefix keeps signatures of other things from passing as a roster's
    return b"simsplit roster\n" + json.dumps(entries, sort_keys=True).encode()


def load_keys(folder: Path, name: str) -> Keys:
    """Load a party's keys from its folder below `folder`, or from `folder` itself."""
    place = folder / name if (folder / name).is_dir() else folder
    for file in (KEY, SEALING):
        _refuse_readable(place / file)
    required = []
    for file in (AUTHORITY, CERTIFICATE, KEY):
        try:
            required.append((place / file).read_bytes())
        except OSError as error:
            raise RunError(
                f"cannot read {place / file}: {error.strerror}; create the keys of {name} with: "
                f"simsplit deploy keys {folder} --clients N"
            ) from None
    optional = ((place / file) for file in (SEALING, ROSTER))
    return Keys(*required, *(file.read_bytes() if file.exists() else b"" for file in optional))


def _refuse_readable(file: Path) -> None:
    """Raise RunError for a private key that others than its owner may read, as ssh does."""
    try:
        about = file.stat()
    except OSError:  # where it must be there, reading it says so
        return
    # Another's file, such as a container's secret, has modes that this user cannot change.
    if os.name == "posix" and about.st_uid == os.getuid() and about.st_mode & 0o077:
        mode = f"{about.st_mode & 0o777:04o}"
        raise RunError(
            f"{file} is a private key, and others may read or write it (its mode is {mode}); "
            f"if nobody has copied it: chmod 600 {shlex.quote(str(file))}"
        )


def read_owner(keys: Keys) -> str:
    """Return the name of the party to which a certificate belongs."""
    return _read_common_name(_load_certificate(keys.certificate))


def check_validity(keys: Keys, now: datetime | None = None) -> datetime:
    """Return when a certificate ends; raise RunError if it is not valid now, or not `ca.pem`'s."""
    certificate, authority = _load_certificate(keys.certificate), _load_certificate(keys.authority)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise RunError(
            f"the certificate of {read_owner(keys)} was not issued by its {AUTHORITY}"
        ) from None
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= (now or datetime.now(UTC)) <= end:
        raise RunError(
            f"the certificate of {read_owner(keys)} is valid from {start:%Y-%m-%d %H:%M} to "
            f"{end:%Y-%m-%d %H:%M} UTC, and not now; make new keys, or set the clock"
        )
    return end


def parse_client(name: str) -> ClientId | None:
    """Return the number of the client with this name; None if another party has it."""
    number = name.removeprefix("client-")
    return int(number) if name.startswith("client-") and number.isdecimal() else None


def _issue_certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    dates: tuple[datetime, datetime],
) -> bytes:
    """Issue a certificate of a name and key; it is an authority's if the key signs itself."""
    is_authority = key is signer
    made = (
        x509.CertificateBuilder()
        .subject_name(_make_subject(name))
        .issuer_name(_make_subject("ca"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dates[0])
        .not_valid_after(dates[1])
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
    )
    if not is_authority:
        usage = ExtendedKeyUsageOID  # no client can serve, and the server cannot join
        used = usage.SERVER_AUTH if name == SERVER else usage.CLIENT_AUTH
        made = made.add_extension(x509.ExtendedKeyUsage([used]), critical=True)
        names = x509.SubjectAlternativeName([x509.DNSName(name + DOMAIN)])
        made = made.add_extension(names, critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _make_subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _read_common_name(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _load_certificate(text: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(text)
    except ValueError as error:
        raise RunError(f"a certificate cannot be read: {error}") from None


def _encode_private_key(key: ec.EllipticCurvePrivateKey | X25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files to a folder and return it; only its owner may read the private keys."""
    make_folder(folder)
    for name, content in files.items():
        mode = 0o600 if name in (KEY, SEALING) else 0o644
        # The mode holds from the first byte, and neither a file nor a link that is there is
        # written.
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return folder
