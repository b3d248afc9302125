"""A storm: clients at work, a watcher who looks 200 times a second, and processes that are killed, stopped and woken under them.

Everything random comes from one seed. Whatever breaks an invariant is a line in `Ledger.problems`.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import psutil
from mesh import PROCESSES, TERMINAL, Mesh, chat_row, jsonl

__all__ = ["Client", "Ledger", "Watcher", "Weather"]

_AFTER = {
    "validating": ("in_progress", "finalizing", "cancelling", *TERMINAL),
    "in_progress": ("finalizing", "cancelling", *TERMINAL),
    "finalizing": ("completed", "expired"),
    "cancelling": ("cancelled",),
} | dict.fromkeys(TERMINAL, ())
"""What may be seen next, however long the look before was ago."""
_TIMES = ("created_at", "expires_at", "in_progress_at", "finalizing_at", "cancelling_at")
_AWAY = (500, 502, 503, 504)


class Ledger:
    """What was promised, and what was seen."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.rows: dict[str, list[str]] = {}
        """The custom ids of every creation that was tried, by its name."""
        self.made: dict[str, str] = {}
        """The names of batches that were answered, by id."""
        self.refused: set[str] = set()
        """Creations that were answered 5xx, and not asked for again."""
        self.seen: dict[str, dict[str, Any]] = {}
        """The last that was seen of each batch."""
        self.read: dict[str, tuple[int, bytes]] = {}
        """How many bytes of results were read of a batch, and their hash."""
        self.problems: list[tuple[Any, ...]] = []
        self.over = threading.Event()

    def answered(self, batch_id: str, name: str) -> None:
        """Note a creation's answer; all answers under one key name the same batch."""
        if self.made.setdefault(batch_id, name) != name or list(self.made.values()).count(name) > 1:
            self.problems.append(("two batches of one creation", name, batch_id))

    def look(self, batch: dict[str, Any]) -> None:
        """Compare a batch with what was seen of it before."""
        old, status, counts = self.seen.get(batch["id"]), batch["status"], batch["request_counts"]
        if old is not None:
            if old["status"] in TERMINAL and batch != old:
                self.problems.append(("a terminal batch changed", old, batch))
            if status != old["status"] and status not in _AFTER[old["status"]]:
                self.problems.append(("a status that can't follow", old, batch))
            if any(counts[name] < number for name, number in old["request_counts"].items()):
                self.problems.append(("counts went back", old, batch))
            if any(batch[name] != at for name, at in old.items() if name in _TIMES and at is not None):
                self.problems.append(("a time changed", old, batch))
        for name, file in (("completed", batch["output_file_id"]), ("failed", batch["error_file_id"])):
            if (file is not None) != (status in TERMINAL and counts[name] > 0):
                self.problems.append(("status, counts and files don't go together", name, batch))
        if status in TERMINAL and status != "failed" and counts["completed"] + counts["failed"] != counts["total"]:
            self.problems.append(("it ended without all of its rows", batch))
        self.seen[batch["id"]] = batch

    def results(self, batch_id: str, lines: bytes) -> None:
        """Compare the results so far with what was read of them before: lines keep their places."""
        size, before = self.read.get(batch_id, (0, hashlib.sha256().digest()))
        if hashlib.sha256(lines[:size]).digest() != before or len(lines) < size or lines[-1:] not in (b"", b"\n"):
            self.problems.append(("results changed", batch_id, size, len(lines)))
        self.read[batch_id] = (len(lines), hashlib.sha256(lines).digest())


class _Thread(threading.Thread):
    """Somebody with a connection of their own, at work until the storm is over."""

    def __init__(self, mesh: Mesh, ledger: Ledger, seed: str) -> None:
        super().__init__(daemon=True)
        self.ledger = ledger
        self.dice = random.Random(seed)
        self.http = httpx.Client(base_url=mesh.client.base_url, timeout=60, trust_env=False)

    def run(self) -> None:
        """Work; what the work itself does wrong is a problem as well."""
        with self.http:
            while not self.ledger.over.is_set():
                try:
                    self.work()
                except httpx.TransportError:
                    continue
                except Exception as error:  # noqa: BLE001 - it is told at the end
                    self.ledger.problems.append(("broken", repr(error)))

    def work(self) -> None:
        """Do one thing."""

    def expect(self, answer: httpx.Response, *statuses: int) -> bool:
        """Tell whether an answer is good; one that is neither good nor a matter of processes away is a problem."""
        if answer.status_code not in (*statuses, *_AWAY):
            self.ledger.problems.append(("answer", str(answer.request.url), answer.status_code, answer.text))
        return answer.status_code in statuses


class Client(_Thread):
    """Uploads, creates, repeats, deletes, cancels."""

    def __init__(self, mesh: Mesh, ledger: Ledger, seed: str) -> None:
        """Each client's batches have names of its own."""
        super().__init__(mesh, ledger, seed)
        self.who = seed.rpartition("-")[2]
        self.count = 0

    def work(self) -> None:
        """Make a batch and do something to it."""
        self.count += 1
        name = f"{self.who}-{self.count}"
        ids = [f"{name}-{n}" for n in range(self.dice.choice([1, 3, 20, 100, 700]))]
        rows = [chat_row(custom_id, f"text of {custom_id}") for custom_id in ids]
        body = self.body(name)
        if len(rows) < 50 and self.dice.random() < 0.3:
            body["requests"] = rows
        else:
            upload = {"data": {"purpose": "batch"}, "files": {"file": ("input.jsonl", jsonl(rows))}}
            answer = self.http.post("/v1/files", **upload)  # type: ignore[arg-type]
            if not self.expect(answer, 200):
                return
            body["input_file_id"] = answer.json()["id"]
        self.ledger.rows[name] = ids
        batch_id = self.keyed(name, body) if self.dice.random() < 0.5 else self.plain(name, body)
        if batch_id is not None:
            self.treat(batch_id, body.get("input_file_id", ""))
        self.ledger.over.wait(self.dice.random() * 0.1)

    def body(self, name: str) -> dict[str, Any]:
        """Throw the dice for a creation."""
        window = "2s" if self.dice.random() < 0.15 else "24h"
        body = {"endpoint": "/v1/chat/completions", "completion_window": window, "metadata": {"name": name}}
        return body | ({"priority": "expedited"} if self.dice.random() < 0.2 else {})

    def plain(self, name: str, body: dict[str, Any]) -> str | None:
        """Create once: what is answered 5xx must never be, what isn't answered may be."""
        answer = self.http.post("/v1/batches", json=body)
        if self.expect(answer, 200):
            self.ledger.answered(answer.json()["id"], name)
            return str(answer.json()["id"])
        if answer.status_code in _AWAY and "outcome_unknown" not in answer.text:
            self.ledger.refused.add(name)
        return None

    def keyed(self, name: str, body: dict[str, Any]) -> str | None:
        """Create under a key until it is answered, and once more; what was answered nothing but 5xx must never be."""
        found, may_be = None, False
        for _ in range(1_000):
            try:
                answer = self.http.post("/v1/batches", json=body, headers={"idempotency-key": name})
            except httpx.TransportError:
                may_be = True
                continue
            may_be = may_be or answer.status_code not in _AWAY or "outcome_unknown" in answer.text
            if answer.status_code == 409:  # the first one is still at it
                time.sleep(0.05)
            elif self.expect(answer, 200):
                self.ledger.answered(answer.json()["id"], name)
                if found is not None:
                    return found
                found = str(answer.json()["id"])
            if self.ledger.over.is_set():
                break
        if not may_be:
            self.ledger.refused.add(name)
        return found

    def treat(self, batch_id: str, file_id: str) -> None:
        """Delete the input, or cancel the batch, or both."""
        if file_id and self.dice.random() < 0.3:
            self.expect(self.http.delete(f"/v1/files/{file_id}"), 200)
        if self.dice.random() < 0.25:
            self.ledger.over.wait(self.dice.random() * 0.5)
            self.expect(self.http.post(f"/v1/batches/{batch_id}/cancel"), 200, 409)


class Watcher(_Thread):
    """Looks at young batches every 5 ms: at one, at a page of them, or at the results so far."""

    def work(self) -> None:
        """Take one look."""
        self.ledger.over.wait(0.005)
        young = list(self.ledger.made)[-12:]
        if not young:
            return
        path, dice = f"/v1/batches/{(batch_id := self.dice.choice(young))}", self.dice.random()
        if dice < 0.02:
            answer = self.http.get(f"{path}/results")
            if self.expect(answer, 200):
                self.ledger.results(batch_id, answer.content)
            return
        answer = self.http.get(path if dice < 0.9 else "/v1/batches?limit=12")
        if self.expect(answer, 200):
            for batch in [answer.json()] if dice < 0.9 else answer.json()["data"]:
                self.ledger.look(batch)


class Weather:
    """What happens to the processes."""

    def __init__(
        self,
        mesh: Mesh,
        dice: random.Random,
        restart_database: Callable[[float, int], None] | None,
        processes: Sequence[str] = PROCESSES,
    ) -> None:
        """`restart_database` takes it away by a signal for some seconds."""
        self._mesh = mesh
        self._processes = processes
        self._dice = dice
        self._restart_database = restart_database
        self.faults: Counter[str] = Counter()

    def blow(self, seconds: float) -> None:
        """Do one thing after the other."""
        kinds = ["kill", "kill", "kill two", "stop", "stop", "kill engine", "kill all"]
        kinds += ["database", "database"] if self._restart_database else []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._dice.uniform(0.1, 1.5))
            kind = self._dice.choice(kinds)
            try:
                self._strike(kind)
            except (ProcessLookupError, psutil.Error):
                continue
            self.faults[kind] += 1

    def _strike(self, kind: str) -> None:
        match kind:
            case "kill":
                self._mesh.kill(self._dice.choice(self._processes))
            case "kill two":
                self._mesh.kill(*self._dice.sample(self._processes, 2))
            case "kill engine":
                self._mesh.kill("engine")
            case "kill all":
                self._mesh.kill(*self._processes)
            case "stop":
                pid = self._mesh.pid(self._dice.choice(self._processes))
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self._dice.choice([0.1, 0.5, 2.5]))
                os.kill(pid, signal.SIGCONT)
            case "database" if self._restart_database is not None:
                self._restart_database(self._dice.choice([0.0, 0.5, 3.0]), self._dice.choice([signal.SIGINT, signal.SIGQUIT]))
