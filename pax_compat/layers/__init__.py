"""The layers, one subject a file."""
