// Anthropic's SDK for Node against a running daemon: node anthropic.mjs BASE_URL (without /v1).
import Anthropic from "@anthropic-ai/sdk";
import assert from "node:assert/strict";
import { run } from "./run.mjs";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "sk-test", maxRetries: 0 });
const model = "smollm2-135m";
const ask = { model, max_tokens: 30, temperature: 0, messages: [{ role: "user", content: "What is the capital of France?" }] };
const paris = "The capital of France is Paris.";
const tool = { name: "get_weather", description: "Weather", input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } };
const call = { ...ask, max_tokens: 60, tools: [tool], tool_choice: { type: "any" } };

const tests = {
  async create() {
    const r = await client.messages.create(ask);
    assert.deepEqual(r.content.map((b) => [b.type, b.text]), [["text", paris]]);
    assert.equal(r.stop_reason, "end_turn");
    assert.equal((await client.messages.countTokens({ model, messages: ask.messages })).input_tokens, r.usage.input_tokens + r.usage.cache_read_input_tokens);
  },
  async stream() {
    let text = "";
    const s = client.messages.stream(ask).on("text", (d) => { text += d; });
    const r = await s.finalMessage();
    assert.equal(text, paris);
    assert.equal(await s.finalText(), paris);
    assert.ok(r.usage.output_tokens > 4);
  },
  async streamWithTools() {
    const whole = await client.messages.create(call);
    assert.equal(whole.stop_reason, "tool_use");
    let json = "", last = null;
    const s = client.messages.stream(call).on("inputJson", (d, snapshot) => { json += d; last = snapshot; });
    const r = await s.finalMessage();
    assert.equal(r.stop_reason, "tool_use");
    assert.deepEqual(r.content.map((b) => [b.type, b.name, b.input]), whole.content.map((b) => [b.type, b.name, b.input]));
    assert.deepEqual(JSON.parse(json), r.content[0].input);
    assert.deepEqual(last, r.content[0].input);
  },
  async toolResult() {
    const first = await client.messages.create(call);
    const result = { role: "user", content: [{ type: "tool_result", tool_use_id: first.content[0].id, content: "18 degrees" }] };
    const r = await client.messages.create({ ...call, tool_choice: { type: "none" }, messages: [...ask.messages, { role: "assistant", content: first.content }, result] });
    assert.deepEqual(r.content.map((b) => b.type), ["text"]);
  },
  async errors() {
    await assert.rejects(client.messages.create({ ...ask, temperature: 3 }), (e) => e instanceof Anthropic.BadRequestError && /temperature/.test(e.message));
    await assert.rejects(client.messages.create({ ...ask, model: "claude" }), (e) => e instanceof Anthropic.NotFoundError);
    const other = new Anthropic({ baseURL: process.argv[2], apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.messages.create(ask), (e) => e instanceof Anthropic.AuthenticationError);
  },
};

await run(tests);
