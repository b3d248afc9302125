"""What a model in Triton takes and gives, as its metadata and configuration tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Interface", "Tensor"]

_MANY_SLOTS = 64
"""for a model that does its own batching and doesn't say how much of it"""


class Tensor(msgspec.Struct, frozen=True):
    """An input or an output."""

    name: str
    datatype: str
    rank: int
    """of what goes over the wire, the batch dimension included"""
    required: bool = False

    def shape(self, count: int) -> list[int]:
        """Give the shape of `count` values."""
        return [1] * (self.rank - 1) + [count] if self.rank else []

    def __str__(self) -> str:
        """Show it in a message."""
        return f"{self.name} {self.datatype}"


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A model."""

    model: str
    version: str
    """the newest that is served"""
    platform: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    batch: int
    """requests that Triton puts together; 0: the model gets each as it is"""
    instances: int
    decoupled: bool
    parameters: Mapping[str, str]

    @classmethod
    def of(cls, metadata: Any, config: Any) -> Interface:
        """Read a ModelMetadataResponse and a ModelConfig."""
        required = {tensor.name for tensor in config.input if not tensor.optional}
        return cls(
            model=metadata.name,
            version=max(metadata.versions, key=lambda text: (len(text), text), default=""),
            platform=metadata.platform or config.backend,
            inputs={t.name: Tensor(t.name, t.datatype, len(t.shape), t.name in required) for t in metadata.inputs},
            outputs={t.name: Tensor(t.name, t.datatype, len(t.shape)) for t in metadata.outputs},
            batch=config.max_batch_size,
            instances=sum(max(1, group.count) for group in config.instance_group) or 1,
            decoupled=config.model_transaction_policy.decoupled,
            parameters={key: value.string_value for key, value in config.parameters.items()},
        )

    @property
    def slots(self) -> int:
        """Guess how many requests it works on at a time."""
        if self.batch > 1:
            return self.batch * self.instances
        return _MANY_SLOTS if self.decoupled else self.instances

    def __str__(self) -> str:
        """List the tensors, for a message."""
        inputs = ", ".join(map(str, self.inputs.values())) or "none"
        outputs = ", ".join(map(str, self.outputs.values())) or "none"
        return f"inputs {inputs}; outputs {outputs}"
