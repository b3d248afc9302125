"""From a request's bytes to what decoders run: checked, rendered, tokenised, and within the context."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from engine import invalid
from engine.chat import ChatRequest, parse_chat
from engine.completion import CompletionRequest, EmbeddingRequest, Input, parse_completion, parse_embedding
from engine.llamacpp import calls, policy, schema
from engine.llamacpp.chat_reply import ChatReply
from engine.llamacpp.grammar import BadGrammarError, Grammar
from engine.llamacpp.messages import Sampling
from engine.llamacpp.reply import EmbeddingReply, Reply, TextReply
from engine.llamacpp.vocabulary import Vocabulary
from engine.prompt import ChatTemplate
from engine.speech import THINK, THOUGHT, Manner, dialect_of
from engine.tools import NamedChoice, Tool
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import InvalidRequest

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "REASONING", "Prepared", "Preparer", "Prompt"]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
_FIELDS: Final = {CHAT: openai.CHAT_FIELDS, COMPLETIONS: openai.COMPLETION_FIELDS, EMBEDDINGS: openai.EMBEDDING_FIELDS}
_COMPLETION_TOKENS: Final = 16
"""what /v1/completions generates when a request doesn't say, as the public API does"""
_SEEDS: Final = 2**63
_TAIL: Final = 16
"""tokens at the end of a prompt that may open the reasoning"""
REASONING: Final = ("auto", "on", "off")


class Prompt(msgspec.Struct, frozen=True):
    """One prompt of a request; a chat has one."""

    tokens: bytes
    """int32 each"""
    count: int
    max_output: int
    echo: str = ""
    """what stands before the answer's text"""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is ready to run: every prompt with every sampling."""

    reply: Callable[[str, str], Reply]
    """makes what tells the answer, of the model's id as the caller named it and of the fingerprint"""
    prompts: list[Prompt]
    stops: list[bytes]
    samplings: list[Sampling]
    """one for each of the `n` choices of a prompt"""
    seed: int | None
    """the one that was used, None where nothing is drawn"""
    grammar: str
    logprobs: int
    """alternatives to tell with each token; -1: no log-probabilities"""
    include_usage: bool
    shown: list[int] = []
    """control tokens that are part of the text"""
    mark: bytes = b""
    """what ends the reasoning"""


class Preparer:
    """Prepares requests for one model. Not for two threads at a time."""

    def __init__(self, vocabulary: Vocabulary, context_length: int, *, embeds: bool = False, reasoning: str = "auto") -> None:
        """Compile the chat template, if the model has one and chats. Raises SettingsError when it can't be compiled."""
        self._vocabulary = vocabulary
        self._context = context_length
        self._embeds = embeds
        self._template = ChatTemplate(vocabulary) if vocabulary.chat_template and not embeds else None
        shows_tools = self._template is not None and self._template.shows_tools()
        self._dialect = dialect_of(vocabulary.chat_template) if shows_tools else None
        self._thinks = reasoning == "on" or (reasoning == "auto" and THOUGHT in vocabulary.chat_template)
        self._shown = self._named([THINK, THOUGHT] if self._thinks else [])
        self._calling = self._named([self._dialect.opening, self._dialect.closing] if self._dialect else [])
        self._compiles = functools.lru_cache(maxsize=256)(self._compile)

    @property
    def endpoints(self) -> list[str]:
        """What can be answered: vectors or texts, and without a template no chats."""
        if self._embeds:
            return [EMBEDDINGS]
        return [CHAT, COMPLETIONS] if self._template is not None else [COMPLETIONS]

    @property
    def fields(self) -> list[str]:
        """Body fields that are honoured, on any endpoint."""
        return sorted(frozenset().union(*(self._honoured(endpoint) for endpoint in self.endpoints)))

    def _honoured(self, endpoint: str) -> frozenset[str]:
        return _FIELDS[endpoint] - (frozenset() if self._dialect is not None else openai.TOOL_FIELDS)

    def prepare(self, sequence: pb.Sequence) -> Prepared:
        """Make it ready. Raises InvalidRequest; code `context_length_exceeded` when a prompt leaves no room for a token."""
        if sequence.endpoint not in self.endpoints:
            message = f"The model '{sequence.model}' does not serve {sequence.endpoint}."
            raise InvalidRequest(message, code="unsupported_endpoint", param="model")
        if sequence.endpoint == EMBEDDINGS:
            return self._embedding(parse_embedding(sequence.request))
        if sequence.endpoint == COMPLETIONS:
            return self._completion(parse_completion(sequence.request))
        return self._chat(parse_chat(sequence.request, self._honoured(CHAT)))

    def _chat(self, request: ChatRequest) -> Prepared:
        if self._template is None:  # then it isn't among the endpoints
            raise InvalidRequest(code="unsupported_endpoint", param="model")
        given = [] if request.tool_choice == "none" else request.tools or []
        rendered = [msgspec.to_builtins(tool) for tool in given]
        for tool in rendered:
            tool["function"] = {name: value for name, value in tool["function"].items() if value is not None}
        tokens = self._template.tokens(request.for_template(), request.chat_template_kwargs, rendered)
        prompt = self._prompt(tokens, request, request.max_output)
        manner = Manner(
            dialect=self._dialect if given else None,
            names=frozenset(tool.function.name for tool in given),
            most_calls=1 if request.parallel_tool_calls is False else 0,
            thinks=self._thinks,
            opened=self._thinks and self._opens(tokens),
        )
        prepared = self._prepared(request, [prompt], (request.top_logprobs or 0) if request.logprobs else -1)
        return msgspec.structs.replace(
            prepared,
            reply=functools.partial(ChatReply, manner),
            grammar=self._grammar(request, given, manner),
            shown=self._shown + (self._calling if given else []),
            mark=THOUGHT.encode() if self._thinks else b"",
            # The one call that is wanted ends the answer.
            stops=prepared.stops + [mark.encode() for mark in manner.closings if manner.most_calls],
        )

    def _grammar(self, request: ChatRequest, given: list[Tool], manner: Manner) -> str:
        """Give the grammar of an answer that must be JSON or calls, behind reasoning where the prompt began it."""
        grammar, choice, param = schema.gbnf(request.response_format), request.tool_choice, "response_format"
        if manner.dialect is not None and (choice == "required" or isinstance(choice, NamedChoice)):
            grammar, param = calls.gbnf(given, choice, manner.dialect, many=manner.most_calls == 0), "tools"
        return self._usable(calls.after_reasoning(grammar) if grammar and manner.opened else grammar, param)

    def _opens(self, tokens: list[int]) -> bool:
        """Tell whether a prompt ends with the beginning of the reasoning."""
        end = b"".join(map(self._vocabulary.written, tokens[-_TAIL:]))
        return end.rstrip().endswith(THINK.encode())

    def _named(self, texts: list[str]) -> list[int]:
        """Find the tokens that are these texts."""
        return [special.token for special in self._vocabulary.specials() if special.text in texts and special.text]

    def _usable(self, grammar: str, param: str = "response_format") -> str:
        if grammar and (reason := self._compiles(grammar)):
            raise invalid.invalid_value(param, f"the schema's grammar can't be used: {reason}")
        return grammar

    def _completion(self, request: CompletionRequest) -> Prepared:
        if request.echo and request.logprobs is not None:
            raise invalid.invalid_value("echo", "it is not possible with 'logprobs', which are of generated tokens only")
        prompts = [self._given(given, request) for given in request.prompts]
        return self._prepared(request, prompts, -1 if request.logprobs is None else request.logprobs)

    def _embedding(self, request: EmbeddingRequest) -> Prepared:
        width = self._vocabulary.width
        if request.dimensions is not None and request.dimensions > width:
            raise invalid.invalid_value("dimensions", f"the model's vectors have {width}, but {request.dimensions} are wanted")
        return Prepared(
            reply=functools.partial(EmbeddingReply, request.dimensions or width, request.encoding_format or "float"),
            prompts=[self._text(given) for given in request.inputs],
            stops=[],
            samplings=[Sampling()],
            seed=None,
            grammar="",
            logprobs=-1,
            include_usage=False,
        )

    def _text(self, given: Input) -> Prompt:
        """Take a text, between what the model wants at its ends; what it holds never becomes a control token."""
        tokens = self._vocabulary.tokenise(given, special=False, edges=True) if isinstance(given, str) else given
        self._check(tokens, "input")
        if len(tokens) > self._context:
            limit = f"This model's maximum context length is {self._context} tokens."
            message = f"{limit} However, your input resulted in {len(tokens)} tokens."
            raise InvalidRequest(message, code="context_length_exceeded", param="input")
        return Prompt(np.asarray(tokens, np.int32).tobytes(), len(tokens), 0)

    def _check(self, tokens: list[int], param: str) -> None:
        if not tokens:
            raise InvalidRequest(f"The {param} has no tokens.", param=param)
        if max(tokens) >= self._vocabulary.size:
            raise invalid.invalid_value(param, f"token ids are below {self._vocabulary.size}, but one is {max(tokens)}")

    def _given(self, given: Input, request: CompletionRequest) -> Prompt:
        """Take a prompt as it is written: control texts are control tokens, and `bos` comes first where the model wants it."""
        vocabulary = self._vocabulary
        if isinstance(given, str):
            tokens = vocabulary.tokenise(given, special=True)
            if (vocabulary.adds_bos or not tokens) and vocabulary.bos >= 0 and tokens[:1] != [vocabulary.bos]:
                tokens = [vocabulary.bos, *tokens]
        else:
            tokens = given
            self._check(tokens, "prompt")
        echo = ""
        if request.echo:
            echo = given if isinstance(given, str) else b"".join(map(vocabulary.written, given)).decode("utf-8", "replace")
        return self._prompt(tokens, request, request.max_tokens or _COMPLETION_TOKENS, echo)

    def _prompt(self, tokens: list[int], request: ChatRequest | CompletionRequest, wanted: int | None, echo: str = "") -> Prompt:
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        self._check(tokens, param)
        max_output = policy.fit(len(tokens), wanted, min(self._context, request.max_context_length or self._context))
        if max_output < 1:
            raise invalid.context_exceeded(len(tokens), self._context, request.max_context_length, param)
        return Prompt(np.asarray(tokens, np.int32).tobytes(), len(tokens), max_output, echo)

    def _prepared(self, request: ChatRequest | CompletionRequest, prompts: list[Prompt], logprobs: int) -> Prepared:
        size = self._vocabulary.size
        strange = next((token for token in request.logit_bias or {} if len(token) > 9 or int(token) >= size), None)
        if strange is not None:
            raise invalid.invalid_value("logit_bias", f"token ids are below {size}, but one is {strange[:20]}")
        samplings, seed = _samplings(request)
        return Prepared(
            reply=TextReply,
            prompts=prompts,
            stops=[stop.encode() for stop in request.stops],
            samplings=samplings,
            seed=seed,
            grammar="" if isinstance(request, ChatRequest) else self._usable(schema.gbnf(request.response_format)),
            logprobs=logprobs,
            include_usage=request.include_usage,
        )

    def _compile(self, grammar: str) -> str:
        """Tell what is wrong with a grammar, nothing if it can be used."""
        try:
            Grammar(self._vocabulary, grammar).close()
        except BadGrammarError as error:
            return "a definition begins with itself" if "left recursion" in str(error) else str(error)
        return ""


def _samplings(request: ChatRequest | CompletionRequest) -> tuple[list[Sampling], int | None]:
    """Give how each choice is drawn; choice i's seed is the request's plus i, so that choices differ and repeat."""
    temperature = request.temperature or 0.0
    seed = request.seed if request.seed is not None or not temperature else int.from_bytes(os.urandom(4))
    first = Sampling(
        temperature=temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repeat_penalty=request.repeat_penalty or 1.0,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
        seed=(seed or 0) % _SEEDS,
    )
    later = (msgspec.structs.replace(first, seed=(first.seed + index) % _SEEDS) for index in range(1, request.choices))
    return [first, *later], seed
