// What a run writes while it runs, as it comes.
import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { ENDED } from "./format.js";
import { readEvents } from "./live.js";
import { card } from "./ui.js";

const KEPT = 1000;
const AGAIN = 3000;

export class StreamView {
  constructor(path) {
    this.path = `${path}/stream`;
    this.lines = h("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Output" });
    this.element = card("Output", this.lines, { flush: true });
    this.element.hidden = true;
    this.last = null;
    this.stopped = new AbortController();
    this.following = false;
  }

  /** Begins to follow; called again, it goes on if a replay has opened the run again. */
  async follow(run) {
    if (this.following || this.stopped.signal.aborted) return;
    if (this.ended && ENDED.has(run.state)) return;
    this.following = true;
    this.ended = false;
    const { signal } = this.stopped;
    while (!signal.aborted && !this.ended) {
      try {
        await readEvents(this.path, {}, this.last, signal, (name, data, id) => this.take(name, data, id));
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError) break; // a server without output streams
      }
      if (!this.ended) await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
    }
    this.following = false;
  }

  take(name, data, id) {
    if (id) this.last = id;
    if (name === "end") this.ended = true;
    if (name === "gap") this.add("… earlier output was deleted");
    if (name === "frame") this.add(data.fields.encoding === "base64" ? `(${data.fields.frame_type}, binary)` : textOf(data.fields));
  }

  add(text) {
    const { lines } = this;
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    this.element.hidden = false;
    lines.append(h("p", { class: "mono small" }, text));
    while (lines.children.length > KEPT) lines.firstChild.remove();
    if (atEnd) lines.scrollTop = lines.scrollHeight;
  }

  close() { this.stopped.abort(); }
}

function textOf(fields) {
  try {
    const value = JSON.parse(fields.payload);
    return typeof value === "string" ? value : JSON.stringify(value);
  } catch {
    return fields.payload;
  }
}
