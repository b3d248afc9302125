"""The kill matrix: for each point of the code where a process is made to die, the scenes that pass it."""

from __future__ import annotations

import msgspec

__all__ = ["CASES", "Case"]


class Case(msgspec.Struct, frozen=True):
    """A death: at the `passing`-th passing of `point` while `scene` is played (see test_kill_matrix.py)."""

    point: str
    scene: str
    passing: int = 1

    @property
    def name(self) -> str:
        """Name the case for a person."""
        return f"{self.point}-{self.scene}" + (f"-{self.passing}" if self.passing > 1 else "")


_SCENES: dict[str, tuple[str, ...]] = {
    "batch": (
        "batches:intended", "files:held", "batches:input-held", "batches:created", "gateway:created",
        "batches:piece-validated", "batches:validated", "batches:index-stored", "batches:planned",
        "scheduler:submission-stored", "batches:submitted",
        "scheduler:shards-claimed", "scheduler:rows-sent", "engine:rows-ended",
        "scheduler:journal-written", "scheduler:journal-synced", "scheduler:segments-committed",
        "batches:finalizing", "scheduler:sealing", "scheduler:sealed", "scheduler:sealed-blob-stored", "scheduler:seal-recorded",
        "batches:sealed", "files:adopted", "batches:output-adopted", "batches:both-adopted", "batches:ended",
        "scheduler:index-removed", "scheduler:submission-deleted", "batches:forgotten", "batches:index-removed",
        "files:released", "batches:released",
    ),
    "large": ("batches:piece-validated", "batches:index-stored", "scheduler:sealing", "scheduler:journal-synced"),
    "inline": ("batches:inline-stored", "batches:looked", "batches:created", "batches:own-file-adopted", "files:adopted"),
    "refused": ("batches:creation-doomed", "batches:creation-cleared"),
    "unmade": ("batches:revoked", "batches:creation-doomed", "batches:creation-cleared"),
    "answered_late": ("batches:begun",),
    "cancel": (
        "batches:cancelling", "scheduler:stop-stored", "scheduler:stopped", "batches:stopped", "scheduler:sealed",
        "scheduler:sealed-blob-stored", "batches:both-adopted", "batches:ended",
    ),
    "cancel_early": ("batches:cancelled-submitted", "scheduler:submission-stored"),
    "leased": ("scheduler:model-lease-stored", "scheduler:model-lease-ended"),
    "expire": ("batches:finalizing", "scheduler:stop-stored", "batches:stopped", "batches:sealed"),
    "upload": ("files:upload-received", "files:upload-stored", "files:upload-recorded"),
    "large_upload": ("files:upload-received", "files:upload-recorded"),
    "parts": (
        "files:part-received", "files:part-stored", "files:part-recorded", "files:joined", "files:upload-completed",
        "files:part-bytes-removed",
    ),
    "cancel_parts": ("files:upload-cancelled", "files:part-bytes-removed"),
    "delete": ("files:deleted", "files:bytes-removed"),
    "expired_file": ("files:expired", "files:bytes-removed"),
    "orphans": ("files:orphan-removed",),
    "old_journals": ("scheduler:journal-removed",),
    "recover": ("scheduler:recovered",),
}  # fmt: skip
_LATER = (
    Case("scheduler:sealed-blob-stored", "batch", 2), Case("files:adopted", "batch", 2), Case("scheduler:rows-sent", "batch", 3),
    Case("scheduler:journal-synced", "batch", 4), Case("scheduler:segments-committed", "large", 2),
    Case("engine:rows-ended", "batch", 5), Case("files:part-recorded", "parts", 2),
    Case("batches:input-held", "together", 2), Case("batches:created", "together", 3), Case("gateway:created", "together", 3),
)  # fmt: skip
CASES = [*(Case(point, scene) for scene, points in _SCENES.items() for point in points), *_LATER]
