"""The Files service."""
