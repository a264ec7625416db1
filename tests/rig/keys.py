"""Real keys, made on the spot and once a process: what tests sign, check and serve with."""

import threading
from functools import cache
from pathlib import Path

from precad.common.aggregator.round.seals import Seals
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.pki import Authority, key_to_pem, new_key, to_pem
from precad.common.identity.principal import Principal
from precad.common.identity.revocation import RevocationList
from precad.common.identity.sign import CertificateSigner, CertificateVerifier

_NO_FOLDER = Path("/nonexistent")
_root = cache(Authority.create)


_LOCK = threading.Lock()


def identity(principal: Principal) -> Identity:
    """This party's, of the one root that all of a process's tests share; nothing is revoked."""
    # Threads that ask at once must not make two roots.
    with _LOCK:
        return _identity(principal)


@cache
def _identity(principal: Principal) -> Identity:
    root, key = _root(), new_key()
    return Identity(
        _NO_FOLDER,
        principal,
        ca=to_pem(root.certificate),
        cert=to_pem(root.issue(principal, key.public_key())),
        key=key_to_pem(key),
        revocations=RevocationList(_NO_FOLDER / "crl.pem", [root.certificate]),
    )


@cache
def signer(client: ClientId) -> CertificateSigner:
    """This client's pen."""
    return CertificateSigner(identity(Principal.client(client.name)))


def seals(task: Digest, role: Role) -> Seals:
    """A server's pen, and its eye for what servers sign."""
    pen = CertificateSigner(identity(Principal.service(role)))
    return Seals(task, role, pen, verifier())


@cache
def verifier() -> CertificateVerifier:
    """A server's eye."""
    return CertificateVerifier(identity(Principal.service(Role.SERVER_A)))
