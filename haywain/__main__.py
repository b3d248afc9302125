"""The console script `haywain`: reads the settings once, then starts one process of the mesh, all of them, or a client command.

This is the only place that knows every part; it imports a part only when that part is what was asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from haywain import __version__, settings
from haywain.errors import HaywainError, SettingsError

__all__ = ["main"]

PROCESSES = ("files", "batches", "scheduler", "gateway", "engine", "envoy")
SETTINGS_EXIT = 78
"""Exit status of a process whose settings can't be used (EX_CONFIG): starting it again is of no use."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except SettingsError as error:
        print(f"haywain {options.name}: {error.message}", file=sys.stderr)
        return SETTINGS_EXIT if options.name in PROCESSES else 1
    except HaywainError as error:
        print(f"haywain {options.name}: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        if options.name in PROCESSES:
            raise
        print(f"haywain {options.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("haywain", description="A self-hosted, OpenAI-compatible batch inference mesh.")
    parser.add_argument("--version", action="version", version=f"haywain {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")

    up = _command(commands, "up", "start the whole mesh on this machine", _up)
    up.add_argument("--port", type=int, metavar="N", help="port of the REST and gRPC address (10900)")
    up.add_argument("--engine", choices=("llamacpp", "triton", "upstream", "echo"), help="backend (llamacpp)")
    up.add_argument("--replicas", action="append", default=[], metavar="PROCESS=N", help="several of a process: scheduler=2")
    up.add_argument("--model", metavar="PATH", help="a GGUF file (the demo model)")

    run = _command(commands, "run", "run a JSONL file of requests as a batch and download the results", _run, configured=False)
    run.add_argument("input", type=Path, metavar="INPUT.jsonl")
    run.add_argument("-o", "--output", type=Path, required=True, metavar="OUTPUT.jsonl")
    run.add_argument("--errors", type=Path, metavar="FILE", help="where failed rows go (OUTPUT with .errors before its suffix)")
    run.add_argument("--url", default="http://127.0.0.1:10900", help="the mesh (%(default)s)")
    run.add_argument("--endpoint", default="/v1/chat/completions", help="what every line asks for (%(default)s)")
    run.add_argument("--model", help="model of lines that name none")
    run.add_argument("--temperature", type=float)
    run.add_argument("--top-p", type=float)
    run.add_argument("--top-k", type=int)
    run.add_argument("--max-decoding-length", type=int, metavar="TOKENS")
    run.add_argument("--priority", choices=("standard", "expedited"))

    show = _command(commands, "show", "print a results file readably", _show, configured=False)
    show.add_argument("input", type=Path, metavar="INPUT.jsonl")
    show.add_argument("output", type=Path, metavar="OUTPUT.jsonl")
    show.add_argument("--rows", type=int, default=5, help="how many (%(default)s)")

    _add_engines(commands)

    model = _command(commands, "demo-model", "fetch the demo model and print its path", _demo_model, configured=False)
    model.add_argument("--quiet", action="store_true", help="print the path only")

    _command(commands, "config", "print the settings in force", _config)
    for process in PROCESSES:
        alone = _command(commands, process, f"start the {process} process alone", _process)
        if process == "scheduler":
            alone.add_argument("--replica", type=int, default=1, metavar="N", help="which of scheduler.replicas (1)")
        if process == "engine":
            about = "measure which settings suit this machine and model; or check an engine, as `haywain engines check` does"
            alone.add_argument("action", nargs="?", choices=("tune", "check"), help=about)
            alone.add_argument("engine", nargs="?", metavar="ADDRESS", help="of check: HOST:PORT or unix:PATH")
            alone.add_argument("--model", metavar="PATH", help="a GGUF file; of check: a model's id")
            alone.add_argument("--seconds", type=float, default=60.0, help="of tune and check: how long, about (%(default)s)")
            alone.add_argument("--json", action="store_true", help="of check: print one JSON object")
            _add_restart(alone)
    return parser


def _add_engines(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "list the engines of a mesh, add, drain or remove one, or check one against the rules"
    engines = _command(commands, "engines", about, _engines, configured=False)
    engines.add_argument("action", choices=("list", "add", "drain", "remove", "check"))
    engines.add_argument(
        "engine", nargs="?", default="", metavar="ENGINE",
        help="which to drain (it ends what it runs and gets no more) or remove (so that it is forgotten, too); "
        "of add and check: its own address, HOST:PORT or unix:PATH",
    )  # fmt: skip
    engines.add_argument("--address", default="127.0.0.1:10900", metavar="HOST:PORT", help="the mesh (%(default)s)")
    engines.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="wait until the engine runs nothing")
    engines.add_argument("--model", default="", metavar="ID", help="of check: which model to ask (the first)")
    engines.add_argument(
        "--seconds", type=float, default=60.0, help="of check: how long at most; more for a slow model (%(default)s)"
    )
    engines.add_argument("--json", action="store_true", help="of list and check: print one JSON object")
    _add_restart(engines)


def _add_restart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--restart", default="", metavar="COMMAND", help="of check: restarts the engine; run once, at the end")


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    command: Callable[[argparse.Namespace], int],
    configured: bool = True,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=command)
    if configured:
        parser.add_argument("--data", metavar="DIR", help="the data folder (./haywain-data)")
        parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
        parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="one setting; repeatable")
        parser.add_argument("--resolved", type=Path, help=argparse.SUPPRESS)
    return parser


def _settings(options: argparse.Namespace) -> settings.Settings:
    from haywain import replicas

    if options.resolved:
        return settings.load(file=options.resolved)
    sets = [*options.set, *map(replicas.setting, getattr(options, "replicas", []))]
    named = {"data": "data_dir", "port": "envoy.port", "engine": "engine.backend", "model": "engine.llamacpp.model_path"}
    sets += [f"{key}={getattr(options, flag)}" for flag, key in named.items() if getattr(options, flag, None) is not None]
    return settings.load(file=options.config, env=os.environ, sets=sets)


def _process(options: argparse.Namespace) -> int:
    from haywain import log, logfiles, orphans, replicas, rpc

    if getattr(options, "action", None) == "tune":
        return _tune(options)
    if getattr(options, "action", None) == "check":
        return _check(options)
    if getattr(options, "engine", ""):
        raise SettingsError("an ADDRESS is for check only")
    orphans.die_with_parent()
    chosen, name = _settings(options), options.name
    if name == "scheduler":
        chosen = replicas.as_replica(chosen, name, options.replica)
        name = name if options.replica == 1 else f"{name}-{options.replica}"
    log.configure(chosen.log, name)
    if options.name == "envoy":
        from gateway import envoy

        envoy.exec_envoy(chosen, os.environ.get(logfiles.VARIABLE, ""))
    logfiles.follow()
    serve = _serve(options.name)
    rpc.run(lambda stopping: serve(chosen, stopping))
    return 0


def _tune(options: argparse.Namespace) -> int:
    from engine.llamacpp.tune import tune
    from engine.tuned import path
    from haywain import demo_model, log

    chosen = _settings(options)
    if not chosen.engine.llamacpp.model_path:
        options.model = str(demo_model.fetch())
        chosen = _settings(options)
    log.configure(settings.LogSettings(level="error"), options.name)
    tuned = asyncio.run(tune(chosen, options.seconds, lambda line: print(line, flush=True)))
    told = ", ".join(f"{name} = {value}" for name, value in tuned.chosen.items()) or "nothing better than the defaults"
    print(f"{told}; written to {path(chosen)} for the next start")
    return 0


def _serve(name: str) -> Callable[[settings.Settings, asyncio.Event], Awaitable[None]]:
    match name:
        case "files":
            from services.files import service as files

            return files.serve
        case "batches":
            from services.batches import service as batches

            return batches.serve
        case "scheduler":
            from services.scheduler import service as scheduler

            return scheduler.serve
        case "engine":
            from engine import service as engine

            return engine.serve
        case _:
            from gateway import service as gateway

            return gateway.serve


def _up(options: argparse.Namespace) -> int:
    from haywain import up

    return up.command(_settings(options))


def _config(options: argparse.Namespace) -> int:
    print(settings.dump(_settings(options), secrets=False), end="")
    return 0


def _run(options: argparse.Namespace) -> int:
    from haywain import run

    return run.command(options)


def _show(options: argparse.Namespace) -> int:
    from haywain import show

    return show.command(options.input, options.output, options.rows)


def _engines(options: argparse.Namespace) -> int:
    from haywain import engines

    if (options.action != "list") != bool(options.engine):
        needed = "the ADDRESS of an engine" if options.action == "add" else "an ENGINE"
        raise SettingsError("list takes no ENGINE" if options.action == "list" else f"{options.action} needs {needed}")
    if options.action == "check":
        return _check(options)
    return engines.command(options.address, options.action, options.engine, options.wait, as_json=options.json)


def _check(options: argparse.Namespace) -> int:
    from engine.check import command

    if not options.engine:
        raise SettingsError("check needs the ADDRESS of an engine")
    return command.command(options.engine, options.model or "", options.seconds, options.json, options.restart)


def _demo_model(options: argparse.Namespace) -> int:
    from haywain import demo_model

    print(demo_model.fetch(quiet=options.quiet))
    return 0


if __name__ == "__main__":
    sys.exit(main())
