// Synchronous requests by the official Node SDK: plain, streamed, aborted. Prints what came as one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "one two three é 😀" }];

const plain = await client.chat.completions.create({ model: "echo", messages });

const chunks = [];
for await (const chunk of await client.chat.completions.create({
  model: "echo",
  messages,
  stream: true,
  stream_options: { include_usage: true },
})) {
  chunks.push(chunk);
}

const runner = client.chat.completions.stream({ model: "echo", messages });
const assembled = await runner.finalChatCompletion();

const cut = await client.chat.completions.create({ model: "echo", messages, stream: true });
let before = 0;
for await (const _ of cut) {
  before += 1;
  break; // the SDK aborts the request
}

const models = [];
for await (const model of client.models.list()) {
  models.push(model.id);
}

console.log(
  JSON.stringify({
    plain,
    chunks,
    assembled,
    before,
    models,
    model: await client.models.retrieve("echo"),
  }),
);
