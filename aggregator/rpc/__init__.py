"""What a server process speaks over gRPC: with owners, operators, peer and dealer."""
