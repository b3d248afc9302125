"""Checks any engine, in any language, against the rules of docs/engines.md, over gRPC: `haywain engines check ADDRESS`."""
