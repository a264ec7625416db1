"""What servers, dealer and clients share: one folder or module per step of the data's way."""
