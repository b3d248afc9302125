"""The OpenAI REST surface: JSON, multipart and server-sent events in front of the typed services."""
