"""The wire contracts and the code generated from them."""
