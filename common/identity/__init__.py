"""Who is at the other end: certificates, mutual TLS 1.3, and what each role may call."""
