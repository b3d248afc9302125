"""A GGUF model in Triton's Python backend with the tensors of Triton's vLLM backend: what a real server with a real model does.

One request at a time; `parameters.gguf` names the file.
"""

import json
import queue
import threading

import llama_cpp.llama_cpp as library
import numpy as np
import triton_python_backend_utils as pb_utils
from llama_cpp import Llama

PIECE_TOKENS = 16
_defaults = library.llama_model_default_params


def _without_extra_buffers():
    """Keep away from AMX kernels, as engine/llamacpp does (native.py says why)."""
    parameters = _defaults()
    parameters.use_extra_bufts = False
    return parameters


library.llama_model_default_params = _without_extra_buffers


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        path = parameters["gguf"]["string_value"]
        self.model = Llama(path, n_ctx=1024, n_threads=1, verbose=False)
        self.requests = queue.Queue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            self.requests.put(request)

    def finalize(self):
        self.requests.put(None)
        self.thread.join()

    def run(self):
        while (request := self.requests.get()) is not None:
            sender = request.get_response_sender()
            end = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            try:
                self.answer(request, sender)
                sender.send(flags=end)
            except Exception as error:  # noqa: BLE001 - as the real one does
                told = pb_utils.TritonError(f"Error generating stream: {error}")
                sender.send(pb_utils.InferenceResponse(error=told), flags=end)

    def answer(self, request, sender):
        if sender.is_cancelled():
            return
        given = {tensor.name(): tensor.as_numpy().ravel()[0] for tensor in request.inputs()}
        sampling = json.loads(given.get("sampling_parameters", b"{}"))
        prompt = self.model.tokenize(given["text_input"], special=True)
        if not self.read(prompt, sender):
            return
        stream = bool(given.get("stream", False))
        texts = []
        pieces = self.model.create_completion(
            prompt,
            max_tokens=sampling.get("max_tokens", 16),
            temperature=sampling.get("temperature", 0.0),
            stop=sampling.get("stop") or [],
            seed=sampling.get("seed"),
            stream=True,
        )
        count, finish = 0, None
        for piece in pieces:
            choice = piece["choices"][0]
            finish = choice["finish_reason"]
            if sender.is_cancelled():
                return
            count += finish is None
            texts.append(choice["text"])
            if stream:
                sender.send(self.response(choice["text"], finish, len(prompt), finish is None))
        if not stream:
            sender.send(self.response("".join(texts), finish, len(prompt), count))

    def read(self, prompt, sender):
        """Evaluate a prompt but for its last token, piece by piece: on a busy machine a whole one may take many seconds, and who
        is cancelled in it must not make the next one wait; False when that happened. The completion goes on behind what is here."""
        if len(prompt) >= self.model.n_ctx():
            return True  # it says so
        known = 0
        for one, other in zip(self.model.input_ids[: self.model.n_tokens], prompt[:-1], strict=False):
            if one != other:
                break
            known += 1
        self.model.n_tokens = known
        for at in range(known, len(prompt) - 1, PIECE_TOKENS):
            if sender.is_cancelled():
                return False
            self.model.eval(prompt[at : min(at + PIECE_TOKENS, len(prompt) - 1)])
        return True

    def response(self, text, finish, prompt, count):
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([text.encode()], np.object_)),
                pb_utils.Tensor("finish_reason", np.array([(finish or "None").encode()], np.object_)),
                pb_utils.Tensor("num_input_tokens", np.array([prompt], np.uint32)),
                pb_utils.Tensor("num_output_tokens", np.array([count], np.uint32)),
            ]
        )
