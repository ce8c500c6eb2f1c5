"""Lingvo's layers and tasks as pure functions of their variables."""
