// The main job by the official Node SDK: upload, batch, poll, content, delete. Prints what came as one JSON object.
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const rows = 20;
const lines = Array.from({ length: rows }, (_, n) =>
  JSON.stringify({
    custom_id: `row-${n}`,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model: "echo", messages: [{ role: "user", content: n === 7 ? "please fail" : `text ${n} é \u2028 😀` }] },
  }),
);

const file = await client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "requests.jsonl"), purpose: "batch" });
const processed = await client.files.waitForProcessing(file.id);
const created = await client.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
  metadata: { team: "search" },
});
let batch = created;
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 50));
  batch = await client.batches.retrieve(created.id);
}
const output = await (await client.files.content(batch.output_file_id)).text();
const errors = await (await client.files.content(batch.error_file_id)).text();
const { data: again, response } = await client.batches.cancel(created.id).withResponse().catch((error) => ({
  data: { status: error.status, kind: error.constructor.name, message: error.message },
  response: { headers: error.headers },
}));
const deleted = await client.files.delete(file.id);
const gone = await client.files.content(file.id).catch((error) => ({ status: error.status, code: error.code }));

console.log(
  JSON.stringify({
    file,
    processed: processed.status,
    created,
    batch,
    output: output.split("\n").filter(Boolean).map(JSON.parse),
    errors: errors.split("\n").filter(Boolean).map(JSON.parse),
    again,
    requestId: response.headers.get("x-request-id"),
    deleted,
    gone: { status: gone.status, code: gone.code },
  }),
);
