"""How sequences are decoded, token by token."""
