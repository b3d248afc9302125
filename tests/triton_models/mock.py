"""A language model that isn't one, for Triton's Python backend: it says the prompt's words again, a token a word.

Which tensors it has, its configuration says; what they are called, the parameter `names` (JSON): `prompt`, `text`, and where there
are any `max_tokens`, `stream`, `stop`, `json`, `finish`, `input_tokens`, `output_tokens`, `logprobs`, `vector`.
A prompt may hold orders:

    [ms=50]   wait so long before each token        [fail=INVALID_ARG]   answer with this error
    [die]     end the process                       [hang]               never answer

Each request leaves a line in the file of the parameter `log`, unless it is `quiet`: what came, and how it ended.
"""

import asyncio
import json
import os
import re
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

_ORDER = re.compile(r"\[(ms|fail|die|hang)(?:=([^\]]*))?\]")


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.names = json.loads(parameters["names"])
        self.log = open(os.devnull if "quiet" in parameters else parameters["log"], "a", buffering=1)  # noqa: SIM115 - until the process ends
        self.decoupled = config["model_transaction_policy"]["decoupled"]
        self.batched = config["max_batch_size"] > 0
        self.types = {output["name"]: pb_utils.triton_string_to_numpy(output["data_type"]) for output in config["output"]}
        self.delay = float(parameters.get("ms_per_row", 0)) / 1000
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def execute(self, requests):
        if self.decoupled:
            for request in requests:
                asyncio.run_coroutine_threadsafe(self.answer(request), self.loop)
            return None
        return [self.once(request) for request in requests]

    def finalize(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    async def answer(self, request):  # noqa: C901
        sender = request.get_response_sender()
        given, orders = self.read(request)
        end = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        outcome = "done"
        try:
            if "hang" in orders:
                while not sender.is_cancelled():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            if error := self.error(orders):
                outcome = "failed"
                sender.send(pb_utils.InferenceResponse(error=error), flags=end)
                return
            tokens, finish = self.tokens(given)
            pause = float(orders.get("ms", 0)) / 1000
            if self.delay:
                await asyncio.sleep(self.delay)
            stream, sent = bool(given.get("stream")), 0
            for index, token in enumerate(tokens):
                if pause:
                    await asyncio.sleep(pause)
                if sender.is_cancelled():
                    break
                sent += 1
                if stream:
                    last = index + 1 == len(tokens)
                    sender.send(self.response(given, token, finish if last else None, 1))
            if sender.is_cancelled():
                outcome = f"cancelled after {sent}"
                error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
                sender.send(pb_utils.InferenceResponse(error=error), flags=end)
            elif stream:
                sender.send(flags=end)
            else:
                sender.send(self.response(given, "".join(tokens), finish, len(tokens)), flags=end)
        finally:
            self.log.write(json.dumps({**given, "outcome": outcome}) + "\n")

    def once(self, request):
        given, orders = self.read(request)
        if error := self.error(orders):
            return pb_utils.InferenceResponse(error=error)
        if "vector" in self.names:
            text = given["prompt"]
            vector = np.array([len(text), text.count(" ") + 1, 0.5], self.types[self.names["vector"]])
            self.log.write(json.dumps({**given, "outcome": "done"}) + "\n")
            return pb_utils.InferenceResponse([pb_utils.Tensor(self.names["vector"], self.shaped(vector))])
        tokens, finish = self.tokens(given)
        time.sleep(self.delay + float(orders.get("ms", 0)) / 1000 * len(tokens))
        self.log.write(json.dumps({**given, "outcome": "done"}) + "\n")
        return self.response(given, "".join(tokens), finish, len(tokens))

    def read(self, request):
        given = {}
        tensors = {}
        for tensor in request.inputs():
            values = [value.decode() if isinstance(value, bytes) else value.item() for value in tensor.as_numpy().ravel()]
            tensors[tensor.name()] = values
        given["tensors"] = tensors
        for role in ("prompt", "max_tokens", "stream", "json"):
            if (name := self.names.get(role)) in tensors:
                given[role] = tensors[name][0]
        if "json" in given:
            given |= {key: value for key, value in json.loads(given["json"]).items() if key in ("max_tokens", "stop")}
        if (name := self.names.get("stop")) in tensors:
            given["stop"] = tensors[name]
        orders = dict(_ORDER.findall(given["prompt"]))
        if "die" in orders:
            os._exit(1)
        return given, orders

    def error(self, orders):
        if "fail" not in orders:
            return None
        code = getattr(pb_utils.TritonError, orders["fail"] or "INTERNAL")
        return pb_utils.TritonError("The mock was told to fail: café", code)

    def tokens(self, given):
        words = _ORDER.sub("", given["prompt"]).split()
        tokens = [word if index == 0 else f" {word}" for index, word in enumerate(words)]
        most = int(given.get("max_tokens", 16))
        return tokens[:most], "length" if len(tokens) > most else "stop"

    def response(self, given, text, finish, count):
        names = self.names
        values = {names["text"]: np.array([text.encode()], np.object_)}
        if "finish" in names:
            values[names["finish"]] = np.array([(finish or "None").encode()], np.object_)
        if "input_tokens" in names:
            words = len(_ORDER.sub("", given["prompt"]).split())
            values[names["input_tokens"]] = np.array([words], self.types[names["input_tokens"]])
        if "output_tokens" in names:
            values[names["output_tokens"]] = np.array([count], self.types[names["output_tokens"]])
        if given["tensors"].get("return_logprobs") == [True]:
            told = json.dumps(
                [self.candidates(token, json.loads(given["json"])["logprobs"]) for token in re.findall(r"\s*\S+", text)]
            )
            values[names["logprobs"]] = np.array([told.encode()], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, self.shaped(value)) for name, value in values.items()])

    def candidates(self, token, count):
        """Of a token, as vLLM does: the chosen one first, which is the third of all here, then so many of the likeliest."""
        likeliest = {
            str(rank): {"logprob": -0.5 * rank, "rank": rank, "decoded_token": f"{token}{rank}"} for rank in range(1, count + 1)
        }
        return {"chosen": {"logprob": -1.5, "rank": 3, "decoded_token": token}, **likeliest}

    def shaped(self, array):
        return array.reshape(1, *array.shape) if self.batched else array
