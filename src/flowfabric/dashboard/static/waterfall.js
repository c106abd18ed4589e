// The life of a run on one axis of time: the wait before, attempts, their steps, and events.
import { h } from "./dom.js";
import { duration, exact, serverNow, word } from "./format.js";

const OUTCOMES = { success: "ok", completed: "ok", failed: "fail", retry: "fail", lost: "fail", cancelled: "stop", suspended: "susp", delayed: "delay", handed_back: "wait", running: "run" };
const EVENTS = { completed: "ok", failed: "fail", expired: "fail", lease_expired: "fail", lease_revoked: "fail", retry_scheduled: "fail", suspended: "susp", signalled: "susp", claimed: "run", resumed: "run", reclaimed: "run" };
const WAITS = new Set(["signalled", "timeout", "slept", "approved"]);
const UNITS = [1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000, 8_640_000_000];
const TICKS = 5; // the most

/** `run` as /describe shows it, with its attempts, steps and events. */
export function waterfall(run, attempts, steps, events) {
  const end = run.ended_at ?? serverNow();
  const begin = run.created_at;
  const span = Math.max(1, end - begin);
  const place = (at) => Math.max(0, Math.min(100, ((at - begin) / span) * 100));
  const chart = { end, place, ticks: ticks(span) };
  const lines = [axis(chart, span)];
  const first = attempts.find((attempt) => attempt.started_at)?.started_at ?? end;
  if (first - begin > span / 200) lines.push(line(chart, "waits", 0, [bar(place, begin, first, "wait", true)], duration(first - begin), "created, waits to begin"));
  for (const attempt of attempts) lines.push(...attemptLines(chart, attempt, attempts, steps, run));
  if (!attempts.length) lines.push(...steps.map((step) => stepLine(chart, step)));
  if (events.length) lines.push(line(chart, "events", 0, events.map((event) => mark(event, place)), "", ""));
  return h("div", { class: "waterfall", role: "table", "aria-label": "Timeline" }, lines);
}

function attemptLines(chart, attempt, attempts, steps, run) {
  if (!attempt.started_at) return [];
  const { end, place } = chart;
  const next = attempts.find((other) => other.index > attempt.index && other.started_at);
  const before = attempts.findLast((other) => other.index < attempt.index && other.ended_at);
  const until = attempt.ended_at ?? next?.started_at ?? end;
  const outcome = attempt.ended_at ? attempt.outcome : run.state === "active" ? "running" : run.state;
  const own = steps.filter((step) => stepAttempt(step, attempts) === attempt.index);
  const title = attempt.failure ? `${word(outcome)}: ${attempt.failure.message}` : word(outcome);
  const who = attempt.worker ? ` on ${attempt.worker.instance}` : "";
  const pause = before ? [bar(place, before.ended_at, attempt.started_at, "pause", true, "waits for this attempt, ")] : [];
  return [
    line(chart, `attempt ${attempt.index + 1}`, 0, [...pause, bar(place, attempt.started_at, until, OUTCOMES[outcome] ?? toneOf(attempt))], duration(until - attempt.started_at), title + who),
    ...own.map((step) => stepLine(chart, step)),
  ];
}

const toneOf = (attempt) => (attempt.failure ? "fail" : attempt.ended_at ? "ok" : "run");

/** The attempt in which a step began. */
function stepAttempt(step, attempts) {
  if (step.attempt) return step.attempt - 1;
  const at = step.started_at ?? step.ended_at ?? 0;
  const started = attempts.filter((attempt) => attempt.started_at && at >= attempt.started_at);
  return started.at(-1)?.index ?? attempts[0]?.index ?? 0;
}

function stepLine(chart, step) {
  const { end, place } = chart;
  const label = step.call > 1 ? `${step.name} (${step.call})` : step.name;
  if (step.started_at === null && step.ended_at === null) return line(chart, label, 1, [], "–", step.error ?? "recorded");
  const from = step.started_at ?? step.ended_at;
  const until = step.ended_at ?? (step.until ? Math.min(step.until, end) : end);
  const tone = step.error ? "fail" : step.waited || WAITS.has(step.name) || step.until ? "susp" : step.ended_at ? "ok" : "run";
  const took = step.started_at === null ? "–" : duration(until - from);
  return line(chart, label, 1, [bar(place, from, until, tone, true)], took, step.error ?? (step.waited ? word(step.waited) : ""));
}

function bar(place, from, until, tone, thin = false, what = "") {
  const left = place(from);
  return h("span", { class: thin ? "wf-bar thin" : "wf-bar", "data-tone": tone, title: `${what}${exact(from)} – ${exact(until)}`,
    style: { left: `${left}%`, width: `${Math.max(0.3, place(until) - left)}%` } });
}

function mark(event, place) {
  const kind = String(event.kind ?? "");
  return h("span", { class: "wf-mark", "data-tone": EVENTS[kind] ?? "wait", title: `${word(kind)}, ${exact(event.at)}`, style: { left: `${place(event.at)}%` } });
}

function line({ ticks: marks }, name, depth, bars, text, title) {
  return h("div", { role: "row" },
    h("div", { class: "wf-name", "data-depth": depth, role: "rowheader", title: title ? `${name}: ${title}` : name }, h("span", { class: "cut" }, name)),
    h("div", { class: "wf-took", role: "cell" }, text),
    h("div", { class: "wf-lane", role: "cell" }, marks.map((tick) => h("i", { style: { left: `${tick.share}%` } })), bars, title ? h("span", { class: "sr-only" }, title) : null));
}

function axis({ ticks: marks }, span) {
  return h("div", { role: "row" },
    h("div", { class: "wf-name muted", role: "columnheader" }, "since it was created"),
    h("div", { class: "wf-took muted", role: "columnheader" }, "took"),
    h("div", { class: "wf-axis", role: "columnheader", "aria-label": `0 to ${duration(span)}` }, marks.map((tick) => h("span", { class: tick.share > 85 ? "end" : null, style: { left: `${tick.share}%` } }, tick.text))));
}

/** Round times, at most six of them. */
function ticks(span) {
  const steps = UNITS.flatMap((unit) => [1, 2, 3, 5].map((times) => unit * times));
  const step = steps.find((each) => span / each <= TICKS) ?? steps.at(-1);
  const found = [];
  for (let at = 0; at <= span && found.length <= TICKS; at += step) found.push({ share: (at / span) * 100, text: at ? round(at) : "0" });
  return found;
}

const round = (ms) => duration(ms).replace(/\.0 s$/, " s").replace(/ 0 min$/, "");
