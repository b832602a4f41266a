"""The smallest OpenAI-compatible front for an engine that comes as a library: chat and completions, streamed or whole. Run by
the engine's own interpreter; standard library only.

An engine has start(req), which queues it and sets req.n_prompt, step() -> [(req, text, done), ...] for one step of all
running requests, cancel(req), and busy(). A thread of its own runs the steps; asyncio does the connections."""
import asyncio
import collections
import json
import threading
import time


def say_loaded(settings):
    with open("/proc/self/smaps_rollup") as f:
        kib = next(int(line.split()[1]) for line in f if line.startswith("Pss:"))
    print(json.dumps({"loaded": time.time(), "rss_kib": kib, "settings": settings}), flush=True)


class Request:
    def __init__(self, body, chat, loop):
        self.messages = body.get("messages") if chat else None
        self.prompt = body.get("prompt")
        self.max_tokens = int(body.get("max_tokens") or 16)
        self.ignore_eos = bool(body.get("ignore_eos"))
        self.stream = bool(body.get("stream"))
        self.n_prompt = self.n_output = 0
        self.events, self.loop = asyncio.Queue(), loop


class Steps(threading.Thread):
    """Starts what has come, makes a step, hands texts to the connections."""

    def __init__(self, engine, loop):
        super().__init__(daemon=True)
        self.engine, self.loop, self.inbox, self.woken = engine, loop, collections.deque(), threading.Event()

    def put(self, what, req):
        self.inbox.append((what, req))
        self.woken.set()

    def run(self):
        while True:
            if not self.engine.busy() and not self.inbox:
                self.woken.wait()
            self.woken.clear()
            while self.inbox:
                what, req = self.inbox.popleft()
                try:
                    (self.engine.start if what == "start" else self.engine.cancel)(req)
                except Exception as e:  # pylint: disable=broad-except
                    self.deliver([(req, f"error: {e}", None)])
            if self.engine.busy():
                self.deliver(self.engine.step())

    def deliver(self, events):
        if events:
            self.loop.call_soon_threadsafe(lambda: [r.events.put_nowait((t, d)) for r, t, d in events])


def dumps(j):
    return json.dumps(j, separators=(",", ":"), ensure_ascii=False)


async def answer(steps, req, chat, w):
    steps.put("start", req)
    whole, done = "", False
    if req.stream:
        w.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def frame(text):
        data = f"data: {text}\n\n".encode()
        w.write(b"%x\r\n%s\r\n" % (len(data), data))
    while not done:
        text, done = await req.events.get()
        if done is None:
            raise RuntimeError(text)
        whole += text
        if req.stream and text:
            frame(dumps({"choices": [{"index": 0, **({"delta": {"content": text}} if chat else {"text": text})}]}))
            if w.is_closing():
                steps.put("cancel", req)
                return
            await w.drain()
    usage = {"prompt_tokens": req.n_prompt, "completion_tokens": req.n_output, "total_tokens": req.n_prompt + req.n_output}
    if req.stream:
        frame(dumps({"choices": [], "usage": usage}))
        frame("[DONE]")
        w.write(b"0\r\n\r\n")
    else:
        choice = {"index": 0, "finish_reason": "length", **({"message": {"role": "assistant", "content": whole}} if chat else {"text": whole})}
        data = dumps({"choices": [choice], "usage": usage}).encode()
        w.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    await w.drain()


async def connection(steps, r, w):
    req = None
    try:
        while True:
            head = (await r.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next((int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-length:")), 0)
            body = json.loads(await r.readexactly(length) or b"{}")
            chat = "/chat/" in head.split(" ")[1]
            req = Request(body, chat, steps.loop)
            await answer(steps, req, chat, w)
            req = None
    except (asyncio.IncompleteReadError, ConnectionError):
        if req:
            steps.put("cancel", req)
    finally:
        w.close()


def serve(engine, port):
    async def run():
        steps = Steps(engine, asyncio.get_running_loop())
        steps.start()
        server = await asyncio.start_server(lambda r, w: connection(steps, r, w), "127.0.0.1", port, limit=1 << 24, backlog=1024)
        await server.serve_forever()
    asyncio.run(run())
