// News by server-sent events. They are read with fetch, so that the token is sent in a header.
// A server without that route is asked every two seconds instead. A hidden page holds no connection.
import { ApiError, address, headers, space } from "./api.js";

const POLL = 2000;
const MOST = 15000;

/** Calls `onEvent(name, data, id)` for each server-sent event until the answer ends. */
export async function readEvents(path, query, last, signal, onEvent, onOpen = () => {}) {
  const more = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
  const reply = await fetch(address(path, query), { headers: headers(more), signal, cache: "no-store" });
  if (!reply.ok) throw new ApiError(reply.status, `http_${reply.status}`, `The server answered ${reply.status}.`);
  onOpen();
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) emit(block, onEvent);
  }
}

function emit(block, onEvent) {
  const found = { event: "message", data: "", id: null };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon < 1) continue;
    const name = line.slice(0, colon);
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") found.data += value;
    else if (name in found) found[name] = value;
  }
  if (!found.data) return;
  try {
    onEvent(found.event, JSON.parse(found.data), found.id);
  } catch {
    onEvent(found.event, null, found.id);
  }
}

const wait = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

/** News until `stop()`: `onNews(notice or null)` says that something changed, `onState` how we know:
    live, polling or lost. */
export class Live {
  constructor(onNews, onState) {
    this.onNews = onNews;
    this.onState = onState;
    this.running = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
    addEventListener("online", () => this.restart());
  }

  start() {
    if (this.running || document.hidden) return;
    this.running = new AbortController();
    this.follow(this.running.signal);
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  restart() {
    this.stop();
    this.start();
  }

  async follow(signal) {
    let failures = 0;
    while (!signal.aborted) {
      let opened = false;
      try {
        await readEvents("v1/changes/stream", { namespace: space.get() }, null, signal, (name, data) => this.onNews(data), () => {
          opened = true;
          this.onState("live");
          this.onNews(null);
        });
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && [404, 405].includes(error.status)) return this.poll(signal);
        if (error instanceof ApiError && [401, 403].includes(error.status)) return this.onState("lost");
      }
      failures = opened ? 0 : failures + 1;
      if (signal.aborted) return;
      if (failures) this.onState("lost");
      await wait(Math.min(MOST, 500 * 2 ** failures) * (0.75 + Math.random() / 2), signal);
    }
  }

  async poll(signal) {
    this.onState("polling");
    while (!signal.aborted) {
      await wait(POLL, signal);
      if (!signal.aborted) this.onNews(null);
    }
  }
}
