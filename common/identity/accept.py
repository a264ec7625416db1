"""Taking a certificate that came back for a request: only beside its own key, of the known root."""

from pathlib import Path

from precad.common.durable import PUBLIC_MODE, write_file
from precad.common.errors import Misconfiguration
from precad.common.identity.certificate import own_key, read_certificates, read_file
from precad.common.identity.credentials import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    REVOCATION_FILE,
    Identity,
    check_certificate,
)
from precad.common.identity.deployment import REQUEST_FILE
from precad.common.identity.pki import read_request
from precad.common.identity.revocation import RevocationList
from precad.common.secret import Secret


def accept(folder: Path, offered: Path) -> Identity:
    """Put the certificate in ``offered`` beside the key in ``folder``, or change nothing.

    Args:
        folder: of the party; holds its key and, from its kit, the root that was read out.
        offered: ca.pem, cert.pem and crl.pem, as ``precad keys issue`` makes them.

    Returns:
        The party's identity, complete.

    Raises:
        Misconfiguration: the certificate is of another key, another party than was asked for,
            or another root than the folder has; or it doesn't count.
    """
    key = Secret(read_file(folder / KEY_FILE, "folder", "make the key with precad keys request"))
    remedy = "give the folder that precad keys issue made"
    files = {name: read_file(offered / name, "offered", remedy) for name in _FILES}
    source = str(offered / CERTIFICATE_FILE)
    chain = read_certificates(files[CERTIFICATE_FILE], source=source)
    own_key(key, chain[0], source=source)
    known = folder / CA_FILE
    if known.exists() and known.read_bytes() != files[CA_FILE]:
        raise Misconfiguration(
            "offered",
            str(offered / CA_FILE),
            f"is another root than {known}, which was read out to you: ask who sent it",
        )
    roots = read_certificates(files[CA_FILE], source=str(offered / CA_FILE))
    revocations = RevocationList(offered / REVOCATION_FILE, roots)
    principal = check_certificate(chain, roots, revocations, source=source)
    request = folder / REQUEST_FILE
    if request.exists():
        # The party that was asked for: the root may have been talked into another.
        read_request(request.read_bytes(), principal, source=str(request))
    for name in _FILES:
        write_file(folder / name, files[name], mode=PUBLIC_MODE)
    return Identity.load(folder)


_FILES = (CA_FILE, REVOCATION_FILE, CERTIFICATE_FILE)
"""The certificate last: a folder with one is whole."""
