"""What is claimed of questions, measured in pieces that are kept as they are done."""
