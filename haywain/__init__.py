"""The kernel that every process of the mesh shares; it imports none of them."""

__version__ = "0.1.0"
