// The OpenAI SDK's helpers for Node: Zod models, tool loops, stream helpers, embeddings: node helpers.mjs BASE_URL.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import assert from "node:assert/strict";
import { run } from "./run.mjs";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "sk-test", maxRetries: 0 });
const model = "smollm2-135m";
const user = (content) => ({ role: "user", content });
const Person = z.object({
  name: z.string(),
  age: z.number().int(),
  colour: z.enum(["red", "green"]),
  nick: z.string().nullable(),
  tags: z.array(z.enum(["a", "b"])),
});
const describe = { model, temperature: 0, max_tokens: 400, messages: [user("Describe a person who lives in Paris.")] };

// A small model calls a tool when it has seen how, and a pattern holds it to what a call and an answer look like.
const turn = (city, sky) => [
  user(`What is the weather in ${city}?`),
  { role: "assistant", content: null, tool_calls: [{ id: `call_${city}`, type: "function", function: { name: "get_weather", arguments: JSON.stringify({ city }) } }] },
  { role: "tool", tool_call_id: `call_${city}`, content: sky },
  { role: "assistant", content: `It is ${sky} in ${city}.` },
];
const weather = {
  model,
  temperature: 0,
  max_tokens: 60,
  messages: [...turn("Bern", "rainy"), ...turn("Rome", "sunny"), user("What is the weather in Oslo?")],
  regex: '<tool_call>\\{"name": "get_weather", "arguments": \\{"city": "[A-Z][a-z]{2,8}"\\}\\}</tool_call>|It is [a-z]{3,9} in [A-Z][a-z]{2,8}\\.',
};
const said = "It is snowy in Oslo.";

const tests = {
  async parse() {
    const r = await client.chat.completions.parse({ ...describe, response_format: zodResponseFormat(Person, "person") });
    const m = r.choices[0].message;
    assert.deepEqual(Person.parse(m.parsed), JSON.parse(m.content));
  },
  async parseStream() {
    const s = client.chat.completions.stream({ ...describe, response_format: zodResponseFormat(Person, "person") });
    let deltas = "", partial = null;
    s.on("content.delta", (e) => { deltas += e.delta; partial = e.parsed ?? partial; });
    const m = (await s.finalChatCompletion()).choices[0].message;
    assert.equal(deltas, m.content);
    assert.deepEqual(partial, m.parsed);
    Person.parse(m.parsed);
  },
  async streamEvents() {
    const s = client.chat.completions.stream({ model, temperature: 0, logprobs: true, messages: [user("What is the capital of France?")], stream_options: { include_usage: true } });
    let text = "", probs = 0;
    s.on("content", (d) => { text += d; }).on("logprobs.content.delta", () => { probs++; });
    const r = await s.finalChatCompletion();
    assert.equal(text, "The capital of France is Paris.");
    assert.equal(await s.finalContent(), text);
    assert.equal(r.choices[0].logprobs.content.length, probs);
    assert.equal((await s.totalUsage()).completion_tokens, r.usage.completion_tokens);
  },
  async forcedZodTool() {
    const tool = zodFunction({ name: "pick", parameters: z.object({ colour: z.enum(["red", "blue"]), count: z.number().int() }) });
    const r = await client.chat.completions.parse({ ...describe, tools: [tool], tool_choice: "required" });
    const call = r.choices[0].message.tool_calls[0];
    assert.equal(r.choices[0].finish_reason, "tool_calls");
    assert.deepEqual(call.function.parsed_arguments, JSON.parse(call.function.arguments));
    assert.ok(["red", "blue"].includes(call.function.parsed_arguments.colour) && Number.isInteger(call.function.parsed_arguments.count));
  },
  async toolLoop() {
    for (const stream of [false, true]) {
      const asked = [];
      const get = zodFunction({ name: "get_weather", parameters: z.object({ city: z.string() }), function: ({ city }) => { asked.push(city); return "snowy"; } });
      const r = client.chat.completions.runTools({ ...weather, stream, tools: [get] });
      assert.equal(await r.finalContent(), said);
      assert.deepEqual(asked, ["Oslo"]);
      assert.equal((await r.finalFunctionToolCall()).name, "get_weather");
      assert.equal(await r.finalFunctionToolCallResult(), "snowy");
      assert.equal(r.allChatCompletions().length, 2);
    }
  },
  async embeddings() {
    const input = ["w5 w6", "w7"];
    const floats = await client.embeddings.create({ model: "vec", input, encoding_format: "float" });
    const packed = await client.embeddings.create({ model: "vec", input }); // the SDK asks for base64
    assert.equal(floats.data.length, 2);
    for (const [i, d] of floats.data.entries()) {
      assert.equal(d.index, i);
      assert.deepEqual([...Float32Array.from(d.embedding)], [...packed.data[i].embedding]);
      assert.ok(Math.abs(Math.hypot(...d.embedding) - 1) < 1e-5);
    }
    const short = await client.embeddings.create({ model: "vec", input, dimensions: 8 });
    assert.equal(short.data[0].embedding.length, 8);
    assert.equal(floats.usage.prompt_tokens, floats.usage.total_tokens);
    await assert.rejects(client.embeddings.create({ model: "vec", input: [] }), (e) => e instanceof OpenAI.BadRequestError && e.param === "input");
  },
  async responses() {
    const r = await client.responses.create({ model, temperature: 0, input: "What is the capital of France?" });
    assert.equal(r.output_text, "The capital of France is Paris.");
    assert.equal((await client.responses.retrieve(r.id)).output_text, r.output_text);
    const next = await client.responses.create({ model, temperature: 0, input: "And of Italy?", previous_response_id: r.id, max_output_tokens: 16 });
    assert.equal(next.previous_response_id, r.id);
    const items = [];
    for await (const item of client.responses.inputItems.list(next.id, { order: "asc" })) items.push(item.role);
    assert.deepEqual(items, ["user", "assistant", "user"]);
    await client.responses.delete(r.id);
    await assert.rejects(client.responses.retrieve(r.id), (e) => e instanceof OpenAI.NotFoundError);
  },
  async responsesStream() {
    const s = client.responses.stream({ model, temperature: 0, input: "What is the capital of France?" });
    let text = "";
    s.on("response.output_text.delta", (e) => { text += e.delta; });
    const r = await s.finalResponse();
    assert.equal(text, "The capital of France is Paris.");
    assert.equal(r.output_text, text);
    assert.equal(r.status, "completed");
  },
  async responsesParse() {
    const ask = { model, temperature: 0, input: "Describe a person who lives in Paris.", text: { format: zodTextFormat(Person, "person") }, max_output_tokens: 400 };
    const r = await client.responses.parse(ask);
    Person.parse(r.output_parsed);
    const s = await client.responses.stream(ask).finalResponse();
    assert.deepEqual(s.output_parsed, r.output_parsed);
  },
  async responsesTools() {
    const tool = { type: "function", name: "get_weather", strict: true, parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false } };
    const ask = { model, temperature: 0, max_output_tokens: 60, tools: [tool] };
    const r = await client.responses.create({ ...ask, input: "Weather in Paris?", tool_choice: "required" });
    const call = r.output.find((i) => i.type === "function_call");
    assert.deepEqual(Object.keys(JSON.parse(call.arguments)), ["city"]);
    let args = "";
    for await (const e of await client.responses.create({ ...ask, input: "Weather in Paris?", tool_choice: "required", stream: true }))
      if (e.type === "response.function_call_arguments.delta") args += e.delta;
    assert.equal(args, call.arguments);
    const end = await client.responses.create({ ...ask, previous_response_id: r.id, tool_choice: "none", input: [{ type: "function_call_output", call_id: call.call_id, output: "snowy" }] });
    assert.ok(end.output_text.length > 0);
  },
};

await run(tests);
