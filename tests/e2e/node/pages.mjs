// Pagination by the official Node SDK: every batch and file, each once. Prints the ids as one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });

const batches = [];
for await (const batch of client.batches.list({ limit: 7 })) {
  batches.push(batch.id);
}

const files = { asc: [], desc: [] };
for (const order of ["asc", "desc"]) {
  for await (const file of client.files.list({ limit: 5, order, purpose: "batch" })) {
    files[order].push(file.id);
  }
}

const first = await client.batches.list({ limit: 2 });
const second = await first.getNextPage();

console.log(JSON.stringify({ batches, files, pages: [first.data.map((one) => one.id), second.data.map((one) => one.id)] }));
