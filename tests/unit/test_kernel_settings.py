"""Settings: where they come from, which wins, and what is said of those that can't be used."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from haywain import settings
from haywain.engine_settings import EngineSettings, TritonContractSettings, TritonSettings, UpstreamSettings
from haywain.errors import SettingsError
from haywain.settings import DatabaseSettings, FilesSettings, Settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "haywain.toml"
    path.write_text("data_dir = '/srv/a'\n[scheduler]\nlease_seconds = 5\nslots = 7\nreplica = 'file'\n")
    return path


def test_nothing_gives_the_defaults() -> None:
    """Without any source, the defaults hold."""
    assert settings.load() == Settings()


def test_a_file_overrides_defaults(file: Path) -> None:
    """What the file doesn't name keeps its default."""
    loaded = settings.load(file=file)
    assert (loaded.data_dir, loaded.scheduler.lease_seconds, loaded.scheduler.slots) == ("/srv/a", 5.0, 7)
    assert loaded.scheduler.intake_rows == 1_000_000


def test_environment_overrides_the_file_and_flags_override_all(file: Path) -> None:
    """Defaults < file < environment < flags, key by key, the last flag last."""
    env = {"HAYWAIN_SCHEDULER__SLOTS": "8", "HAYWAIN_SCHEDULER__REPLICA": "env", "HAYWAIN_DATA_DIR": "/srv/b"}
    loaded = settings.load(file=file, env=env, sets=["scheduler.slots=9", "scheduler.slots=10"])
    assert loaded.scheduler == Settings().scheduler.__class__(lease_seconds=5.0, slots=10, replica="env")
    assert loaded.data_dir == "/srv/b"


def test_texts_become_what_the_key_is() -> None:
    """Values of the environment and of flags are texts: numbers, booleans and nested sections are made of them."""
    env = {"HAYWAIN_BATCHES__MIXED_MODELS": "true", "HAYWAIN_ENGINE__ECHO__MS_PER_ROW": "1.5"}
    loaded = settings.load(env=env, sets=["engine.echo.model=a=b", "batches.check_file_at_create=1"])
    assert loaded.batches.mixed_models is True
    assert loaded.batches.check_file_at_create is True
    assert (loaded.engine.echo.ms_per_row, loaded.engine.echo.model) == (1.5, "a=b")


def test_lists_are_json() -> None:
    """A list is given as JSON, also in the environment; a text that begins like one and isn't one is named."""
    loaded = settings.load(env={"HAYWAIN_ENGINE__UPSTREAM__FIELDS": '["n"]'}, sets=['engine.upstream.models=["a/b", "c"]'])
    assert (loaded.engine.upstream.models, loaded.engine.upstream.fields) == (("a/b", "c"), ("n",))
    with pytest.raises(SettingsError, match=r"--set engine.upstream.models: \[a, b\] is not a list in JSON"):
        settings.load(sets=["engine.upstream.models=[a, b]"])


def test_other_variables_are_left_alone() -> None:
    """Variables that aren't settings, by prefix or by the lack of a section, are not looked at."""
    env = {"HOME": "/root", "OTHER__KEY": "x", "HAYWAIN_CACHE": "/x", "HAYWAINX__A": "x"}
    assert settings.load(env=env) == Settings()


@pytest.mark.parametrize(
    ("env", "sets", "named"),
    [
        ({}, ["scheduler.nope=1"], ["--set scheduler.nope", "`nope`"]),
        ({}, ["nope.slots=1"], ["--set nope.slots", "`nope`"]),
        ({}, ["scheduler.slots=many"], ["--set scheduler.slots", "Expected `int`", "$.scheduler.slots"]),
        ({}, ["scheduler.slots"], ["--set scheduler.slots", "section.key=value"]),
        ({}, ["scheduler.model_lease_seconds=0"], ["--set scheduler.model_lease_seconds", "Expected `int` >= 1"]),
        ({}, ["scheduler=1"], ["--set scheduler", "Expected `object`"]),
        ({}, ["scheduler.slots.deep=1"], ["--set scheduler.slots.deep", "Expected `int`"]),
        ({"HAYWAIN_FILES__NOPE": "1"}, [], ["HAYWAIN_FILES__NOPE", "`nope`"]),
        ({"HAYWAIN_FILES__MAX_FILE_BYTES": "1.5"}, [], ["HAYWAIN_FILES__MAX_FILE_BYTES", "Expected `int`"]),
        ({"HAYWAIN_FILES__MAX_FILE_BYTES": "1"}, ["files.max_file_bytes.a=1"], ["--set", "max_file_bytes is a value"]),
    ],
)
def test_bad_settings_are_named(env: dict[str, str], sets: list[str], named: list[str]) -> None:
    """An unknown key or a bad value is told in one line with its source, its key and what was expected."""
    with pytest.raises(SettingsError) as raised:
        settings.load(env=env, sets=sets)
    assert all(word in raised.value.message for word in named), raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"[scheduler]\nnope = 1\n", "unknown field `nope`"),
        (b"[scheduler]\nslots = 'x'\n", "Expected `int`"),
        (b"scheduler = 3\n", "Expected `object`"),
        (b"[scheduler\n", "line 1"),
        (b"a = '\xff'\n", "utf-8"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: bytes, named: str) -> None:
    """A file that isn't TOML, or has a bad key or value, is told by its path and what is wrong in it."""
    path = tmp_path / "bad.toml"
    path.write_bytes(text)
    with pytest.raises(SettingsError) as raised:
        settings.load(file=path)
    assert str(path) in raised.value.message
    assert named in raised.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A settings file that isn't there is an error, not the defaults."""
    with pytest.raises(SettingsError, match=r"gone\.toml"):
        settings.load(file=tmp_path / "gone.toml")


def test_settings_are_frozen_and_their_sections_too() -> None:
    """Nobody changes settings after the start."""
    loaded = Settings()
    with pytest.raises(AttributeError):
        loaded.data_dir = "elsewhere"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        loaded.files.max_file_bytes = 1  # type: ignore[misc]


def test_dump_can_be_read_back(tmp_path: Path) -> None:
    """What `haywain config` prints is a settings file that gives the same settings."""
    loaded = Settings(data_dir='/srv/"ü"', files=FilesSettings(max_file_bytes=1))
    path = tmp_path / "dumped.toml"
    path.write_text(settings.dump(loaded), "utf-8")
    assert tomllib.loads(path.read_text("utf-8"))["files"]["max_file_bytes"] == 1
    assert settings.load(file=path) == loaded


def test_dump_can_keep_secrets() -> None:
    """Without its secrets it has no password of any address in it."""
    upstream = UpstreamSettings(url="https://me:secret@x/v1")
    chosen = Settings(db=DatabaseSettings(url="postgresql://me:secret@x/d"), engine=EngineSettings(upstream=upstream))
    assert "secret" in settings.dump(chosen)
    assert "secret" not in settings.dump(chosen, secrets=False)


def test_names_that_operators_choose_are_read_back(tmp_path: Path) -> None:
    """A key with a dot, a blank or a quote in it is quoted in what `dump` writes."""
    names = {"RAW": "true", 'a.b "c"': "x"}
    contract = TritonContractSettings(prompt="in", text="out", constants=names)
    chosen = Settings(engine=EngineSettings(triton=TritonSettings(contract=contract)))
    path = tmp_path / "settings.toml"
    path.write_text(settings.dump(chosen), "utf-8")
    assert settings.load(file=path) == chosen


def test_addresses_are_sockets_of_the_instance_unless_set() -> None:
    """Each process listens on a socket in its instance's folder; a setting overrides; two instances never meet."""
    one, two = Settings(data_dir="/srv/one"), Settings(data_dir="/srv/two")
    assert one.address("files") == "unix:/srv/one/run/files.sock"
    assert two.address("files") != one.address("files")
    assert Settings(files=FilesSettings(address="10.0.0.1:7000")).address("files") == "10.0.0.1:7000"


def test_long_data_folders_have_short_sockets() -> None:
    """A data folder too deep for a socket's path has its sockets elsewhere, apart from every other folder's."""
    one, two = Settings(data_dir="/srv/" + "a" * 200), Settings(data_dir="/srv/" + "a" * 201)
    for process in ("gateway", "files", "batches", "scheduler", "engine"):
        assert len(one.address(process)) < 107
        assert one.address(process) != two.address(process)
    assert one.run_dir == Settings(data_dir="/srv/" + "a" * 200).run_dir
