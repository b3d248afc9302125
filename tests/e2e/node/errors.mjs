// Errors by the official Node SDK: what class, status, code and param each has. Prints a list of them as JSON.
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const empty = await toFile(Buffer.from(""), "empty.jsonl");
const messages = [{ role: "user", content: "x" }];
const calls = {
  model: () => client.chat.completions.create({ model: "nope", messages }),
  parameter: () => client.chat.completions.create({ model: "echo", messages, shape: "round" }),
  row: () => client.chat.completions.create({ model: "echo", messages: [{ role: "user", content: "please fail" }] }),
  streamed: () => client.chat.completions.create({ model: "nope", messages, stream: true }),
  window: () => client.batches.create({ input_file_id: "file-x", endpoint: "/v1/chat/completions", completion_window: "1h" }),
  endpoint: () => client.batches.create({ input_file_id: "file-x", endpoint: "/v1/nothing", completion_window: "24h" }),
  batch: () => client.batches.retrieve("batch_none"),
  cancel: () => client.batches.cancel("batch_none"),
  file: () => client.files.retrieve("file-none"),
  content: () => client.files.content("file-none"),
  upload: () => client.files.create({ file: empty, purpose: "batch" }),
  cursor: () => client.batches.list({ after: "batch_none" }),
  limit: () => client.batches.list({ limit: 101 }),
  route: () => client.get("/nothing"),
  method: () => client.put("/batches"),
};

const seen = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    await call();
    seen[name] = null;
  } catch (error) {
    const { status, code, param, type, requestID } = error;
    seen[name] = { kind: error.constructor.name, status, code, param, type, requestID, message: error.message };
  }
}
console.log(JSON.stringify(seen));
