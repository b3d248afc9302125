// Completions and embeddings by the official Node SDK. Prints what came as one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });

const plain = await client.completions.create({ model: "echo", prompt: "once upon" });
const chunks = [];
for await (const chunk of await client.completions.create({ model: "echo", prompt: "once upon", stream: true })) {
  chunks.push(chunk);
}
const embeddings = await client.embeddings.create({ model: "echo", input: ["a", "b"] });

console.log(JSON.stringify({ plain, chunks, embeddings }));
