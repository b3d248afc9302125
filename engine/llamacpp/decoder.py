"""A decoder: a process of its own with one model, fed through an inherited socket.

    python -m engine.llamacpp.decoder FD

The first message is Open; Ready or Refused answers it. When the other end closes, the decoder ends.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.llamacpp import gpu
from engine.llamacpp.embedder import Embedder
from engine.llamacpp.embedding_model import EmbeddingModel
from engine.llamacpp.loop import Loop
from engine.llamacpp.messages import LENGTH, URGENT, Begin, Cancel, Open, Ready, Refused, ToDecoder, frame, to_decoder
from engine.llamacpp.model import Cache, Model
from engine.llamacpp.tally import Tally, Usage
from haywain import logfiles, orphans
from haywain.errors import HaywainError

__all__ = ["main"]

_ALIVE_SECONDS: Final = 1.0
_COUNT_SECONDS: Final = 1.0
_MOMENT_SECONDS: Final = 0.01
"""after which no more rows are waited for, when none came in it"""
_GATHERING_SECONDS: Final = 0.1
"""that an idle decoder waits at most, for rows that follow the first one"""

Inbox = queue.SimpleQueue[list[ToDecoder] | None]


def main() -> None:
    """Run until the other end closes."""
    orphans.die_with_parent()
    logfiles.follow()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, which then ends its decoders
    with socket.socket(fileno=int(sys.argv[1])) as link:
        inbox: Inbox = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(link, inbox), name="receive", daemon=True).start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _serve(link, inbox)


def _serve(link: socket.socket, inbox: Inbox) -> None:
    first = inbox.get()
    if not first or not isinstance(first[0], Open):
        return
    wanted = first[0]
    try:
        layers = gpu.layers(wanted)
        model = _model(wanted, layers)
        model.warm_up()
    except HaywainError as error:
        link.sendall(frame([Refused(error.message)]))
        return
    with contextlib.closing(model):
        link.sendall(frame([Ready(model.slots, model.context_length, layers)]))
        if isinstance(model, EmbeddingModel):
            _run(link, inbox, Embedder(model, wanted.pack), lambda: Usage(0, 0, 0))
        else:
            loop = Loop(model, wanted.layout)
            _run(link, inbox, loop, lambda: Usage(loop.running, _held(model), model.chosen_from, model.seconds))


def _held(model: Model) -> int:
    """Count the tokens in the KV cache."""
    slots = range(model.slots)
    return model.used_by(slots) if model.overcommitted else sum(map(model.length, slots))


def _model(wanted: Open, layers: int) -> Model | EmbeddingModel:
    path, slots, length = Path(wanted.path), wanted.slots, wanted.context_length
    step, threads, pooling = wanted.batch_tokens, wanted.threads, wanted.pooling
    if pooling:
        return EmbeddingModel(path, slots=slots, context_length=length, threads=threads, pooling=pooling, gpu_layers=layers)
    cache = Cache(wanted.cells, wanted.kv_type, layers)
    return Model(path, slots=slots, context_length=length, batch_tokens=step, threads=threads, cache=cache)


def _run(link: socket.socket, inbox: Inbox, loop: Loop | Embedder, usage: Callable[[], Usage]) -> None:
    """Step until the other end closes."""
    tally = Tally(usage())
    told = counted = time.monotonic()
    while (messages := _arrived(inbox, wait=loop.idle)) is not None:
        loop.accept(messages)
        began = time.monotonic()
        events = loop.step()
        now = time.monotonic()
        tally.stepped(now - began)
        if loop.idle or now - counted > _COUNT_SECONDS:
            events.append(tally.take(usage()))
            counted = now
        # An empty frame says that it is alive, though there is nothing to tell.
        if events or now - told > _ALIVE_SECONDS:
            link.sendall(frame(events))
            told = now


def _arrived(inbox: Inbox, *, wait: bool) -> list[Begin | Cancel] | None:
    """Take all that came since the last step; None when nothing will come any more.

    The first rows of a batch are given a moment to be many: how they are computed follows from all of them.
    """
    messages: list[Begin | Cancel] = []
    gathers, patience = wait, None
    until = 0.0
    with contextlib.suppress(queue.Empty):
        while True:
            batch = inbox.get(wait, patience)
            if batch is None:
                return None
            messages += (message for message in batch if not isinstance(message, Open))
            until = until or time.monotonic() + _GATHERING_SECONDS
            wait = gathers and time.monotonic() < until and not any(map(_is_urgent, messages))
            patience = _MOMENT_SECONDS
    return messages


def _is_urgent(message: Begin | Cancel) -> bool:
    return isinstance(message, Cancel) or message.lane <= URGENT


def _receive(link: socket.socket, inbox: Inbox) -> None:
    try:
        while (head := _exactly(link, LENGTH)) and (body := _exactly(link, int.from_bytes(head, "little"))):
            inbox.put(to_decoder.decode(body))
    finally:
        inbox.put(None)


def _exactly(link: socket.socket, size: int) -> bytes:
    """Read so many bytes; none at the end of the stream."""
    data = bytearray()
    while len(data) < size:
        try:
            part = link.recv(min(size - len(data), 1 << 20))
        except OSError:
            return b""
        if not part:
            return b""
        data += part
    return bytes(data)


if __name__ == "__main__":
    main()
