# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.common.identity.authority import (
    PARTY_DAYS as PARTY_DAYS,
)
from precad.common.identity.credentials import (
    CA_FILE as CA_FILE,
    Identity as Identity,
    read_coin_key as read_coin_key,
    replace_coin_key as replace_coin_key,
)
from precad.common.identity.deployment_keys import (
    AUTHORITY_FOLDER as AUTHORITY_FOLDER,
    Deployment as Deployment,
    create_local_keys as create_local_keys,
    summarise as summarise,
)
from precad.common.identity.endings import (
    ends_soon as ends_soon,
    tell_until as tell_until,
)
from precad.common.identity.mutual_tls import (
    Context as Context,
    FIRST_VERSION as FIRST_VERSION,
    GREETING as GREETING,
    WIRE_VERSION as WIRE_VERSION,
    add_port as add_port,
    check_own_key as check_own_key,
    check_version as check_version,
    greeted_version as greeted_version,
    of_connection as of_connection,
    open_channel as open_channel,
    require as require,
    why_unreachable as why_unreachable,
)
from precad.common.identity.party_certificate import (
    Principal as Principal,
    SERVING_ROLES as SERVING_ROLES,
    read_pem as read_pem,
)
from precad.common.identity.signatures import (
    CertificateSigner as CertificateSigner,
    CertificateVerifier as CertificateVerifier,
    SignedKind as SignedKind,
    certificates_of as certificates_of,
    server_signed_bytes as server_signed_bytes,
)
