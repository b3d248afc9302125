"""Aliases: what settings may say, and bodies that name the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from haywain import settings
from haywain.aliases import missing
from haywain.engine.v1 import engine_pb2
from haywain.errors import SettingsError
from services.batches.intake import _served
from services.batches.lines import LineRules
from services.batches.record import Fault
from services.scheduler.aliases import Aliases

CHAT = "/v1/chat/completions"


def test_aliases_are_a_table_of_toml_or_json(tmp_path: Path) -> None:
    """A file has a table, environment and flags have JSON or one alias; what is in force can be read back."""
    file = tmp_path / "haywain.toml"
    file.write_text('scheduler.aliases = {"gpt-3.5" = "tiny", other = "tiny"}\n')
    read = settings.load(file=file, env={"HAYWAIN_SCHEDULER__ALIASES__MORE": "tiny"})
    assert read.scheduler.aliases == {"gpt-3.5": "tiny", "other": "tiny", "more": "tiny"}
    given = settings.load(env={"HAYWAIN_SCHEDULER__ALIASES": '{"gpt-3.5": "tiny"}'}, sets=["scheduler.aliases.x=y"])
    assert given.scheduler.aliases == {"gpt-3.5": "tiny", "x": "y"}
    file.write_text(settings.dump(read))
    assert settings.load(file=file) == read
    assert settings.Settings().scheduler.aliases == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"a":"b","b":"c"}', "the alias 'a' stands for 'b', which is an alias itself: name the model"),
        ('{"a":"b","b":"a"}', "the alias 'a' stands for 'b', which is an alias itself: name the model"),
        ('{"a":"a"}', "the alias 'a' stands for itself"),
        ('{"a":""}', "the alias 'a' stands for '': both must be names"),
        ('{"a":1}', "Expected `str`, got `int`"),
        ("{a=b}", '{a=b} is not a table in JSON, like {"a":"b"}: '),
        ("a=b", "Expected `object`, got `str`"),
    ],
)
def test_aliases_that_cannot_be_are_refused_in_one_line(value: str, said: str) -> None:
    """Chains, loops, names that are none, and what isn't a table."""
    with pytest.raises(SettingsError) as refused:
        settings.load(sets=[f"scheduler.aliases={value}"])
    assert refused.value.message.startswith("--set scheduler.aliases: ")
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("body", "model", "becomes"),
    [
        ('{"model":"gpt","n":1}', "tiny", '{"model":"tiny","n":1}'),
        ('{"n": 12345678901234567890.10, "model": "gp\\u0074"}', "tiny", '{"n":12345678901234567890.10,"model":"tiny"}'),
        ('{"model":"tiny","x":{"model":"gpt"}}', "tiny", '{"model":"tiny","x":{"model":"gpt"}}'),
        ('{"model": "gpt"}', "gpt", '{"model": "gpt"}'),
        ('{"model": "other"}', "tiny", '{"model": "other"}'),
        ('{"model": 7}', "tiny", '{"model": 7}'),
        ('{"model": "gpt"', "tiny", '{"model": "gpt"'),
        ("[]", "tiny", "[]"),
    ],
)
def test_a_body_that_names_an_alias_names_the_model(body: str, model: str, becomes: str) -> None:
    """Nothing else is changed, not even how numbers are written; what names no alias stays byte for byte."""
    assert Aliases({"gpt": "tiny"}).body(body.encode(), model).decode() == becomes
    assert Aliases({}).body(body.encode(), model).decode() == body


def test_a_missing_model_is_told_with_what_it_stands_for() -> None:
    """An alias says of what."""
    assert missing("a", {"a": "b"}) == "The model 'a' is an alias of 'b', which does not exist or is not served now."
    assert missing("b", {"a": "b"}) == "The model 'b' does not exist or is not served now."


def test_a_row_under_an_alias_of_what_nobody_serves_is_a_bad_line() -> None:
    """Refused as an unknown model is, with what the alias stands for; one that is served is a model like others, whose id wins."""
    echo = engine_pb2.ModelDescription(model="echo", aliases=["gpt"])
    served = _served([echo], CHAT, {"gpt": "echo", "large": "org/large", "echo": "org/large"})
    assert (served["gpt"].model, served["echo"].model) == ("echo", "echo")
    rules = LineRules(CHAT, "", served, mixed_models=False, remember=lambda *_: 0)
    body = {"model": "large", "messages": [{"role": "user", "content": "hi"}]}
    fault = rules.check({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}, 1, 0)
    message = "The model 'large' is an alias of 'org/large', which is not served."
    assert fault == Fault("model_not_found", message, "body.model", 1)
    assert rules.check({"custom_id": "b", "method": "POST", "url": CHAT, "body": body | {"model": "gpt"}}, 2, 9) == "echo"
