"""The Engine service and its backends."""
