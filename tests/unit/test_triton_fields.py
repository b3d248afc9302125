"""Which fields of a request each contract of Triton honours, and that the documents say so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.chat import parse_chat
from engine.triton.contract import CONTRACTS, Contract, of_settings
from engine.triton.fitted import find
from engine.triton.interface import Interface, Tensor
from engine.triton.prepare import Preparer
from haywain.errors import InvalidRequest
from haywain.openai import CHAT_FIELDS, COMPLETION_FIELDS, EMBEDDING_FIELDS
from haywain.settings import TritonContractSettings, TritonSettings

EVERYTHING = TritonContractSettings(
    **{name: name.upper() for name in TritonContractSettings.__struct_fields__ if name not in {"embedding", "constants"}}
)
NAMES = [contract.name for contract in CONTRACTS] + ["settings"]


def whole(contract: Contract) -> Interface:
    """Make a model that has every tensor that a contract knows, each by its first name."""
    inputs = [contract.prompt[0], *contract.marks, *(names[0] for names in contract.fields.values()), *contract.guide]
    inputs += [*contract.parameters, *contract.stream[:1], *contract.ask_logprobs, *contract.constants]
    inputs += [contract.guided[0]] if contract.guided[0] else []
    outputs = [*contract.text[:1], *contract.logprobs, *contract.finish_reason, *contract.input_tokens, *contract.output_tokens]
    kinds = dict.fromkeys([*inputs, *outputs], "BYTES") | dict.fromkeys(contract.constants, "BOOL")
    kinds |= dict.fromkeys([*contract.stream[:1]], "BOOL") | dict.fromkeys(
        [*contract.input_tokens, *contract.output_tokens], "UINT32"
    )
    outputs += contract.embedding[:1]
    kinds |= dict.fromkeys(contract.embedding[:1], "FP32")
    tensors = {name: Tensor(name, kind, 1) for name, kind in kinds.items()}
    return Interface(
        model="m", version="1", platform="x", batch=0, instances=1, decoupled=True, parameters={},
        inputs={name: tensors[name] for name in inputs}, outputs={name: tensors[name] for name in outputs},
    )  # fmt: skip


def preparer(name: str, folder: Path) -> Preparer:
    """Give that of a model with everything, and with a chat template."""
    (folder / "template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}", "utf-8")
    written = EVERYTHING if name == "settings" else TritonContractSettings()
    chosen = of_settings(written) or next(contract for contract in CONTRACTS if contract.name == name)
    fitted = find(whole(chosen), written)
    assert fitted.name == name
    return Preparer(fitted, TritonSettings(template=str(folder / "template.jinja"), contract=written))


def table() -> tuple[list[str], list[tuple[set[str], list[str]]]]:
    """Read the table of docs/engines.md: its contracts, and for each row the fields and the cells."""
    text = (Path(__file__).parent.parent.parent / "docs" / "engines.md").read_text("utf-8")
    header, _, *rows = re.findall(r"^\|(.*)\|$", text[text.index("| field | `vllm`") :].split("\n\n")[0], re.MULTILINE)
    split = [row.split("|") for row in rows]
    return re.findall(r"`([a-z_]+)`", header), [(set(re.findall(r"`([a-z_]+)`", first)), cells) for first, *cells in split]


def documented(name: str) -> set[str]:
    """Give the fields that a contract honours, as the table says."""
    columns, rows = table()
    return {field for fields, cells in rows for field in fields if cells[columns.index(name)].strip().startswith("yes")}


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_say_what_is_honoured(name: str, tmp_path: Path) -> None:
    """docs/engines.md has each field that a model with all of a contract's tensors honours, and no other."""
    assert documented(name) == set(preparer(name, tmp_path).fields)


def test_the_documents_leave_no_field_out() -> None:
    """Every field of the three endpoints is in the table, honoured by one contract or by none."""
    columns, rows = table()
    assert sorted(columns) == sorted(NAMES)
    assert set().union(*(fields for fields, _ in rows)) == CHAT_FIELDS | COMPLETION_FIELDS | EMBEDDING_FIELDS


@pytest.mark.parametrize("name", ["vllm", "tensorrt_llm", "llmapi", "settings"])
def test_what_is_not_honoured_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """A chat that asks for such a field fails with the field's name, and is never sent without it."""
    values = {
        "logit_bias": '{"1":5}', "logprobs": "true", "top_logprobs": "2", "response_format": '{"type":"json_object"}',
        "min_p": "0.1", "repeat_penalty": "1.1", "tools": '[{"type":"function","function":{"name":"f"}}]', "tool_choice": '"auto"',
        "parallel_tool_calls": "true", "max_context_length": "9",
    }  # fmt: skip
    honoured = frozenset(preparer(name, tmp_path).fields)
    assert CHAT_FIELDS - honoured <= values.keys()
    for field in sorted(CHAT_FIELDS - honoured):
        with pytest.raises(InvalidRequest) as caught:
            parse_chat(f'{{"model":"m","messages":[{{"role":"user","content":"a"}}],"{field}":{values[field]}}}'.encode(), honoured)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)
