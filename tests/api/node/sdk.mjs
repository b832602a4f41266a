// The official OpenAI SDK for Node against a running daemon: node sdk.mjs BASE_URL. Prints "N passed, N failed".
import OpenAI from "openai";
import assert from "node:assert/strict";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "sk-test", maxRetries: 0 });
const ask = { model: "smollm2-135m", temperature: 0, messages: [{ role: "user", content: "What is the capital of France?" }] };
const paris = "The capital of France is Paris.";

const tests = {
  async chat() {
    const r = await client.chat.completions.create(ask);
    assert.equal(r.choices[0].message.content, paris);
    assert.equal(r.usage.prompt_tokens, 37);
  },
  async stream() {
    let text = "", usage = null;
    for await (const c of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
      text += c.choices[0]?.delta?.content ?? "";
      usage = c.usage ?? usage;
    }
    assert.equal(text, paris);
    assert.equal(usage.prompt_tokens, 37);
  },
  async helperStream() {
    const s = client.chat.completions.stream(ask);
    const r = await s.finalChatCompletion();
    assert.equal(r.choices[0].message.content, paris);
    assert.equal(r.choices[0].finish_reason, "stop");
  },
  async completions() {
    const r = await client.completions.create({ model: "smollm2-135m", prompt: "The capital of France is", max_tokens: 8, temperature: 0 });
    assert.match(r.choices[0].text, /Paris/);
  },
  async models() {
    const ids = [];
    for await (const m of client.models.list()) ids.push(m.id);
    assert.deepEqual(ids, ["smollm2-135m"]);
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ ...ask, top_p: 2 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "top_p");
    await assert.rejects(client.chat.completions.create({ ...ask, model: "none" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    const other = new OpenAI({ baseURL: process.argv[2], apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.models.list(), (e) => e instanceof OpenAI.AuthenticationError);
  },
  async abort() {
    const s = await client.chat.completions.create({ ...ask, stream: true, max_tokens: 2000, ignore_eos: true });
    for await (const _ of s) break; // leaves the loop: the SDK closes the connection
  },
};

let passed = 0, failed = 0;
for (const [name, fn] of Object.entries(tests)) {
  try {
    await fn();
    passed++;
  } catch (e) {
    failed++;
    console.log(`${name}: ${e.stack}`);
  }
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
