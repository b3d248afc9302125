"""The Batches service."""
