"""What backends share that relay to a server which may be away, busy or frozen: docs/engines.md."""
