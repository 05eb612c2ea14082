"""Encryption of private files with a key of the user's.

AES-256-GCM, by the package `cryptography`. Every file has a nonce of its own, and is bound to its
name: a file that was altered, or put in the place of another, is not decrypted.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile, import_extra
from seepage.core.whole_file import open_plain

# The environment variable that names the file of the key.
VARIABLE = "SEEPAGE_KEY_FILE"
_MARK = b"seepage-aes-gcm1"
_NONCE, _SECRET = 12, 32
# Most bytes that the package encrypts at once.
_LARGEST = 2**31 - 1
# Under this name an audit says what only its key decrypts.
ENCRYPTION = "encryption"
_PROOF = "audit"


@dataclass(frozen=True)
class Key:
    """A secret of 32 bytes that encrypts files.

    Example:
        >>> Key(secrets.token_bytes(32))
        Key()
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != _SECRET:
            raise InvalidValue(f"expected a key of {_SECRET} bytes, got {len(self.secret)}")

    def encrypt(self, data: bytes, *, name: str) -> bytes:
        """Encrypt the content of the file of this name."""
        if len(data) > _LARGEST:
            raise InvalidValue(f"expected at most {_LARGEST} bytes to encrypt, got {len(data)}")
        nonce = secrets.token_bytes(_NONCE)
        hidden: bytes = self._cipher().encrypt(nonce, data, name.encode())
        return _MARK + nonce + hidden

    def decrypt(self, data: bytes, *, name: str) -> bytes:
        """Undo `encrypt`.

        Raises:
            UnreadableFile: If the file was altered, has another name or another key.
        """
        cipher = self._cipher()
        invalid = import_module("cryptography.exceptions").InvalidTag
        nonce, hidden = data[len(_MARK) :][:_NONCE], data[len(_MARK) + _NONCE :]
        try:
            if not data.startswith(_MARK):
                raise UnreadableFile(f"expected an encrypted file for {name!r}, got another")
            content: bytes = cipher.decrypt(nonce, hidden, name.encode())
        except (invalid, ValueError):
            raise UnreadableFile(
                f"{name!r} was altered, or is encrypted with another key"
            ) from None
        return content

    def _cipher(self) -> Any:  # noqa: ANN401
        name, reason = "cryptography.hazmat.primitives.ciphers.aead", "encryption needs an extra"
        ciphers = import_extra(name, "encryption", reason=reason)
        return ciphers.AESGCM(self.secret)


def find_key() -> Key | None:
    """Read the key that SEEPAGE_KEY_FILE names; None if it names none.

    The file holds 32 bytes, or 64 hexadecimal digits, and only its owner may read it.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named)
    try:
        with open_plain(path, follow=True) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            written = file.read(200)
    except FileNotFoundError as error:
        raise DataNotFound(f"no key at {named!r}; check --encrypt-key or {VARIABLE}") from error
    except UnreadableFile:
        raise
    except OSError as error:
        raise UnreadableFile(f"cannot read the key {named!r}: {error.strerror}") from error
    if mode & 0o077:
        raise InvalidValue(
            f"expected a key that only its owner may read, got {named!r} with mode {mode:04o}; "
            f"chmod 600 it"
        )
    if len(written) == _SECRET:
        return Key(written)
    try:
        return Key(bytes.fromhex(written.decode()))
    except ValueError:
        raise InvalidValue(
            f"expected {_SECRET} bytes or {2 * _SECRET} hexadecimal digits in {named!r}, got "
            "something else; openssl rand -hex 32 makes such a key"
        ) from None


def prove_key(key: Key | None) -> dict[str, str]:
    """What `about` holds of a key, by which the same one is known again."""
    return {} if key is None else {ENCRYPTION: key.encrypt(b"", name=_PROOF).hex()}


def open_key(path: Path, about: Mapping[str, str]) -> Key | None:
    """Return the key of an audit; None if it is not encrypted.

    Raises:
        UnreadableFile: If the key is not there, or another.
    """
    proof = about.get(ENCRYPTION)
    if proof is None:
        return None
    key = find_key()
    if key is None:
        raise UnreadableFile(
            f"the audit in {str(path)!r} is encrypted; name the file of its key with --encrypt-key "
            f"or {VARIABLE}"
        )
    try:
        key.decrypt(bytes.fromhex(proof), name=_PROOF)
    except (UnreadableFile, ValueError):
        raise UnreadableFile(
            f"the audit in {str(path)!r} is encrypted with another key than {VARIABLE} names"
        ) from None
    return key
