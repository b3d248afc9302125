"""The Triton backend: a model of an NVIDIA Triton Inference Server, over gRPC."""
