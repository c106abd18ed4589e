// The life of a run on one axis of time: the wait before, attempts, their steps, and events.
import { h } from "./dom.js";
import { duration, exact, serverNow, word } from "./format.js";

const OUTCOMES = { success: "ok", completed: "ok", failed: "fail", retry: "fail", lost: "fail", cancelled: "stop", suspended: "susp", delayed: "delay", handed_back: "wait", running: "run" };
const EVENTS = { completed: "ok", failed: "fail", expired: "fail", lease_expired: "fail", lease_revoked: "fail", retry_scheduled: "fail", suspended: "susp", signalled: "susp", claimed: "run", resumed: "run", reclaimed: "run" };
const WAITS = new Set(["signalled", "timeout", "slept", "approved"]);

/** `run` as /describe shows it, with its attempts, steps and events. */
export function waterfall(run, attempts, steps, events) {
  const end = run.ended_at ?? serverNow();
  const begin = run.created_at;
  const span = Math.max(1, end - begin);
  const place = (at) => Math.max(0, Math.min(100, ((at - begin) / span) * 100));
  const lines = [axis(span)];
  const first = attempts.find((attempt) => attempt.started_at)?.started_at ?? end;
  if (first - begin > span / 200) lines.push(line("waits", 0, [bar(place, begin, first, "wait", true)], duration(first - begin), "created, waits to begin", place(first)));
  for (const attempt of attempts) lines.push(...attemptLines(attempt, attempts, steps, run, end, place));
  if (!attempts.length) lines.push(...steps.map((step) => stepLine(step, end, place)));
  if (events.length) lines.push(line("events", 0, events.map((event) => mark(event, place)), "", ""));
  return h("div", { class: "waterfall", role: "table", "aria-label": "Timeline" }, lines);
}

function attemptLines(attempt, attempts, steps, run, end, place) {
  if (!attempt.started_at) return [];
  const next = attempts.find((other) => other.index > attempt.index && other.started_at);
  const until = attempt.ended_at ?? next?.started_at ?? end;
  const outcome = attempt.ended_at ? attempt.outcome : run.state === "active" ? "running" : run.state;
  const own = steps.filter((step) => stepAttempt(step, attempts) === attempt.index);
  const title = attempt.failure ? `${word(outcome)}: ${attempt.failure.message}` : word(outcome);
  const who = attempt.worker ? ` on ${attempt.worker.instance}` : "";
  return [
    line(`attempt ${attempt.index + 1}`, 0, [bar(place, attempt.started_at, until, OUTCOMES[outcome] ?? toneOf(attempt))], duration(until - attempt.started_at), title + who, place(until)),
    ...own.map((step) => stepLine(step, end, place)),
  ];
}

const toneOf = (attempt) => (attempt.failure ? "fail" : attempt.ended_at ? "ok" : "run");

/** The attempt in which a step began. */
function stepAttempt(step, attempts) {
  if (step.attempt) return step.attempt - 1;
  const started = attempts.filter((attempt) => attempt.started_at && (step.started_at ?? 0) >= attempt.started_at);
  return started.at(-1)?.index ?? attempts[0]?.index ?? 0;
}

function stepLine(step, end, place) {
  const label = step.call > 1 ? `${step.name} (${step.call})` : step.name;
  if (step.started_at === null && step.ended_at === null) return line(label, 1, [], step.error ? "raised" : "recorded", step.error ?? "");
  const from = step.started_at ?? step.ended_at;
  const until = step.ended_at ?? (step.until ? Math.min(step.until, end) : end);
  const tone = step.error ? "fail" : step.waited || WAITS.has(step.name) || step.until ? "susp" : step.ended_at ? "ok" : "run";
  return line(label, 1, [bar(place, from, until, tone, true)], duration(until - from), step.error ?? (step.waited ? word(step.waited) : ""), place(until));
}

function bar(place, from, until, tone, thin = false) {
  const left = place(from);
  return h("span", { class: thin ? "wf-bar thin" : "wf-bar", "data-tone": tone, title: `${exact(from)} – ${exact(until)}`,
    style: { left: `${left}%`, width: `${Math.max(0.3, place(until) - left)}%` } });
}

function mark(event, place) {
  const kind = String(event.kind ?? "");
  return h("span", { class: "wf-mark", "data-tone": EVENTS[kind] ?? "wait", title: `${word(kind)}, ${exact(event.at)}`, style: { left: `${place(event.at)}%` } });
}

function line(name, depth, marks, text, title, right = 0) {
  const label = text ? h("span", { class: "wf-label", style: right > 75 ? { right: `${Math.max(0, 100 - right)}%`, color: "inherit", display: "none" } : { left: `${right}%` } }, text) : null;
  const shown = label && right > 75 ? null : label;
  return h("div", { role: "row", style: { display: "contents" } },
    h("div", { class: "wf-name", "data-depth": depth, role: "rowheader", title: title ? `${name}: ${title}` : name },
      h("span", { class: "cut" }, name, right > 75 && text ? h("span", { class: "muted" }, ` ${text}`) : null)),
    h("div", { class: "wf-lane", role: "cell" }, marks, shown, h("span", { class: "sr-only" }, `${text} ${title}`)));
}

function axis(span) {
  const stops = [0, 0.25, 0.5, 0.75, 1];
  return h("div", { role: "row", style: { display: "contents" } },
    h("div", { class: "wf-name muted", role: "columnheader" }, "since it was created"),
    h("div", { class: "wf-axis", role: "columnheader" }, stops.map((share) =>
      h("span", { style: { left: `${share * 100}%` } }, share ? duration(span * share) : "0"))));
}
