# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.common.identity.authority import (
    Authority as Authority,
    PARTY_DAYS as PARTY_DAYS,
    Public as Public,
    key_to_pem as key_to_pem,
    make_request as make_request,
    new_key as new_key,
    read_request as read_request,
    revoked_entry as revoked_entry,
    to_pem as to_pem,
)
from precad.common.identity.credentials import (
    CA_FILE as CA_FILE,
    CERTIFICATE_FILE as CERTIFICATE_FILE,
    Identity as Identity,
    KEY_FILE as KEY_FILE,
    REVOCATION_FILE as REVOCATION_FILE,
    check_certificate as check_certificate,
    how_to_renew as how_to_renew,
    make_coin_key as make_coin_key,
    publish as publish,
    read_coin_key as read_coin_key,
    replace_coin_key as replace_coin_key,
    write_key as write_key,
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
    BOTH_ENDS as BOTH_ENDS,
    Context as Context,
    FIRST_VERSION as FIRST_VERSION,
    GREETING as GREETING,
    WIRE_VERSION as WIRE_VERSION,
    Why as Why,
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
    MALFORMED as MALFORMED,
    Principal as Principal,
    SERVING_ROLES as SERVING_ROLES,
    certificates_in as certificates_in,
    check_algorithm as check_algorithm,
    check_purpose as check_purpose,
    check_serving as check_serving,
    dns_names as dns_names,
    has_chain as has_chain,
    is_authority as is_authority,
    is_encrypted as is_encrypted,
    key_passphrase as key_passphrase,
    own_key as own_key,
    principal_of as principal_of,
    private_key as private_key,
    read_certificates as read_certificates,
    read_pem as read_pem,
    require_whole as require_whole,
    validity_fault as validity_fault,
)
from precad.common.identity.revocation_list import (
    RevocationList as RevocationList,
    newest_lists as newest_lists,
    read_revocation_lists as read_revocation_lists,
)
from precad.common.identity.signatures import (
    CertificateSigner as CertificateSigner,
    CertificateVerifier as CertificateVerifier,
    SignedKind as SignedKind,
    certificates_of as certificates_of,
    server_signed_bytes as server_signed_bytes,
)
