// Numbers, moments and states as people read them.
import { h } from "./dom.js";

export const TONES = {
  waiting: "wait", delayed: "delay", rate_limited: "delay", waiting_children: "wait", active: "run",
  suspended: "susp", completed: "ok", failed: "fail", cancelled: "stop", expired: "fail", skipped: "stop",
  open: "ok", running: "run", paused: "delay", draining: "delay", success: "ok",
};
const WORDS = { rate_limited: "rate limited", waiting_children: "waiting for runs" };
export const STATES = [
  "waiting", "delayed", "rate_limited", "waiting_children", "active", "suspended",
  "completed", "failed", "cancelled", "expired", "skipped",
];
export const ENDED = new Set(["completed", "failed", "cancelled", "expired", "skipped"]);

export const tone = (state) => TONES[state] ?? "wait";
export const word = (state) => WORDS[state] ?? String(state ?? "").replaceAll("_", " ");

export function badge(state) {
  return h("span", { class: "badge", "data-tone": tone(state) }, word(state));
}

export const number = (value) => Number(value ?? 0).toLocaleString("en");

/** A count that stops at a limit is shown as "100,000+". */
export const count = (value, capped) => number(value) + (capped ? "+" : "");

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 >= 1 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days`;
}

// The clock of the server, which may differ from that of this machine.
let offset = 0;
export const serverNow = () => Date.now() + offset;
export function noteServerTime(now) { offset = now - Date.now(); }

function relative(at) {
  const away = at - serverNow();
  const text = duration(Math.abs(away));
  const short = text.split(" ").slice(0, 2).join(" ");
  if (Math.abs(away) < 1500) return away > 0 ? "now" : "just now";
  return away > 0 ? `in ${short}` : `${short} ago`;
}

const EXACT = { year: "numeric", month: "short", day: "numeric", hour: "numeric", minute: "2-digit", second: "2-digit", timeZoneName: "short" };
/** In the time zone of the browser, which it names. */
export const exact = (at) => new Date(at).toLocaleString(undefined, EXACT);

/** A moment: "3 s ago", kept current, with the exact time on hover. */
export function moment(at) {
  if (at === null || at === undefined) return "–";
  return h("time", { class: "nowrap", dateTime: new Date(at).toISOString(), title: exact(at), "data-at": at }, relative(at));
}

/** How long something has been going on, kept current. */
export function since(at) {
  return h("time", { class: "nowrap", title: exact(at), "data-since": at }, duration(serverNow() - at));
}

setInterval(() => {
  for (const each of document.querySelectorAll("time[data-at]")) each.textContent = relative(Number(each.dataset.at));
  for (const each of document.querySelectorAll("time[data-since]")) {
    each.textContent = duration(serverNow() - Number(each.dataset.since));
  }
}, 1000);

/** Whether a worker runs tasks of applications: that of a server may only deliver webhooks. */
export const runsTasks = (worker) => String(worker.kinds) !== "flowfabric.webhook";

/** The part of an id that people read: the uuid, without its tag. */
export const uuidOf = (id) => String(id).split(":").at(-1);
export const shortId = (id) => uuidOf(id).slice(-12);

/** "waits for a worker" as "Waits for a worker." */
export const sentence = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

export function pretty(value) {
  if (value === null || value === undefined) return "null";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
