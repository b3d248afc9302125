"""The Scheduler service."""
