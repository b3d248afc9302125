"""Rules: a new start of the engine's process."""

from __future__ import annotations

import asyncio

from engine.check.rule import Broken, NotSeen, Rule, expect
from engine.check.target import Restart, Target
from haywain import rpc
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["RULES", "by_command"]

_MOMENT_SECONDS = 0.15
_AGAIN_SECONDS = 0.1
_PATIENCES = 3
"""that a start may take: a model is loaded"""


async def restart(target: Target) -> None:
    """A restarted engine has its id, another incarnation and its models, and serves; the streams of before have ended."""
    if target.restart is None:
        raise NotSeen("no command was given that restarts it (--restart)")
    before = target.engine
    if not before.incarnation:
        raise NotSeen("it names no incarnation")
    async with target.calling() as caller:
        await caller.start(target.long("restart"))
        await caller.quiet(_MOMENT_SECONDS)
        await target.restart()
        await caller.until(lambda: caller.over, "an end of the stream that was open before the restart")
    engine = await _next(target, before.incarnation)
    expect(engine.engine_id == before.engine_id, f"the id {before.engine_id!r} after the restart", repr(engine.engine_id))
    models, were = (sorted(model.model for model in one.models) for one in (engine, before))
    expect(models == were, f"the models {', '.join(were)} after the restart", ", ".join(models) or "none")
    async with target.calling() as caller:
        (result,) = await caller.run(target.short())
        expect(result.status_code == 200, "200 after the restart", f"{result.status_code} {result.error.message}")
        await caller.close()


async def _next(target: Target, incarnation: str) -> pb.Engine:
    """Ask what it is until it is another incarnation: one that is still stopping may answer first. Raises Broken."""
    seconds = _PATIENCES * target.patience
    until = asyncio.get_running_loop().time() + seconds
    while True:
        answer = await rpc.call(target.stub.DescribeEngine, pb.DescribeEngineRequest(), timeout=seconds)
        engine: pb.Engine = answer.engine
        if engine.incarnation and engine.incarnation != incarnation:
            return engine
        if asyncio.get_running_loop().time() >= until:
            raise Broken("another incarnation after the restart", repr(engine.incarnation))
        await asyncio.sleep(_AGAIN_SECONDS)


def by_command(command: str) -> Restart:
    """Restart by a command of the shell."""

    async def run() -> None:
        process = await asyncio.create_subprocess_shell(
            command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        expect(status == 0, f"exit status 0 of {command!r}", status)

    return run


RULES: list[Rule] = [restart]
