"""Sequences relayed to an OpenAI-compatible HTTP server: vLLM, SGLang, llama-server, TGI, a paid API, another Haywain."""
