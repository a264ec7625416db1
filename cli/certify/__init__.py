"""`precad certify`: options become a request, a request a document, a document tables or JSON."""

from precad.cli.certify.command import certify

__all__ = ["certify"]
