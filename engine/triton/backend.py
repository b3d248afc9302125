"""The Triton backend: the engine process's side.

    submit ─▶ prepare: parse, render, fill tensors ─▶ row: a run for each choice ─▶ pump ─▶ ModelStreamInfer ─▶ Emit

What a model takes is found at the start and looked at every two seconds: one that has other tensors, or another version, ends the
engine, which is started again and describes what is there now.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from engine import answers
from engine.backend import Emit
from engine.relay.arrival import arrival
from engine.triton import contract, probe
from engine.triton.client import Client
from engine.triton.fitted import Fitted, find
from engine.triton.interface import Interface
from engine.triton.prepare import Preparer
from engine.triton.pump import Pump
from engine.triton.row import Row
from haywain import clock, log
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import HaywainError, SettingsError, Unavailable
from haywain.settings import EngineSettings, TritonSettings

__all__ = ["TritonBackend", "create"]

_MAX_SLOTS: Final = 4_096
_log = log.get()


def create(settings: EngineSettings) -> TritonBackend:
    """Make the backend. Raises SettingsError."""
    return TritonBackend(settings.triton)


class TritonBackend:
    """A model of a Triton server."""

    name = "triton"

    def __init__(self, settings: TritonSettings) -> None:
        """Nothing is opened yet. Raises SettingsError."""
        probe.split(settings.url)
        if not 0 <= settings.slots <= _MAX_SLOTS:
            raise SettingsError(f"engine.triton.slots is {settings.slots}, expected 1 to {_MAX_SLOTS}, or 0 for the model's own")
        self.version = f"tritonclient {version('tritonclient')}"
        self.slots = settings.slots or 1
        self._settings = settings
        self._rows: dict[int, Row] = {}
        self._closed = False
        self._client: Client | None = None
        self._pump: Pump | None = None
        self._watching: asyncio.Task[None] | None = None
        self._emit: Emit
        self._preparer: Preparer

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Find the model and its contract; waits while the server, or the model, isn't there. Raises SettingsError."""
        self._emit = emit
        contract.of_settings(self._settings.contract)
        fitted, server = await arrival(self._found, name="triton", url=self._settings.url)
        self._preparer = Preparer(fitted, self._settings)
        interface = fitted.interface
        self.version = f"triton {server}"
        self.slots = self._settings.slots or min(_MAX_SLOTS, interface.slots)
        self._pump = Pump(
            self._opened(),
            fitted,
            self.slots,
            request_seconds=self._settings.request_seconds,
            hold_seconds=self._settings.hold_seconds,
        )
        self._watching = asyncio.create_task(self._watch(self._pump, interface), name="triton-watch")
        _log.info(
            "model.found",
            model=interface.model,
            version=interface.version,
            contract=fitted.name,
            slots=self.slots,
            fields=self._preparer.fields,
            chats=bool(self._settings.template),
        )
        return [self._described(interface)]

    def submit(self, sequences: Sequence[pb.Sequence]) -> None:
        """Prepare and send."""
        for sequence in sequences:
            try:
                prepared = self._preparer.prepare(sequence)
            except HaywainError as error:
                self._emit.result(answers.error_result(sequence.sequence_id, error))
                continue
            except Exception:  # noqa: BLE001 - a defect here must cost one row
                _log.exception("sequence.prepare_failed", bytes=len(sequence.request))
                self._emit.result(answers.engine_error(sequence.sequence_id, "internal error"))
                continue
            row = Row(sequence, prepared, self._emit, self._over)
            self._rows[row.sequence_id] = row
            row.begin()
            self._running.submit(row.runs)

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Break these off; Triton sees the call cancelled."""
        for sequence_id in sequence_ids:
            row = self._rows.get(sequence_id)
            if row is not None:
                row.cancel()

    async def close(self) -> None:
        """Break everything off."""
        self._closed = True
        self._rows.clear()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._pump is not None:
            await self._pump.close()
        if self._client is not None:
            await self._client.close()

    # -- inside ---------------------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Pump:
        if self._pump is None:
            raise RuntimeError("not started")
        return self._pump

    def _over(self, row: Row) -> None:
        self._rows.pop(row.sequence_id, None)
        if row.unfinished:
            self._running.cancel(row.runs)

    def _opened(self) -> Client:
        if self._client is None:
            self._client = Client(self._settings)
        return self._client

    async def _found(self) -> tuple[Fitted, str]:
        """Find the model. Raises Unavailable while it may still come, SettingsError when it won't."""
        await probe.check(self._settings)
        client = self._opened()
        server = await client.server()
        states = await client.models()
        name = self._settings.model
        if name and name not in states:
            raise SettingsError(f"engine.triton.model {name!r} is not in Triton at {self._settings.url}: {_listed(states)}")
        if not name:
            return await self._only(client, states), server
        if states[name] != "READY" and not await client.ready(name):
            raise Unavailable(f"the model {name!r} is not loaded ({states[name] or 'never was'})")
        return find(await self._interface(client, name), self._settings.contract), server

    async def _interface(self, client: Client, name: str) -> Interface:
        try:
            return await client.interface(name)
        except Unavailable as error:
            wanted = self._settings.version
            if wanted and f"version {wanted} is not found" in error.message:
                raise SettingsError(f"engine.triton.version {wanted!r}: {error.message}") from None
            raise

    async def _only(self, client: Client, states: dict[str, str]) -> Fitted:
        """Find the only loaded model that fits a contract."""
        ready = [name for name, state in states.items() if state == "READY"]
        if not ready:
            raise Unavailable(f"no model is loaded: {_listed(states)}")
        fits, reasons = [], []
        for name in ready:
            try:
                fits.append(find(await client.interface(name), self._settings.contract))
            except SettingsError as error:
                reasons.append(error.message)
        if len(fits) > 1:
            names = ", ".join(f"{fitted.interface.model} ({fitted.name})" for fitted in fits)
            raise SettingsError(
                f"several models of Triton at {self._settings.url} fit, choose one with engine.triton.model: {names}"
            )
        if not fits:
            raise SettingsError("; ".join(reasons))
        return fits[0]

    async def _watch(self, pump: Pump, interface: Interface) -> None:
        async def same() -> None:
            found = await self._opened().interface(interface.model)
            if found != interface:
                raise _ChangedError

        try:
            while True:
                try:
                    await pump.watch(same)
                except Unavailable:
                    continue  # away again
        except _ChangedError:
            self._emit.died(f"the model {interface.model!r} has another version or other tensors now")
        except Exception as error:  # noqa: BLE001 - without it nobody would notice that the model is back
            _log.exception("triton.watch_failed")
            self._emit.died(f"looking after the model failed: {error!r}")

    def _described(self, interface: Interface) -> pb.ModelDescription:
        told = hashlib.sha256(repr(interface).encode()).hexdigest()[:12]
        return pb.ModelDescription(
            model=self._settings.served_as or interface.model,
            digest=f"triton:{interface.model}:{interface.version}:{told}",
            context_length=self._settings.context_length,
            endpoints=self._preparer.endpoints,
            fields=self._preparer.fields,
            create_time=clock.timestamp(float(int(time.time()))),
            owned_by="triton",
            reuses_prefixes=True,  # vLLM and TensorRT-LLM do
        )


class _ChangedError(Exception):
    """The model isn't the one that was described."""


def _listed(states: dict[str, str]) -> str:
    if not states:
        return "its repository is empty"
    return "it has " + ", ".join(f"{name} ({state.lower() or 'not loaded'})" for name, state in sorted(states.items())[:20])
