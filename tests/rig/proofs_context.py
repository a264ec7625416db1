"""What a bare client asks both servers for before it proves: an owner takes it from its
statements."""

from precad.client.both_servers import for_proof
from precad.client.connection import Servers
from precad.common.identifiers import Role
from precad.common.wire.messages import Opening
from precad.norm_check.proof_submission import ForProof


def stated_for_proof(
    servers: Servers, attempt: int, opening_a: bytes | None = None
) -> ForProof | None:
    """None where the task has no proofs; server A's opening may have come before."""
    if servers.task.proof is None:
        return None
    opening_a = opening_a or servers.opening(Role.SERVER_A, attempt)
    opening_b = servers.opening(Role.SERVER_B, attempt)
    return for_proof(
        Opening.checked(servers.verifier, Role.SERVER_A, opening_a),
        Opening.checked(servers.verifier, Role.SERVER_B, opening_b),
    )
