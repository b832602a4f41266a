/* The playground. Every string that comes from outside (models, answers, errors) enters the page as a text node or a
 * property that is no markup; nothing here builds HTML. */
"use strict";

const $ = (id) => document.getElementById(id);
const live = (text) => { $("live").textContent = text; };

/* An element of a tag with properties and children; strings become text nodes. */
function el(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props || {})) {
    if (k.includes("-")) e.setAttribute(k, v);
    else e[k] = v;
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}
const button = (text, onclick, label) => {
  const b = el("button", {type: "button", className: "quiet", onclick}, text);
  if (label) b.setAttribute("aria-label", label);
  return b;
};

/* ---- talking to the server ---- */

class ApiError extends Error {
  constructor(status, e) {
    super(String((e && e.message) || `The server answered ${status}.`));
    this.status = status;
    this.param = e && e.param ? String(e.param) : "";
    this.code = e && e.code ? String(e.code) : "";
  }
}

async function api(path, opts) {
  const headers = {...(opts && opts.headers)};
  const key = sessionStorage.getItem("key");
  if (key) headers.Authorization = "Bearer " + key;
  const r = await fetch(path, {...opts, headers});
  if (r.ok) return r;
  let e = null;
  try { e = (await r.json()).error; } catch { /* no JSON: the status has to do */ }
  throw new ApiError(r.status, e);
}

/* Objects of a stream of server-sent events, as they come. */
async function* frames(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    rest += done ? decoder.decode() : decoder.decode(value, {stream: true});
    const lines = rest.split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const o = JSON.parse(data);
      if (o.error) throw new ApiError(200, o.error);
      yield o;
    }
    if (done) return;
  }
}

function errorBox(e) {
  const box = el("div", {className: "error", role: "alert"}, e.message);
  const more = [e.param && "field: " + e.param, e.code && "code: " + e.code, e.status > 200 && "status: " + e.status];
  const text = more.filter(Boolean).join("   ");
  if (text) box.append("\n", el("code", {}, text));
  return box;
}

/* The input that an error names is marked until it is changed. */
function markField(panel, param) {
  for (const i of panel.querySelectorAll("[data-param]")) {
    const hit = param && i.dataset.param.split(" ").includes(param.split(/[.[]/)[0]);
    i.toggleAttribute("aria-invalid", false);
    if (hit) {
      i.setAttribute("aria-invalid", "true");
      i.addEventListener("input", () => i.removeAttribute("aria-invalid"), {once: true});
    }
  }
}

/* ---- numbers and fields ---- */

const number = (id) => ($(id).value.trim() === "" ? undefined : Number($(id).value));
const text = (id) => ($(id).value === "" ? undefined : $(id).value);
/* Seeds have 63 bits, numbers of the page 53: whole numbers go into the body as they were typed. */
const whole = (id) => {
  const v = $(id).value.trim();
  return /^-?\d{1,19}$/.test(v) ? {digits: v} : number(id);
};
function toJson(o) {
  const mark = "whole-" + Math.random().toString(36).slice(2) + ":";
  const s = JSON.stringify(o, (k, v) => (v && v.digits ? mark + v.digits : v));
  return s.replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

/* ---- tabs and key ---- */

const tabs = ["chat", "images"];
function showTab(name, focus) {
  for (const t of tabs) {
    const on = t === name;
    $("tab-" + t).setAttribute("aria-selected", String(on));
    $("tab-" + t).tabIndex = on ? 0 : -1;
    $("panel-" + t).hidden = !on;
  }
  if (focus) $("tab-" + name).focus();
  history.replaceState(null, "", "#" + name);
}
for (const t of tabs) {
  $("tab-" + t).onclick = () => showTab(t);
  $("tab-" + t).onkeydown = (ev) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[ev.key];
    if (!step) return;
    ev.preventDefault();
    showTab(tabs[(tabs.indexOf(t) + step + tabs.length) % tabs.length], true);
  };
}

$("key").value = sessionStorage.getItem("key") || "";
$("key-dot").hidden = !$("key").value;
$("key").onchange = () => {
  const v = $("key").value.trim();
  if (v) sessionStorage.setItem("key", v);
  else sessionStorage.removeItem("key");
  $("key-dot").hidden = !v;
  loadModels();
};
$("key").onkeydown = (ev) => {
  if (ev.key === "Enter") { $("key").onchange(); $("key-box").open = false; }
};
document.addEventListener("keydown", (ev) => {
  if (ev.key === "Escape" && $("key-box").open) { $("key-box").open = false; $("key-box").firstElementChild.focus(); }
});
document.addEventListener("click", (ev) => { if (!$("key-box").contains(ev.target)) $("key-box").open = false; });

/* ---- models ---- */

let models = [];
const model = (select) => models.find((m) => m.id === $(select).value);
const isImage = (m) => m.kind === "image";
/* "embedding" and the like cannot chat. */
const isText = (m) => !m.kind || m.kind === "text";

function fillSelect(id, list) {
  const before = $(id).value;
  $(id).replaceChildren(...list.map((m) => el("option", {value: m.id}, m.id)));
  $(id).disabled = !list.length;
  if (!list.length) $(id).append(el("option", {value: ""}, "none is served"));
  if (list.some((m) => m.id === before)) $(id).value = before;
}

function notice(e) {
  $("notice").hidden = !e;
  $("notice").textContent = e || "";
}

async function loadModels() {
  try {
    models = (await (await api("v1/models")).json()).data;
    notice("");
  } catch (e) {
    models = [];
    notice(e.status === 401 ? "This server asks for an API key: enter it at the top right." : "The models could not be listed: " + e.message);
    if (e.status === 401) $("key-box").open = true;
  }
  fillSelect("chat-model", models.filter(isText));
  fillSelect("image-model", models.filter(isImage));
  chatModelShown();
  imageModelShown();
}

function chatModelShown() {
  const m = model("chat-model");
  $("chat-model-short").textContent = m ? m.id : "";
  const facts = [];
  if (m && m.max_model_len) facts.push(m.max_model_len.toLocaleString() + " tokens of context");
  if (m && m.meta && m.meta.n_params) facts.push((m.meta.n_params / 1e6).toFixed(0) + " M parameters");
  $("chat-facts").textContent = facts.join(" · ");
  $("send").disabled = !m;
}
$("chat-model").onchange = chatModelShown;

function imageModelShown() {
  const m = model("image-model"), f = (m && m.meta) || {};
  const limits = (id, min, max, step, def) => {
    const i = $(id);
    for (const [k, v] of [["min", min], ["max", max], ["step", step], ["placeholder", def]])
      if (v === undefined) i.removeAttribute(k);
      else i.setAttribute(k, v);
  };
  limits("width", f.size_min, f.size_max, f.size_step, f.size_default);
  limits("height", f.size_min, f.size_max, f.size_step, f.size_default);
  limits("steps", 1, f.steps_max, 1, f.steps_default);
  limits("guidance_scale", 0, f.guidance_max, 0.5, f.guidance_default);
  $("negative-field").hidden = f.negative_prompt === false;
  document.querySelector(".edit").hidden = f.edit === false;
  $("image-facts").textContent = f.arch ? `${f.arch} · sides ${f.size_min} to ${f.size_max} in steps of ${f.size_step}` : "";
  $("make").disabled = !m;
}
$("image-model").onchange = imageModelShown;

/* ---- chat ---- */

/* What is sent; `node` is where it is shown. */
let messages = [], running = null;

/* Text with ``` fences as blocks; blocks that have not changed keep their nodes, so that a selection survives. */
function showText(box, s) {
  const parts = [];
  let code = false;
  s.split(/^```([^\n`]*)\n?/m).forEach((piece, i) => {
    if (i % 2) { /* a fence, with what stands behind it */
      code = !code;
      if (!code && piece.trim()) parts.push({tag: "DIV", text: piece});
    } else if (code) {
      parts.push({tag: "PRE", text: piece.replace(/\n$/, "")});
    } else if (piece.trim()) {
      parts.push({tag: "DIV", text: piece.replace(/^\n+|\n+$/g, "")});
    }
  });
  parts.forEach((p, i) => {
    let n = box.children[i];
    if (!n || n.tagName !== p.tag) {
      const fresh = p.tag === "PRE" ? el("pre", {tabIndex: 0}) : el("div", {className: "text", dir: "auto"});
      if (n) n.replaceWith(fresh); else box.append(fresh);
      n = fresh;
    }
    if (n.textContent !== p.text) n.textContent = p.text;
  });
  while (box.children.length > parts.length) box.lastElementChild.remove();
}

function copyButton(get) {
  return button("Copy", async (ev) => {
    let ok = true;
    try { await navigator.clipboard.writeText(get()); } catch { ok = false; }
    ev.target.textContent = ok ? "Copied" : "Not allowed";
    live(ok ? "Copied" : "The browser does not allow copying here");
    setTimeout(() => { ev.target.textContent = "Copy"; }, 1500);
  });
}

/* A message in the log: body with the parts that there are, and a line of buttons and figures. */
function addMessage(m) {
  $("chat-empty").hidden = true;
  m.text = el("div", {});
  m.body = el("div", {className: "body"}, m.text);
  m.stats = el("span", {className: "stats"});
  m.meta = el("div", {className: "meta"}, copyButton(() => m.content));
  if (m.role === "user")
    m.meta.append(button("Edit", () => editFrom(m)));
  m.node = el("article", {className: "msg " + m.role}, el("h2", {className: "who"}, m.role === "user" ? "You" : m.model), m.body, m.meta);
  showText(m.text, m.content);
  $("log").append(m.node);
  scrollDown(true);
}

function scrollDown(force) {
  const wide = matchMedia("(min-width: 860px)").matches, box = wide ? $("log") : document.scrollingElement;
  if (force || box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
}

function dropFrom(i) {
  for (const m of messages.splice(i)) m.node.remove();
  $("chat-empty").hidden = messages.length > 0;
}

function editFrom(m) {
  if (running) running.abort();
  $("say").value = m.content;
  dropFrom(messages.indexOf(m));
  $("say").focus();
}

/* The request of the conversation so far; throws when the JSON of further fields is none. */
function chatBody() {
  const list = $("system").value.trim() ? [{role: "system", content: $("system").value}] : [];
  for (const m of messages) if (!m.failed) list.push({role: m.role, content: m.content});
  const stop = $("stop").value.split("\n").filter((s) => s !== "");
  const body = {model: $("chat-model").value, messages: list, stream: true, stream_options: {include_usage: true},
    temperature: number("temperature"), top_p: number("top_p"), max_tokens: number("max_tokens"), seed: whole("seed"),
    stop: stop.length ? stop : undefined};
  if (!$("extra").value.trim()) return body;
  let more;
  try { more = JSON.parse($("extra").value); } catch (e) { throw new Error("“More fields” is no JSON: " + e.message); }
  if (more === null || typeof more !== "object" || Array.isArray(more)) throw new Error("“More fields” must be a JSON object.");
  return Object.assign(body, more);
}

/* Parts that only some answers have. */
function showReasoning(m) {
  if (!m.think) {
    m.think = el("div", {className: "text", dir: "auto"});
    m.thinkBox = el("details", {className: "think"}, el("summary", {}, "Reasoning"), m.think);
    m.body.prepend(m.thinkBox);
  }
  m.think.textContent = m.reasoning;
}

function addCalls(m, list) {
  for (const d of list) {
    const i = d.index || 0, f = d.function || {};
    const c = m.calls[i] || (m.calls[i] = {name: "", args: ""});
    c.name += f.name || "";
    c.args += f.arguments || "";
    if (!c.node) {
      c.who = el("p", {className: "who"});
      c.pre = el("pre", {tabIndex: 0});
      c.node = el("div", {className: "call"}, c.who, c.pre);
      m.body.append(c.node);
    }
    c.who.textContent = "Tool call: " + c.name;
    c.pre.textContent = c.args;
  }
}

function takeDelta(m, o) {
  if (o.usage) m.usage = o.usage;
  const c = o.choices && o.choices[0];
  if (!c) return;
  const d = c.delta || {};
  const thought = d.reasoning_content || d.reasoning;
  if (thought) m.reasoning += thought;
  if (d.content) m.content += d.content;
  if (d.refusal) m.content += d.refusal;
  if (Array.isArray(d.tool_calls)) addCalls(m, d.tool_calls);
  if (thought || d.content || d.tool_calls) {
    m.first = m.first || performance.now();
    m.last = performance.now();
  }
  if (c.finish_reason) m.finish = c.finish_reason;
}

function showStats(m, start) {
  const u = m.usage, parts = [];
  if (u) parts.push(`${u.prompt_tokens} + ${u.completion_tokens} tokens`);
  if (u && u.prompt_tokens_details && u.prompt_tokens_details.cached_tokens) parts.push(u.prompt_tokens_details.cached_tokens + " cached");
  if (u && m.last > m.first && u.completion_tokens > 1) parts.push(((u.completion_tokens - 1) * 1000 / (m.last - m.first)).toFixed(1) + " tokens/s");
  if (m.first) parts.push("first after " + ((m.first - start) / 1000).toFixed(2) + " s");
  if (m.finish && m.finish !== "stop") parts.push("ended by " + m.finish);
  m.stats.textContent = parts.join(" · ");
}

async function answer() {
  const m = {role: "assistant", model: $("chat-model").value, content: "", reasoning: "", calls: [], finish: ""};
  const control = new AbortController(), start = performance.now();
  let drawn = 0;
  const draw = () => {
    drawn = 0;
    showText(m.text, m.content);
    if (m.reasoning) showReasoning(m);
    scrollDown(false);
  };
  running = control;
  chatBusy(true);
  markField($("panel-chat"), "");
  messages.push(m);
  addMessage(m);
  m.text.classList.add("wait");
  try {
    messages.pop(); /* the body holds what came before */
    const body = chatBody();
    messages.push(m);
    const r = await api("v1/chat/completions", {method: "POST", headers: {"Content-Type": "application/json"}, body: toJson(body), signal: control.signal});
    for await (const o of frames(r)) {
      takeDelta(m, o);
      /* Laying out a very long text takes its time: the longer, the rarer. */
      if (!drawn) drawn = setTimeout(draw, Math.max(16, m.content.length / 200));
    }
    live("Answer complete" + (m.usage ? `, ${m.usage.completion_tokens} tokens` : ""));
  } catch (e) {
    if (!messages.includes(m)) messages.push(m);
    if (e.name === "AbortError") {
      m.finish = "you";
      live("Stopped");
    } else {
      m.failed = !m.content;
      m.body.append(errorBox(e));
      markField($("panel-chat"), e.param);
    }
  }
  clearTimeout(drawn);
  draw();
  m.text.classList.remove("wait");
  if (!m.body.textContent) m.text.append(el("div", {className: "text"}, "(empty)"));
  showStats(m, start);
  if (!m.node.isConnected) messages = messages.filter((x) => x !== m); /* cleared meanwhile */
  m.meta.append(button("Regenerate", () => {
    if (running) return;
    dropFrom(messages.indexOf(m));
    answer();
  }), m.stats);
  if (running === control) {
    running = null;
    chatBusy(false);
  }
}

function chatBusy(on) {
  $("chat-stop").hidden = !on;
  $("send").hidden = on;
}

$("chat-form").onsubmit = (ev) => {
  ev.preventDefault();
  const s = $("say").value;
  if (!s.trim() || running || $("send").disabled) return;
  $("say").value = "";
  fitComposer();
  const m = {role: "user", content: s};
  messages.push(m);
  addMessage(m);
  answer();
};
$("say").onkeydown = (ev) => {
  if (ev.key === "Enter" && !ev.shiftKey && !ev.isComposing) { ev.preventDefault(); $("chat-form").requestSubmit(); }
};
function fitComposer() {
  $("say").style.height = "auto";
  $("say").style.height = Math.min($("say").scrollHeight, 320) + "px";
}
$("say").oninput = fitComposer;
$("chat-stop").onclick = () => { if (running) running.abort(); $("say").focus(); };
$("clear").onclick = () => {
  if (running) running.abort();
  dropFrom(0);
  live("Conversation cleared");
  $("say").focus();
};

/* ---- images ---- */

let painting = null;

function imageFields() {
  return {model: $("image-model").value, prompt: $("prompt").value, negative_prompt: $("negative-field").hidden ? undefined : text("negative_prompt"),
    width: number("width"), height: number("height"), steps: number("steps"), guidance_scale: number("guidance_scale"),
    seed: whole("image-seed"), n: number("n"), sampler: text("sampler"), stream: true,
    partial_images: Number($("partial_images").value), progress: true};
}

async function imageRequest(signal) {
  const f = imageFields();
  /* One side alone: the other is the model's own. */
  const own = ((model("image-model") || {}).meta || {}).size_default;
  if ((f.width === undefined) !== (f.height === undefined)) { f.width ??= own; f.height ??= own; }
  if (!edit.image)
    return api("v1/images/generations", {method: "POST", headers: {"Content-Type": "application/json"}, body: toJson(f), signal});
  const form = new FormData();
  f.strength = number("strength");
  for (const [k, v] of Object.entries(f)) if (v !== undefined) form.append(k, v.digits || String(v));
  form.append("image", edit.file, "image");
  if (edit.painted) form.append("mask", await maskFile(), "mask.png");
  return api("v1/images/edits", {method: "POST", body: form, signal});
}

function addFigure(prompt) {
  $("gallery-empty").hidden = true;
  const f = {prompt};
  f.bar = el("progress", {max: 1, value: 0, "aria-label": "Progress"});
  f.bar.removeAttribute("value");
  f.frame = el("div", {className: "frame"}, f.bar);
  f.facts = el("dl", {});
  f.row = el("div", {className: "row"});
  f.node = el("figure", {}, f.frame, el("figcaption", {}, el("p", {className: "said", dir: "auto"}, prompt), f.facts, f.row));
  $("gallery").prepend(f.node);
  return f;
}

function showPicture(f, o, partial) {
  const format = /^(png|jpeg|webp)$/.test(o.output_format) ? o.output_format : "png";
  if (!f.img) f.frame.prepend(f.img = el("img", {}));
  f.img.src = `data:image/${format};base64,` + String(o.b64_json).replace(/[^A-Za-z0-9+/=]/g, "");
  f.img.alt = (partial ? "Preview of: " : "Picture of: ") + f.prompt;
  f.img.className = partial ? "partial" : "";
  f.name = `stepd-${(o.stepd && o.stepd.seed) || "picture"}.${format === "jpeg" ? "jpg" : format}`;
  if (o.stepd && o.stepd.width) {
    f.frame.style.aspectRatio = `${Number(o.stepd.width)} / ${Number(o.stepd.height)}`;
    if (o.stepd.width <= 256) f.img.classList.add("small");
  }
}

function finishFigure(f, o) {
  const p = {...o.stepd};
  delete p.index;
  if (p.width) { p.size = `${p.width} × ${p.height}`; delete p.width; delete p.height; }
  if (!p.negative_prompt) delete p.negative_prompt;
  f.facts.replaceChildren(...Object.entries(p).map(([k, v]) => el("div", {}, el("dt", {}, k.replace(/_/g, " ")), el("dd", {}, String(v)))));
  f.row.replaceChildren(
    button("Download", () => el("a", {href: f.img.src, download: f.name}).click(), "Download the picture"),
    button("Edit", () => useAsInput(f), "Use the picture as input"),
    button("Reuse", () => reuse(f.prompt, o.stepd || {}), "Reuse the picture's settings"),
    button("Remove", () => { f.node.remove(); $("gallery-empty").hidden = !!$("gallery").querySelector("figure"); }, "Remove the picture from the page"));
}

function reuse(prompt, s) {
  $("prompt").value = prompt;
  const set = {negative_prompt: s.negative_prompt, width: s.width, height: s.height, steps: s.steps, guidance_scale: s.guidance_scale, "image-seed": s.seed, sampler: s.sampler};
  for (const [id, v] of Object.entries(set)) if (v !== undefined) $(id).value = String(v);
  $("prompt").focus();
  live("Settings taken over");
}

async function make() {
  const control = new AbortController(), n = Math.min(Math.max(number("n") || 1, 1), 128), prompt = $("prompt").value;
  const start = performance.now();
  const figures = [];
  painting = control;
  imageBusy(true);
  markField($("panel-images"), "");
  $("image-errors").replaceChildren();
  for (let i = 0; i < n && i < 16; i++) figures[i] = addFigure(prompt);
  /* Prepended one by one, they stand in reverse. */
  figures.slice().reverse().forEach((f) => $("gallery").prepend(f.node));
  if (!matchMedia("(min-width: 860px)").matches) figures[0].node.scrollIntoView({block: "nearest"});
  const figure = (i) => figures[i] || (figures[i] = addFigure(prompt));
  try {
    for await (const o of frames(await imageRequest(control.signal))) {
      const kind = String(o.type).split(".").pop(), index = o.index ?? (o.stepd && o.stepd.index) ?? 0, f = figure(index);
      if (kind === "progress") {
        f.bar.max = o.total;
        f.bar.value = o.step;
        f.facts.replaceChildren(el("div", {}, el("dt", {}, "step"), el("dd", {}, `${o.step} of ${o.total}, ${(o.eta_ms / 1000).toFixed(1)} s left`)));
      } else if (kind === "partial_image") {
        showPicture(f, o, true);
      } else if (kind === "completed") {
        showPicture(f, o, false);
        finishFigure(f, o);
        f.bar.remove();
        f.done = true;
      }
    }
    live(`${figures.filter((f) => f.done).length} of ${n} pictures made in ${((performance.now() - start) / 1000).toFixed(1)} seconds`);
  } catch (e) {
    if (e.name === "AbortError") {
      live("Stopped");
    } else {
      $("image-errors").append(errorBox(e));
      markField($("panel-images"), e.param);
    }
  }
  for (const f of figures) if (!f.done) f.node.remove();
  $("gallery-empty").hidden = !!$("gallery").querySelector("figure");
  painting = null;
  imageBusy(false);
}

function imageBusy(on) {
  $("image-stop").hidden = !on;
  $("make").hidden = on;
}

$("image-form").onsubmit = (ev) => {
  ev.preventDefault();
  if (!painting && !$("make").disabled) make();
};
$("prompt").onkeydown = (ev) => {
  if (ev.key === "Enter" && !ev.shiftKey && !ev.isComposing) { ev.preventDefault(); $("image-form").requestSubmit(); }
};
$("image-stop").onclick = () => { if (painting) painting.abort(); };

/* ---- the picture to edit, and paint on it ---- */

const edit = {image: null, file: null, mask: document.createElement("canvas"), painted: false, x: 0, y: 0};

function drawEdit() {
  const c = $("paint"), g = c.getContext("2d");
  g.clearRect(0, 0, c.width, c.height);
  g.drawImage(edit.image, 0, 0);
  g.globalAlpha = 0.55;
  g.drawImage(edit.mask, 0, 0);
  g.globalAlpha = 1;
  if (document.activeElement === c) {
    g.strokeStyle = "#0f766e";
    g.lineWidth = Math.max(1, c.width / 200);
    g.beginPath();
    g.arc(edit.x, edit.y, brush(), 0, 7);
    g.stroke();
  }
}

const brush = () => Number($("brush").value) / 100 * Math.max(edit.mask.width, edit.mask.height);

function stroke(x0, y0, x1, y1) {
  const g = edit.mask.getContext("2d");
  g.strokeStyle = "#e11d48";
  g.lineCap = "round";
  g.lineWidth = 2 * brush();
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1 + 0.01, y1);
  g.stroke();
  edit.painted = true;
  drawEdit();
}

async function setInput(file) {
  let image;
  try { image = await createImageBitmap(file); } catch {
    $("image-errors").replaceChildren(errorBox(new ApiError(0, {message: "This file is no picture that the browser can read.", param: "image"})));
    return;
  }
  $("image-errors").replaceChildren();
  Object.assign(edit, {image, file, painted: false, x: image.width / 2, y: image.height / 2});
  for (const c of [$("paint"), edit.mask]) { c.width = image.width; c.height = image.height; }
  $("edit").hidden = false;
  $("make").textContent = "Edit";
  drawEdit();
}

function clearInput() {
  Object.assign(edit, {image: null, file: null, painted: false});
  $("file").value = "";
  $("edit").hidden = true;
  $("make").textContent = "Make";
}

async function useAsInput(f) {
  const bytes = Uint8Array.from(atob(f.img.src.split(",")[1]), (c) => c.charCodeAt(0));
  await setInput(new File([bytes], f.name, {type: f.img.src.slice(5, f.img.src.indexOf(";"))}));
  $("paint").scrollIntoView({block: "center"});
  $("paint").focus();
}

/* OpenAI's mask: as large as the picture, and transparent where it is to be repainted. */
function maskFile() {
  const c = document.createElement("canvas");
  c.width = edit.mask.width;
  c.height = edit.mask.height;
  const g = c.getContext("2d");
  g.fillStyle = "#000";
  g.fillRect(0, 0, c.width, c.height);
  const px = g.getImageData(0, 0, c.width, c.height), paint = edit.mask.getContext("2d").getImageData(0, 0, c.width, c.height);
  for (let i = 3; i < px.data.length; i += 4) px.data[i] = paint.data[i] > 127 ? 0 : 255;
  g.putImageData(px, 0, 0);
  return new Promise((done) => { c.toBlob(done, "image/png"); });
}

$("file").onchange = () => { if ($("file").files[0]) setInput($("file").files[0]); else clearInput(); };
$("file-clear").onclick = clearInput;
$("mask-clear").onclick = () => {
  edit.mask.getContext("2d").clearRect(0, 0, edit.mask.width, edit.mask.height);
  edit.painted = false;
  drawEdit();
};
function at(ev) {
  const r = $("paint").getBoundingClientRect();
  return [(ev.clientX - r.left) * $("paint").width / r.width, (ev.clientY - r.top) * $("paint").height / r.height];
}
$("paint").onpointerdown = (ev) => {
  $("paint").setPointerCapture(ev.pointerId);
  [edit.x, edit.y] = at(ev);
  stroke(edit.x, edit.y, edit.x, edit.y);
};
$("paint").onpointermove = (ev) => {
  if (!ev.buttons) return;
  const [x, y] = at(ev);
  stroke(edit.x, edit.y, x, y);
  [edit.x, edit.y] = [x, y];
};
$("paint").onkeydown = (ev) => {
  const step = Math.max(1, edit.mask.width / 32), move = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]}[ev.key];
  if (!move && ev.key !== " ") return;
  ev.preventDefault();
  if (move) {
    edit.x = Math.min(Math.max(edit.x + move[0], 0), edit.mask.width);
    edit.y = Math.min(Math.max(edit.y + move[1], 0), edit.mask.height);
    drawEdit();
  } else {
    stroke(edit.x, edit.y, edit.x, edit.y);
  }
};
$("paint").onfocus = $("paint").onblur = () => { if (edit.image) drawEdit(); };

/* ---- start ---- */

const wide = matchMedia("(min-width: 860px)");
function fitSide() { $("chat-side").open = wide.matches; }
wide.addEventListener("change", fitSide);
$("chat-side").firstElementChild.addEventListener("click", (ev) => { if (wide.matches) ev.preventDefault(); });
fitSide();
if (location.hash === "#images") showTab("images");
loadModels().then(() => {
  if (!location.hash && !models.some(isText) && models.some(isImage)) showTab("images");
});
