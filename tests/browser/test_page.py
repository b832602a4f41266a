#!/usr/bin/env python3
"""The playground in a real browser: chats and pictures, stopping, keyboard and labels, and that nothing which comes from
outside (prompts, answers, errors, names of models) is ever anything but text.

Needs Chromium and the packages of requirements.txt (conf/setup.sh browser); without them the browser's part is skipped,
and the files and their headers are tested alone. CHROMIUM names another browser."""
import json
import os
import re
import shutil
import sys
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OWN = os.path.join(TOP, ".venv-browser", "bin", "python")
if os.path.exists(OWN) and not os.environ.get("BROWSER_PYTHON"):
    os.environ["BROWSER_PYTHON"] = "1"  # once
    os.execv(OWN, [OWN, *sys.argv])
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import SLOW, Daemon, tiny_model  # noqa: E402

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, (
    "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None)
WHY = (None if sync_playwright and CHROMIUM else
       "skipped: no " + ("Chromium" if sync_playwright else "playwright package") + " here (conf/setup.sh browser)")
WAIT = 20000 * SLOW
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")

# Each would set window.hit, open a dialog, load something or add an element if it were ever taken for markup.
HOSTILE = [
    "<script>window.hit=1</script>", "<SCRIPT SRC=//x.invalid/x.js></SCRIPT>", "<img src=x onerror=window.hit=1>",
    "<svg onload=window.hit=1>", "<svg><script>window.hit=1</script></svg>", "<iframe srcdoc='<script>parent.hit=1</script>'>",
    "<iframe src=javascript:parent.hit=1>", "<body onload=window.hit=1>", "<details open ontoggle=window.hit=1>x",
    "<input autofocus onfocus=window.hit=1>", "<a href=javascript:window.hit=1 id=evil>click</a>", "<math><mtext><img src=x onerror=hit=1>",
    "<style>*{display:none}</style>", "<link rel=stylesheet href=//x.invalid/x.css>", "<base href=//x.invalid/>",
    "<meta http-equiv=refresh content='0;url=//x.invalid/'>", "<form action=//x.invalid><button>x</button></form>",
    "<object data=//x.invalid>", "<embed src=//x.invalid>", "<template><script>hit=1</script></template>",
    "</textarea><script>window.hit=1</script>", "</option></select><img src=x onerror=hit=1>", "\"><img src=x onerror=hit=1>",
    "' onmouseover='window.hit=1", "\" style=\"position:fixed;inset:0\" x=\"", "javascript:window.hit=1", "data:text/html,<script>hit=1</script>",
    "{{constructor.constructor('window.hit=1')()}}", "${window.hit=1}", "#{window.hit=1}", "<%= window.hit=1 %>", "[[${window.hit=1}]]",
    "![x](x\" onerror=\"window.hit=1)", "[click](javascript:window.hit=1)", "```\"><script>window.hit=1</script>\nx\n```",
    "&lt;script&gt;window.hit=1&lt;/script&gt;", "\\u003cscript\\u003ewindow.hit=1\\u003c/script\\u003e", "<scr\u0000ipt>window.hit=1</scr\u0000ipt>",
    "＜script＞window.hit=1＜/script＞", "\u202e<tpircs/>1=tih<tpircs>\u202c", "مرحبا <b>بالعالم</b> ‏‎", "\u2066\u2067\u2068\ufeff\u200b\u2028\u2029",
    "Z" + "\u0335\u0321\u0489" * 200, "W" * 20000, "a " * 10000, "\n" * 300 + "end", "-->\n<!--<script>window.hit=1</script>-->",
    "]]><![CDATA[<script>window.hit=1</script>", "data: {\"error\": {}}\n\ndata: [DONE]\n\n", "__proto__", "constructor", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U000e0041\U000e007f",
]

WATCH = """
window.reports = [];
document.addEventListener("securitypolicyviolation", (e) => window.reports.push(e.violatedDirective + " " + e.blockedURI));
"""


def template(folder):
    path = os.path.join(folder, "chat.jinja")
    with open(path, "w") as f:
        f.write("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    return path


def sse(*objects):
    return "".join("data: " + (o if isinstance(o, str) else json.dumps(o)) + "\n\n" for o in objects)


def delta(**kw):
    return {"choices": [{"index": 0, "delta": kw, "finish_reason": None}]}


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class Files(unittest.TestCase):
    def test_headers(self):
        with Daemon("--device", "null", model=tiny_model()) as d:
            for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css"), ("/favicon.ico", "image/svg+xml")):
                s, h, body = d.request("GET", path)
                self.assertEqual(s, 200)
                self.assertTrue(h["Content-Type"].startswith(kind))
                self.assertEqual(h["Content-Security-Policy"], CSP)
                self.assertEqual((h["X-Content-Type-Options"], h["Referrer-Policy"]), ("nosniff", "no-referrer"))
                self.assertGreater(len(body), 100)
                tag = h["ETag"]
                for have, status in ((tag, 304), (f'"x", W/{tag}', 304), ("*", 304), ('"x"', 200), ("", 200)):
                    s, h, again = d.request("GET", path, headers={"If-None-Match": have})
                    self.assertEqual((s, again), (status, b"" if status == 304 else body), have)
                    self.assertEqual(h["ETag"], tag)
                self.assertEqual(d.request("HEAD", path)[0], 200)
                self.assertEqual(d.request("POST", path, {})[0], 405)
            self.assertEqual(d.request("GET", "/page/app.js")[0], 404)

    def test_needs_no_key_and_can_be_switched_off(self):
        with Daemon("--device", "null", "--api-key", "k", model=tiny_model()) as d:
            self.assertEqual(d.request("GET", "/")[0], 200)
        with Daemon("--device", "null", "--playground", "no", model=tiny_model()) as d:
            for path in ("/", "/app.js", "/style.css", "/favicon.ico"):
                self.assertEqual(d.request("GET", path)[0], 404)
            self.assertEqual(d.get("/v1/models")[0], 200)

    def test_sources(self):
        """Small, alone, and without the ways by which text becomes markup or code."""
        folder = os.path.join(TOP, "api", "page")
        text = {}
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                text[name] = f.read()
        self.assertLess(sum(len(t.encode()) for t in text.values()), 60000)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "DOMParser", "localStorage"):
            self.assertNotIn(word, text["app.js"])
        self.assertNotRegex(text["index.html"], r"(?i)<script(?! src=\"app\.js\" defer></script>)|\son\w+=|style=|javascript:")
        for name in ("index.html", "style.css", "app.js"):
            self.assertNotRegex(text[name], r"https?://|@import|url\(")


class Browser(unittest.TestCase):
    """A page of its own for each test; every request, dialog and report of it is looked at in the end."""

    args, name, model = ("--device", "null"), "m", None

    @classmethod
    def setUpClass(cls):
        if WHY:
            raise unittest.SkipTest(WHY)
        cls.dir = tempfile.TemporaryDirectory()
        cls.d = Daemon(*cls.args, "--chat-template", template(cls.dir.name), model=cls.model or tiny_model(), name=cls.name)
        cls.p = sync_playwright().start()
        cls.b = cls.p.chromium.launch(executable_path=CHROMIUM)

    @classmethod
    def tearDownClass(cls):
        cls.b.close()
        cls.p.stop()
        cls.d.__exit__(None, None, None)
        cls.dir.cleanup()

    def setUp(self):
        self.url = f"http://127.0.0.1:{self.d.port}/"
        self.context = self.b.new_context(viewport={"width": 1100, "height": 800})
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.bad = []
        self.page.on("dialog", lambda x: (self.bad.append("dialog " + x.message), x.dismiss()))
        self.page.on("pageerror", lambda x: self.bad.append(f"error {x}"))
        self.page.on("request", lambda r: None if r.url.startswith((self.url, "data:image/", "blob:")) else self.bad.append("request " + r.url[:200]))
        self.page.on("popup", lambda x: self.bad.append("popup"))
        self.page.add_init_script(WATCH)
        self.open()

    def open(self):
        self.page.goto(self.url)
        self.until("models.length > 0")

    def until(self, js, arg=None):
        """Until an expression is true. (Playwright's own waiting evaluates text within the page, which the page forbids.)"""
        end = time.monotonic() + WAIT / 1000
        while not self.page.evaluate(js, arg):
            self.assertLess(time.monotonic(), end, js)
            self.page.wait_for_timeout(20)

    def tearDown(self):
        self.clean()
        self.context.close()

    def clean(self):
        self.assertEqual(self.bad, [])
        self.assertEqual(self.page.evaluate("[window.reports, window.hit === undefined, location.href.split('#')[0]]"), [[], True, self.url])
        # Only the page's own elements.
        foreign = self.page.evaluate("""[...document.querySelectorAll('*')].filter((e) => {
            const own = ['script', 'link', 'meta', 'base', 'iframe', 'object', 'embed', 'style', 'svg', 'math', 'template', 'b'].includes(e.localName);
            return own && !e.closest('head, .brand') || [...e.attributes].some((a) => /^on/.test(a.name)) || e.id === 'evil';
        }).map((e) => e.outerHTML.slice(0, 200))""")
        self.assertEqual(foreign, [])
        self.assertEqual(self.page.evaluate("document.scripts.length"), 1)

    def say(self, text):
        n = self.page.locator(".msg.assistant").count()
        self.page.fill("#say", text)
        self.page.press("#say", "Enter")
        self.until("(n) => document.querySelectorAll('.msg.assistant').length > n && !running", n)
        return self.page.locator(".msg.assistant").last

    def fake(self, path, body, status=200, kind="text/event-stream"):
        self.page.route("**/" + path, lambda r: r.fulfill(status=status, content_type=kind, body=body))

    def fake_models(self, ids, kind="text"):
        self.page.unroute("**/v1/models")
        self.fake("v1/models", json.dumps({"data": [{"id": i, "kind": kind, "meta": {"arch": i}} for i in ids]}), kind="application/json")
        self.open()


class Chat(Browser):
    def test_answer_and_figures(self):
        p = self.page
        p.fill("#max_tokens", "12")
        p.fill("#seed", "9223372036854775807")
        p.fill("#system", "Be brief.")
        with p.expect_request("**/v1/chat/completions") as r:
            a = self.say("Hello")
        body = r.value.post_data
        self.assertIn('"seed":9223372036854775807', body)
        body = json.loads(body)
        self.assertEqual([m["role"] for m in body["messages"]], ["system", "user"])
        self.assertEqual(body["max_tokens"], 12)
        self.assertNotIn("temperature", body)
        direct = self.d.post("/v1/chat/completions", {**body, "stream": False, "stream_options": None})[1]
        shown = a.locator(".body").inner_text()
        self.assertEqual(shown.strip(), direct["choices"][0]["message"]["content"].strip())
        stats = a.locator(".stats").inner_text()
        self.assertIn(f"{direct['usage']['prompt_tokens']} + 12 tokens", stats)
        self.assertIn("ended by length", stats)
        self.assertIn("12 tokens", p.locator("#live").inner_text())

    def test_regenerate_edit_clear(self):
        p = self.page
        p.fill("#max_tokens", "5")
        self.say("one")
        first = self.say("two")
        first.get_by_role("button", name="Regenerate").click()
        self.until("!running && document.querySelectorAll('.msg').length === 4")
        p.locator(".msg.user").first.get_by_role("button", name="Edit").click()
        self.assertEqual(p.locator(".msg").count(), 0)
        self.assertEqual(p.input_value("#say"), "one")
        self.say("again")
        p.click("#clear")
        self.assertEqual((p.locator(".msg").count(), p.is_visible("#chat-empty")), (0, True))

    def test_stop(self):
        p = self.page
        p.fill("#max_tokens", "1000000")
        p.fill("#say", "go on")
        # Pressed by the page itself with the first text: the null device writes faster than a test looks.
        p.evaluate("""() => new MutationObserver((_, o) => {
            if (document.querySelector('.msg.assistant .text')?.textContent.length > 50) {
                o.disconnect();
                document.querySelector('#chat-stop').click();
            }
        }).observe(document.body, {subtree: true, childList: true, characterData: true})""")
        p.press("#say", "Enter")
        self.until("!running && document.querySelector('.msg.assistant .stats')?.textContent")
        n = len(p.locator(".msg.assistant .body").inner_text())
        self.assertIn("ended by you", p.locator(".msg.assistant .stats").inner_text())
        p.wait_for_timeout(300)
        self.assertEqual(len(p.locator(".msg.assistant .body").inner_text()), n)
        p.fill("#max_tokens", "3")
        self.say("still there?")

    def test_error_names_its_field(self):
        p = self.page
        p.fill("#temperature", "7")
        box = self.say("x").locator(".error")
        self.assertIn("temperature", box.inner_text())
        self.assertIn("field: temperature", box.inner_text())
        self.assertEqual(p.get_attribute("#temperature", "aria-invalid"), "true")
        p.fill("#temperature", "1")
        self.assertIsNone(p.get_attribute("#temperature", "aria-invalid"))
        p.click(".more summary")
        p.fill("#extra", "{oops")
        self.assertIn("no JSON", self.say("x").locator(".error").inner_text())
        p.fill("#extra", '{"max_tokens": 2}')
        self.assertIn("+ 2 tokens", self.say("x").locator(".stats").inner_text())

    def test_reasoning_calls_and_fences(self):
        self.fake("v1/chat/completions", sse(
            delta(role="assistant", content=""), delta(reasoning_content="think "), delta(reasoning_content="hard"),
            delta(content="Here:\n```py\nx = 1\n"), delta(content="```\nDone."),
            delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a":'}}]), delta(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
            END, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}}, "[DONE]"))
        a = self.say("x")
        self.assertEqual(a.locator("details.think .text").text_content(), "think hard")
        self.assertFalse(a.locator("details.think .text").is_visible())
        self.assertEqual(a.locator(".body > div > .text").all_inner_texts(), ["Here:", "Done."])
        self.assertEqual(a.locator("pre").all_text_contents(), ["x = 1", '{"a":1}'])
        self.assertEqual(a.locator(".call .who").inner_text(), "Tool call: f")

    def test_key(self):
        with Daemon("--device", "null", "--api-key", "secret", model=tiny_model()) as d:
            self.url = f"http://127.0.0.1:{d.port}/"
            p = self.page
            p.goto(self.url)
            p.wait_for_selector("#notice:visible")
            p.fill("#key", "secret")
            p.press("#key", "Enter")
            self.until("models.length > 0")
            self.assertFalse(p.is_visible("#notice"))
            self.assertEqual(p.evaluate("[sessionStorage.getItem('key'), localStorage.length, document.cookie]"), ["secret", 0, ""])
            self.clean()

    def test_keyboard_labels_and_axe(self):
        p = self.page
        p.evaluate("document.activeElement.blur()")
        p.keyboard.press("Tab")
        self.assertEqual(p.evaluate("document.activeElement.className"), "skip")
        p.keyboard.press("Tab")
        p.keyboard.press("ArrowRight")
        self.assertEqual(p.evaluate("[document.activeElement.id, document.activeElement.ariaSelected]"), ["tab-images", "true"])
        self.assertTrue(p.is_visible("#panel-images"))
        unnamed = p.evaluate("[...document.querySelectorAll('input, select, textarea')].filter((e) => !e.labels.length).map((e) => e.id)")
        self.assertEqual(unnamed, [])
        from axe_playwright_python.sync_playwright import Axe
        p.click("#tab-chat")
        p.fill("#max_tokens", "5")
        self.say("hello")
        for dark in ("light", "dark"):
            p.emulate_media(color_scheme=dark)
            for tab in ("#tab-chat", "#tab-images"):
                p.click(tab)
                r = Axe().run(p)
                self.assertEqual([v["id"] + ": " + v["nodes"][0]["html"][:150] for v in r.response["violations"]], [], f"{dark} {tab}")

    def test_phone(self):
        p = self.page
        p.set_viewport_size({"width": 375, "height": 700})
        p.reload()
        self.until("models.length > 0")
        self.assertFalse(p.is_visible("#temperature"))
        p.click("#chat-side > summary")
        self.assertTrue(p.is_visible("#temperature"))
        p.fill("#max_tokens", "20")
        self.say("W" * 5000)
        for tab in ("#tab-chat", "#tab-images"):
            p.click(tab)
            self.assertLessEqual(p.evaluate("document.documentElement.scrollWidth"), 375)


class Hostile(Browser):
    served = "<img src=x onerror=window.hit=1>"
    args = ("--device", "null", "--served-model-name", served)

    def usable(self):
        self.page.unroute_all()
        self.open()
        self.page.fill("#max_tokens", "3")
        self.assertIn("+ 3 tokens", self.say("usable?").locator(".stats").inner_text())

    def test_served_name(self):
        self.assertEqual(self.page.locator("#chat-model option").all_text_contents(), [self.served])
        self.usable()
        self.assertEqual(self.page.locator(".msg.assistant .who").first.text_content(), self.served)

    def test_prompts(self):
        p = self.page
        p.fill("#max_tokens", "3")
        for i, s in enumerate(HOSTILE):
            if not s.strip():
                continue
            self.say(s)
            if "```" not in s and s.strip():
                shown = p.locator(".msg.user").last.locator(".text").text_content()
                # As typed: a text area has no carriage returns and the page no empty lines around.
                self.assertEqual(shown, s.strip("\n"))
            self.clean()
            if i % 5 == 4:
                p.click("#clear")
        self.usable()

    def test_answers(self):
        p = self.page
        for s in HOSTILE:
            p.unroute_all()
            self.fake("v1/chat/completions", sse(
                delta(role="assistant"), delta(reasoning_content=s), delta(content=s),
                delta(tool_calls=[{"index": 0, "id": s, "function": {"name": s, "arguments": s}}]),
                {"choices": [{"index": 0, "delta": {}, "finish_reason": s}], "model": s},
                {"choices": [], "usage": {"prompt_tokens": s, "completion_tokens": s}}, "[DONE]"))
            a = self.say("x")
            if "```" not in s and s.strip():
                self.assertEqual(a.locator(".body > div > .text").text_content(), s.strip("\n"))
            self.assertEqual(a.locator(".think .text").text_content(), s)
            self.assertEqual(a.locator(".call pre").text_content(), s)
            self.assertEqual(a.locator(".call .who").text_content(), "Tool call: " + s)
            a.locator(".think summary").click()
            self.clean()
            p.click("#clear")
        self.usable()

    def test_errors(self):
        p = self.page
        for k, s in enumerate(HOSTILE):
            e = {"error": {"message": s, "type": s, "param": s, "code": s}}
            p.unroute_all()
            self.fake("v1/chat/completions", *((json.dumps(e), 400, "application/json"), (sse(delta(content="x"), e), 200, "text/event-stream"),
                                               (s, 500, "text/html"), ("data: " + s.replace("\n", " ") + "\n\n", 200, "text/event-stream"))[k % 4])
            a = self.say("x")
            if k % 4 < 2:
                self.assertTrue(a.locator(".error").text_content().startswith(s))
            self.clean()
            p.click("#clear")
        self.usable()

    def test_names_of_models(self):
        p = self.page
        names = sorted(set(HOSTILE))
        self.fake_models(names)
        self.assertEqual(p.locator("#chat-model option").all_text_contents(), names)
        self.fake("v1/chat/completions", sse(delta(content="ok"), END, "[DONE]"))
        for s in names:
            p.evaluate("(s) => { const e = document.getElementById('chat-model'); e.value = s; e.onchange(); }", s)
            self.assertEqual(p.input_value("#chat-model"), s)
            self.assertEqual(self.say("x").locator(".who").text_content(), s)
            self.clean()
            p.click("#clear")
        self.fake_models(names, "image")
        self.assertEqual(p.locator("#image-model option").all_text_contents(), names)
        self.usable()

    def test_pictures(self):
        p = self.page
        pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        self.fake_models(["i"], "image")
        p.click("#tab-images")
        for k, s in enumerate(HOSTILE):
            p.unroute("**/v1/images/generations")
            facts = {"index": 0, "seed": s, "model": s, "width": 1, "height": 1, "sampler": s, "negative_prompt": s, "size": s}
            self.fake("v1/images/generations", sse(
                {"type": "image_generation.progress", "index": 0, "step": s, "total": s, "eta_ms": s} if k % 2 else {"type": s, "index": 0},
                {"type": "image_generation.completed", "output_format": s, "b64_json": pixel if k % 3 else s, "stepd": facts}))
            p.fill("#prompt", s)
            p.click("#make")
            self.until("!painting")
            if k % 2 == 0:
                self.assertEqual(p.locator("figure .said").first.text_content(), p.input_value("#prompt"))
                self.assertIn(p.input_value("#prompt"), p.locator("figure img").first.get_attribute("alt"))
            self.clean()
            if p.locator("figure").count():
                p.get_by_role("button", name="Reuse the picture's settings").first.click()
                p.get_by_role("button", name="Remove the picture").first.click()
            p.fill("#image-seed", "")
            p.evaluate("for (const i of document.querySelectorAll('#image-form input:not([type=file]), #image-form textarea')) i.value = ''")
        self.usable()

    def test_the_policy_holds(self):
        """Were text ever taken for markup, the browser would still not run it."""
        p = self.page
        p.evaluate("""() => { const s = document.createElement('script'); s.textContent = 'window.hit = 1'; document.body.append(s);
            const d = document.createElement('div'); d.setAttribute('onclick', 'window.hit = 1'); document.body.append(d); d.click(); }""")
        self.until("window.reports.length >= 2")
        self.assertTrue(p.evaluate("window.hit === undefined"))
        self.assertTrue(all(r.startswith("script-src") for r in p.evaluate("window.reports")))
        self.open()


class Images(Browser):
    args, name, model = ("--device", "cpu"), "tiny-t2i", os.path.join(TOP, "models", "tiny-t2i")

    def make(self, **fields):
        for k, v in fields.items():
            self.page.fill("#" + k.replace("__", "-"), v)
        self.page.click("#make")
        self.until("!painting")

    def test_pictures_with_previews(self):
        p = self.page
        self.assertEqual(p.get_attribute("#tab-images", "aria-selected"), "true")  # nothing else is served
        p.evaluate("""() => { window.seen = new Set(); new MutationObserver(() => {
            const i = document.querySelector('figure img'); if (i) window.seen.add(i.className);
            const b = document.querySelector('figure progress'); if (b && b.position > 0) window.seen.add('progress');
        }).observe(document.getElementById('gallery'), {subtree: true, childList: true, attributes: true}); }""")
        self.make(prompt="a red circle on a white background", steps="8", image__seed="7", n="2")
        self.assertEqual(p.locator("figure").count(), 2)
        seen = p.evaluate("[...window.seen]")
        self.assertIn("partial", " ".join(seen))
        self.assertIn("progress", seen)
        self.assertEqual(p.locator("figure img").evaluate_all("l => l.map((i) => [i.naturalWidth, i.naturalHeight])"), [[64, 64]] * 2)
        direct = self.d.post("/v1/images/generations", {"prompt": "a red circle on a white background", "steps": 8, "seed": 7, "n": 2})[1]
        self.assertEqual(p.locator("figure img").evaluate_all("l => l.map((i) => i.src.split(',')[1])"), [x["b64_json"] for x in direct["data"]])
        self.assertIn("seed 7", p.locator("figure dl").first.inner_text().replace("\n", " "))
        with p.expect_download() as got:
            p.get_by_role("button", name="Download the picture").first.click()
        self.assertEqual(got.value.suggested_filename, "stepd-7.png")
        p.get_by_role("button", name="Remove the picture").first.click()
        self.assertEqual(p.locator("figure").count(), 1)

    def test_edit_with_painted_mask(self):
        p = self.page
        self.make(prompt="a red circle on a white background", steps="8", image__seed="7")
        p.get_by_role("button", name="Use the picture as input").first.click()
        p.wait_for_selector("#edit:visible")
        p.focus("#paint")
        p.keyboard.press("Space")
        box = p.locator("#paint").bounding_box()
        p.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        p.mouse.down()
        p.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2, steps=4)
        p.mouse.up()
        with p.expect_request("**/v1/images/edits") as r:
            self.make(prompt="a blue star", strength="0.9")
        self.assertIn("multipart/form-data", r.value.headers["content-type"])
        self.assertEqual(p.locator("figure").count(), 2)
        # Far from the paint the picture is as it was, and under it it is not.
        before, after = (p.evaluate("""async (i) => { const b = await createImageBitmap(document.querySelectorAll('figure img')[i]);
            const c = document.createElement('canvas'); c.width = c.height = 64; const g = c.getContext('2d'); g.drawImage(b, 0, 0);
            return [[2, 2], [61, 61], [32, 32]].map(([x, y]) => [...g.getImageData(x, y, 1, 1).data].slice(0, 3)); }""", i) for i in (1, 0))
        for k in (0, 1):
            self.assertLess(max(abs(a - b) for a, b in zip(before[k], after[k])), 40)
        self.assertGreater(max(abs(a - b) for a, b in zip(before[2], after[2])), 60)
        p.click("#file-clear")
        self.assertFalse(p.is_visible("#edit"))

    def test_stop_and_errors(self):
        p = self.page
        p.fill("#prompt", "x")
        p.fill("#steps", "200")
        p.fill("#width", "512")
        p.click("#make")
        self.until("document.querySelector('figure progress')?.position > 0")
        p.click("#image-stop")
        self.until("!painting")
        self.assertEqual((p.locator("figure").count(), p.is_visible("#gallery-empty")), (0, True))
        self.make(steps="9999", width="")
        self.assertIn("field: steps", p.locator("#image-errors .error").inner_text())
        self.assertEqual(p.get_attribute("#steps", "aria-invalid"), "true")
        self.make(steps="2")
        self.assertEqual((p.locator("figure").count(), p.locator(".error").count()), (1, 0))


if __name__ == "__main__":
    if WHY:
        print(WHY)
    unittest.main()
