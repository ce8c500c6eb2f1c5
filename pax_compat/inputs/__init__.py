"""Inputs that come with the framework."""
