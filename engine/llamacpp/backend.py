"""The llama.cpp backend: the engine process's side.

    submit ─▶ prepare (a thread: parse, render, tokenise) ─▶ waiting (by lane) ─▶ a decoder with room ─▶ events ─▶ Emit
                                                                  ▲                    │ dies
                                                                  └── other requests   ▼
                                                                           its requests: 503, retryable; it is started again

Decoders are processes of their own: llama.cpp answers some mistakes by ending the process, and one thread each is faster than one
process with all threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from engine import answers
from engine.backend import Emit
from engine.llamacpp import gpu, memory, policy, transcode, weights
from engine.llamacpp.embedding_model import POOLING
from engine.llamacpp.messages import Delta, Ended, Open
from engine.llamacpp.model import MAX_SLOTS
from engine.llamacpp.pool import Pool
from engine.llamacpp.prepare import REASONING, Prepared, Preparer
from engine.llamacpp.row import Row
from engine.llamacpp.twins import Twins
from engine.llamacpp.vocabulary import Vocabulary
from haywain import log
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import HaywainError, SettingsError
from haywain.settings import EngineSettings, LlamaCppSettings

__all__ = ["DEFAULT_SLOTS", "LlamaCppBackend", "cores", "create", "wanted"]

DEFAULT_CONTEXT: Final = 2_048
"""tokens a sequence, where neither settings nor model say less"""
DEFAULT_SLOTS: Final = 16
"""slots a decoder: more gain little on a CPU"""
DEFAULT_TEXTS: Final = 64
"""texts that are embedded at once, so that a step finds enough short ones"""
KV_BYTES: Final = 2**30
"""KV cache of all decoders together, where the settings leave the number of slots open"""
_log = log.get()


def create(settings: EngineSettings) -> LlamaCppBackend:
    """Make the backend. Reads the model's vocabulary, because the number of slots follows from it; raises SettingsError."""
    return LlamaCppBackend(settings.llamacpp)


class LlamaCppBackend:
    """A GGUF model in decoder processes."""

    name = "llamacpp"

    def __init__(self, settings: LlamaCppSettings, *, silence_seconds: float = 120.0) -> None:
        """Check the settings against the model. Raises SettingsError. A decoder whose step takes `silence_seconds` hangs."""
        self._path = Path(settings.model_path)
        weights.check(self._path)
        self._path = self._path.absolute()
        self._vocabulary = Vocabulary.load(self._path)
        self.version = f"llama-cpp-python {version('llama-cpp-python')}"
        settings = gpu.suited(settings, cores(), offered=gpu.offered())
        self._decoders = settings.workers
        self._wanted = wanted(settings, self._path, self._vocabulary, self._decoders)
        self._transcodes = transcode.wanted(settings.transcode, self._path, self._vocabulary)
        self._preparer = Preparer(
            self._vocabulary, self._wanted.context_length, embeds=bool(self._wanted.pooling), reasoning=settings.reasoning
        )
        self.slots = self._decoders * self._wanted.slots
        self.lookahead = self.slots
        self._model = settings.model
        self._fingerprint = ""
        self._twins = Twins(self)
        self._pool = self._twins.pool = Pool(self._wanted, self._decoders, self._twins, silence_seconds=silence_seconds)
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._rows: dict[int, Row] = {}
        self._row_of: dict[int, Row] = {}
        self._last_run = 0
        self._closed = False

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Load the model in every decoder and describe it. Raises SettingsError."""
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        digest = await asyncio.to_thread(weights.digest, self._path)
        self._fingerprint = f"fp_{digest.removeprefix('sha256:')[:12]}"
        copy = await transcode.copied(self._path, digest) if self._transcodes else None
        wanted = self._wanted if copy is None else msgspec.structs.replace(self._wanted, path=str(copy))
        needed = memory.need(wanted, self._vocabulary, self._decoders)
        memory.check(needed, memory.available())
        await self._pool.start(wanted.path)
        if copy is not None:
            digest += transcode.MARK
            self._fingerprint += "_f16"
        model, aliases = weights.model_ids(self._path, self._vocabulary.metadata("general.name"))
        if self._model and self._model != model:
            model, aliases = self._model, []
        _log.info(
            "model.loaded",
            model=model,
            decoders=self._decoders,
            slots=self.slots,
            context=self._wanted.context_length,
            transcoded=copy is not None,
            memory=str(needed),
        )
        description = pb.ModelDescription(
            model=model,
            aliases=aliases,
            digest=digest,
            context_length=self._wanted.context_length,
            deterministic=not self._wanted.cells and self._wanted.kv_type == policy.F16 and not self._wanted.gpu_layers,
            endpoints=self._preparer.endpoints,
            fields=self._preparer.fields,
            owned_by=self._vocabulary.metadata("general.organization") or "haywain",
            reuses_prefixes=True,
        )
        description.create_time.FromSeconds(int(self._path.stat().st_mtime))
        return [description]

    def submit(self, sequences: Sequence[pb.Sequence]) -> None:
        """Take sequences; never blocks."""
        rows = [Row(sequence, self._emit) for sequence in sequences]
        self._rows.update((row.sequence_id, row) for row in rows)
        self._preparing.submit(self._prepare, list(zip(rows, sequences, strict=True)))

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Stop these as soon as can be: at the end of the step that runs."""
        for sequence_id in sequence_ids:
            row = self._rows.get(sequence_id)
            if row is not None and not row.cancelled:
                row.cancelled = True
                self._twins.cancel(row.runs)

    async def close(self) -> None:
        """End the decoders; nothing is emitted afterwards."""
        self._closed = True
        await self._pool.close()
        await asyncio.to_thread(self._preparing.shutdown, cancel_futures=True)
        self._vocabulary.close()

    @property
    def load(self) -> pb.Load:
        """How busy the decoders are."""
        return self._pool.load

    @property
    def decoder_pids(self) -> list[int]:
        """Process ids of the decoders that live."""
        return self._pool.pids

    # -- in the thread that prepares ------------------------------------------------------------------------------------------

    def _prepare(self, arrived: list[tuple[Row, pb.Sequence]]) -> None:
        for row, sequence in arrived:
            outcome: Prepared | HaywainError
            try:
                outcome = self._preparer.prepare(sequence)
            except HaywainError as error:
                outcome = error
            except Exception:  # noqa: BLE001 - a defect here must cost one row, not the thread
                _log.exception("sequence.prepare_failed", bytes=len(sequence.request))
                outcome = HaywainError(code="engine_error")
            if not self._closed:
                self._loop.call_soon_threadsafe(self._prepared, row, outcome)

    # -- from the preparation and the decoders --------------------------------------------------------------------------------

    def _prepared(self, row: Row, outcome: Prepared | HaywainError) -> None:
        if self._closed:
            return
        if row.cancelled:
            self._refuse(row, answers.cancelled(row.sequence_id))
        elif isinstance(outcome, HaywainError):
            self._refuse(row, answers.error_result(row.sequence_id, outcome))
        else:
            begins = row.begin(outcome, self._last_run + 1, self._fingerprint)
            self._last_run += len(begins)
            self._row_of.update((begin.run, row) for begin in begins)
            self._twins.submit(begins)

    def told(self, event: Delta | Ended) -> None:
        """Pass news of a run on to its row."""
        row = self._row_of.get(event.run)
        if row is None or self._closed:
            return
        if isinstance(event, Delta):
            row.delta(event)
            return
        del self._row_of[event.run]
        if row.ended(event):
            del self._rows[row.sequence_id]

    def lost(self, runs: list[int], how: str) -> None:
        """Answer the rows of a decoder that died; their runs elsewhere are stopped."""
        for row in {id(row): row for run in runs if (row := self._row_of.get(run)) is not None}.values():
            for run in row.runs:
                self._row_of.pop(run, None)
            del self._rows[row.sequence_id]
            row.lose(how)
            self._twins.cancel(row.runs)

    def gave_up(self, reason: str) -> None:
        """End the engine: its supervisor starts it again, and it says at start what is wrong."""
        self._emit.died(reason)

    def _refuse(self, row: Row, result: pb.SequenceResult) -> None:
        del self._rows[row.sequence_id]
        row.refuse(result)


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wanted(settings: LlamaCppSettings, path: Path, vocabulary: Vocabulary, decoders: int) -> Open:
    """Decide what a decoder is to hold."""
    trained = vocabulary.number("context_length")
    if trained and settings.context_length > trained:
        raise SettingsError(f"engine.llamacpp.context_length is {settings.context_length}, but the model's is {trained}")
    context = settings.context_length or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if settings.reasoning not in REASONING:
        raise SettingsError(f"engine.llamacpp.reasoning is {settings.reasoning!r}, expected one of: {', '.join(REASONING)}")
    pooling = _pooling(settings.pooling, vocabulary)
    _check_kv_type(settings, pooling, vocabulary)
    bytes_per_token = vocabulary.kv_bytes_per_token(policy.KV_TYPES[settings.kv_type])
    usual = policy.slots(DEFAULT_SLOTS, bytes_per_token, context, KV_BYTES // decoders)
    slots = settings.slots or (DEFAULT_TEXTS if pooling else DEFAULT_SLOTS if settings.kv_tokens else usual)
    if not 1 <= slots <= MAX_SLOTS:
        raise SettingsError(f"engine.llamacpp.slots is {slots}, expected 1 to {MAX_SLOTS}, or 0 for as many as fit")
    if settings.layout not in policy.LAYOUTS:
        expected = ", ".join(policy.LAYOUTS)
        raise SettingsError(f"engine.llamacpp.layout is {settings.layout!r}, expected one of: {expected}")
    layout = policy.EXACT if settings.deterministic else settings.layout
    step = max(settings.batch_tokens, slots, policy.CHUNK + 1)
    pack = 0 if settings.deterministic else settings.pack_tokens
    cells = _cells(settings, 0 if pooling else slots * context, context)
    kv_type, gpu_layers = settings.kv_type, settings.gpu_layers
    return Open(str(path), slots, context, step, settings.threads, layout, pooling, pack, cells, kv_type, gpu_layers)


def _check_kv_type(settings: LlamaCppSettings, pooling: str, vocabulary: Vocabulary) -> None:
    kind = settings.kv_type
    if kind not in policy.KV_TYPES:
        raise SettingsError(f"engine.llamacpp.kv_type is {kind!r}, expected one of: {', '.join(policy.KV_TYPES)}")
    if kind == policy.F16:
        return
    if pooling:
        raise SettingsError(f"engine.llamacpp.kv_type is {kind!r}, but a model that embeds keeps nothing in a KV cache")
    # llama.cpp has it with flash attention only.
    if settings.deterministic or settings.kv_tokens or settings.layout not in {policy.AUTO, "flash"}:
        raise SettingsError(
            f"engine.llamacpp.kv_type {kind} is for the layout 'flash' only: not with deterministic, kv_tokens or another layout"
        )
    if any(size % 32 for size in vocabulary.head_sizes):
        raise SettingsError(f"engine.llamacpp.kv_type {kind} needs heads of a multiple of 32 numbers, which the model's aren't")


def _cells(settings: LlamaCppSettings, most: int, context: int) -> int:
    """Tell how many cells of KV cache all slots share; 0 where each has its own."""
    cells = settings.kv_tokens
    if not 0 < cells < most:
        return 0
    if cells < context:
        raise SettingsError(f"engine.llamacpp.kv_tokens is {cells}, but a sequence may take context_length, {context}")
    if settings.deterministic or settings.layout not in {policy.AUTO, "unified"}:
        raise SettingsError("engine.llamacpp.kv_tokens is shared in the layout 'unified' only, which can't be deterministic")
    return cells


def _pooling(wanted: str, vocabulary: Vocabulary) -> str:
    """Tell what makes a vector of a text; empty for a model that generates."""
    if wanted not in {"auto", "none", *POOLING}:
        raise SettingsError(f"engine.llamacpp.pooling is {wanted!r}, expected one of: auto, {', '.join(POOLING)}, none")
    if wanted != "auto":
        return "" if wanted == "none" else wanted
    kind = vocabulary.number("pooling_type")
    name = next((name for name, number in POOLING.items() if number == kind), "")
    if kind and not name:
        raise SettingsError(f"the model's pooling_type is {kind}: rerankers are not served")
    if not name and vocabulary.metadata(f"{vocabulary.metadata('general.architecture')}.attention.causal") == "false":
        raise SettingsError("the model doesn't generate, and says no pooling for embeddings: set engine.llamacpp.pooling")
    return name
