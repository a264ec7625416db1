"""TLS 1.3 or nothing, although gRPC for Python has no setting for it.

gRPC speaks TLS 1.2 and 1.3 and takes the list of cipher suites for 1.2 alone from one environment
variable; those of 1.3 are fixed inside BoringSSL. A list of one suite that needs a pre-shared key,
which gRPC can't be given, leaves no TLS 1.2 handshake that could succeed, as client or as server
and whatever the certificates hold. gRPC reads the variable when its native module is first
imported, hence precad sets it when the package itself is imported.
"""

import os
import sys

from precad.common.errors import Misconfiguration

CIPHER_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
UNUSABLE_IN_TLS12 = "ECDHE-PSK-AES128-CBC-SHA"


def demand_tls13() -> None:
    """Set gRPC's cipher variable, unless gRPC is imported already and wouldn't read it."""
    if "grpc._cython.cygrpc" not in sys.modules:
        os.environ[CIPHER_VARIABLE] = UNUSABLE_IN_TLS12


def check_tls13() -> None:
    """Called before any port or channel with TLS is opened.

    Raises:
        Misconfiguration: gRPC was imported before precad and may speak TLS 1.2.
    """
    value = os.environ.get(CIPHER_VARIABLE)
    if value != UNUSABLE_IN_TLS12:
        raise Misconfiguration(
            CIPHER_VARIABLE,
            value,
            "gRPC was imported before precad and would still speak TLS 1.2: import precad first, "
            f"or start the process with {CIPHER_VARIABLE}={UNUSABLE_IN_TLS12}",
        )
