// The official OpenAI SDK for Node against a running daemon: node sdk.mjs BASE_URL. Prints "N passed, N failed".
import OpenAI, { toFile } from "openai";
import assert from "node:assert/strict";
import { run } from "./run.mjs";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "sk-test", maxRetries: 0 });
const ask = { model: "smollm2-135m", temperature: 0, messages: [{ role: "user", content: "What is the capital of France?" }] };
const picture = { model: "tiny-t2i", prompt: "a red circle", steps: 3, seed: 7 };
const pngSize = (b64) => {
  const b = Buffer.from(b64, "base64");
  assert.equal(b.toString("latin1", 1, 4), "PNG");
  return [b.readUInt32BE(16), b.readUInt32BE(20)];
};
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
    assert.deepEqual(ids.sort(), ["smollm2-135m", "tiny-t2i", "vec"]);
    assert.equal((await client.models.retrieve("vec")).object, "model");
    await assert.rejects(client.models.retrieve("none"), (e) => e instanceof OpenAI.NotFoundError);
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ ...ask, top_p: 2 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "top_p");
    await assert.rejects(client.chat.completions.create({ ...ask, model: "none" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    const other = new OpenAI({ baseURL: process.argv[2], apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.models.list(), (e) => e instanceof OpenAI.AuthenticationError);
  },
  async image() {
    const r = await client.images.generate({ ...picture, n: 2 });
    assert.equal(r.data.length, 2);
    for (const d of r.data) assert.deepEqual(pngSize(d.b64_json), [64, 64]);
    assert.equal(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens);
    await assert.rejects(client.images.generate({ ...picture, size: "65x65" }), (e) => e instanceof OpenAI.BadRequestError && e.param === "size");
  },
  async imageStream() {
    const whole = await client.images.generate(picture), types = [];
    let last = null;
    for await (const e of await client.images.generate({ ...picture, stream: true, partial_images: 1 })) {
      types.push(e.type);
      last = e;
    }
    assert.deepEqual(types, ["image_generation.partial_image", "image_generation.completed"]);
    assert.equal(last.b64_json, whole.data[0].b64_json);
  },
  async imageEdit() {
    const made = Buffer.from((await client.images.generate(picture)).data[0].b64_json, "base64");
    const image = await toFile(made, "a.png", { type: "image/png" });
    const r = await client.images.edit({ ...picture, image, prompt: "a blue star" });
    assert.deepEqual(pngSize(r.data[0].b64_json), [64, 64]);
    assert.ok(r.usage.input_tokens_details.image_tokens > 0);
    await assert.rejects(client.images.edit({ ...picture, image, mask: image }), (e) => e instanceof OpenAI.BadRequestError && e.param === "mask");
  },
  async abort() {
    const s = await client.chat.completions.create({ ...ask, stream: true, max_tokens: 2000, ignore_eos: true });
    for await (const _ of s) break; // leaves the loop: the SDK closes the connection
  },
};

await run(tests);
