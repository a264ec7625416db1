"""`precad certify`: options become a request, a request a document, a document tables or JSON."""
