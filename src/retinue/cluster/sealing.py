"""Encryption of everything that passes through a hub: orders, ends, logs, files, model traffic.

An order is encrypted to the public key of its node and contains a new key. Everything else of the
attempt is encrypted with that key, so the hub cannot read prompts, code or answers. A message that
this key decrypts was written by the steward or the node of that order.
"""

from __future__ import annotations

import hashlib

import nacl.exceptions
import nacl.public
import nacl.secret
import nacl.utils

KEY_BYTES = nacl.secret.SecretBox.KEY_SIZE
# By which `seal` makes a message longer.
SEALING_BYTES = nacl.secret.SecretBox.NONCE_SIZE + nacl.secret.SecretBox.MACBYTES


class NotSealed(ValueError):
    """The message was not sealed with this key, or was changed."""


def make_key() -> bytes:
    return nacl.utils.random(KEY_BYTES)


def derive_key(master: bytes, purpose: str) -> bytes:
    """Return the key for one purpose; the same master and purpose give the same key."""
    return hashlib.blake2b(purpose.encode(), key=master, digest_size=KEY_BYTES).digest()


def seal(key: bytes, data: bytes, nonce: bytes | None = None) -> bytes:
    return bytes(nacl.secret.SecretBox(key).encrypt(data, nonce))


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Raises:
    NotSealed: the message cannot be opened with this key.
    """
    try:
        return nacl.secret.SecretBox(key).decrypt(sealed)
    except (nacl.exceptions.CryptoError, ValueError, TypeError) as error:
        raise NotSealed(str(error)) from error


def find_public_key(private: bytes) -> bytes:
    return bytes(nacl.public.PrivateKey(private).public_key)


def seal_for(public: bytes, data: bytes) -> bytes:
    """Seal a message that only the holder of the private key can open.

    Raises:
        NotSealed: that is no public key.
    """
    try:
        return bytes(nacl.public.SealedBox(nacl.public.PublicKey(public)).encrypt(data))
    except (nacl.exceptions.CryptoError, ValueError, TypeError) as error:
        raise NotSealed(str(error)) from error


def unseal_from_box(private: bytes, sealed: bytes) -> bytes:
    """Raises:
    NotSealed: the message cannot be opened with this key.
    """
    try:
        return nacl.public.SealedBox(nacl.public.PrivateKey(private)).decrypt(sealed)
    except (nacl.exceptions.CryptoError, ValueError, TypeError) as error:
        raise NotSealed(str(error)) from error
