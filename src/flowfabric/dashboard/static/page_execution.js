// One run in every depth.
import { get, part, post, put } from "./api.js";
import { isApproval, signal, waitpointItem } from "./approve.js";
import { h, render } from "./dom.js";
import { ENDED, badge, duration, exact, moment, noteServerTime, number, pretty, sentence, serverNow, since, uuidOf, word } from "./format.js";
import { StreamView } from "./stream.js";
import { act, ask, card, copyFrom, head, table } from "./ui.js";
import { waterfall } from "./waterfall.js";

const EVENTS = 500; // in one request
const KEPT = 2000; // the last ones
const LISTED = 200;
const HINT = 1000; // characters of a tooltip

export function execution({ rest, can, refresh: again }) {
  const id = rest[0];
  const path = `v1/executions/${part(id)}`;
  const top = h("div", { class: "stack" }, h("p", { class: "muted" }, "Loading…"));
  const bottom = h("div", { class: "stack" });
  const output = new StreamView(path);
  const element = h("div", { class: "stack" }, top, output.element, bottom);
  const known = { events: [], cursor: null };

  async function refresh() {
    const run = await get(`${path}/describe`, { payload: true });
    const [attempts, steps, events, waiting, why] = await Promise.all([
      get(`${path}/attempts`), get(`${path}/steps`), readEvents(),
      run.state === "suspended" ? get(`${path}/waitpoints`) : { waitpoints: [] },
      ENDED.has(run.state) || run.vector.ownership === "leased" ? null : get(`${path}/explain`),
    ]);
    document.title = `${run.kind} · FlowFabric`;
    if (why) noteServerTime(why.at);
    if (run.attempts_made) output.follow(run);
    render(top,
      head(run.kind, [badge(run.state), " ", idButton(run)], actions(run)),
      waiting.waitpoints.length ? card(waiting.waitpoints.some(isApproval) ? "Needs a decision" : "Waits for the outside world",
        waiting.waitpoints.map((each) => waitpointItem(each, { can, after: again })), { flush: true }) : null,
      run.failure ? failure(run) : null,
      why ? card("Why is it not running?", reasons(why.reasons)) : null,
      card("Facts", facts(run)),
      card("Timeline", waterfall(run, attempts.attempts, steps.steps, events), { flush: true }),
      h("div", { class: "cards" },
        card("Input", h("pre", { class: "block", tabindex: 0, "aria-label": "Input" }, pretty(run.input_payload)), { flush: true, className: "span-6" }),
        card("Result", result(run), { flush: true, className: "span-6" })));
    render(bottom,
      steps.steps.length ? card("Steps", stepTable(steps.steps), { flush: true }) : null,
      events.length ? card("Events", eventTable(events), { flush: true, extra: events.length > LISTED ? h("span", { class: "muted small" }, `the last ${LISTED}`) : null }) : null);
  }

  /** What is known already is not read again. */
  async function readEvents() {
    for (;;) {
      const page = await get(`${path}/events`, { after: known.cursor, limit: EVENTS });
      known.cursor = page.next_cursor;
      known.events = [...known.events, ...page.events.filter((event) => event.at)].slice(-KEPT);
      if (page.events.length < EVENTS) return known.events;
    }
  }

  function actions(run) {
    const found = [];
    const button = (text, work, className = "") => found.push(h("button", { type: "button", class: className, "data-key": `do-${text}`, onclick: (event) => work(event.target) }, text));
    const ended = ENDED.has(run.state);
    if (can("signal") && !ended) button("Signal…", (target) => signal(target, id, "", again));
    if (can("operate") && ["waiting", "delayed", "rate_limited"].includes(run.state)) button("Priority…", (target) => priority(target, run));
    if (can("operate") && ended) button("Replay…", (target) => replay(target), "primary");
    if (can("operate") && !ended) button("Cancel…", (target) => cancel(target), "danger");
    return found;
  }

  async function cancel(button) {
    const given = await ask({
      title: "Cancel this run?", text: "What it has done so far stays done. Runs that depend on it are skipped.", confirm: "Cancel the run", danger: true,
      fields: [{ name: "reason", label: "Reason, for those who find it so", value: "cancelled in the dashboard", required: true }],
    });
    if (given) await one(button, () => post("v1/executions/cancel", { execution_ids: [id], reason: given.reason }), "Cancelled");
  }

  async function replay(button) {
    const given = await ask({ title: "Replay this run?", text: "It starts over with the same input, under the same id.", confirm: "Replay" });
    if (given) await one(button, () => post("v1/executions/replay", { execution_ids: [id] }), "It runs again");
  }

  async function priority(button, run) {
    const given = await ask({
      title: "Change the priority", text: "Runs with a higher priority are taken first.", confirm: "Change",
      fields: [{ name: "priority", label: "Priority", type: "number", value: run.priority, required: true }],
    });
    if (given) await one(button, () => put(`${path}/priority`, { new_priority: Number(given.priority) }), "Priority changed");
  }

  async function one(button, work, said) {
    await act(button, async () => {
      const answer = await work();
      const refused = answer?.results?.[0]?.error;
      if (refused) throw new Error(refused.error);
    }, said);
    await again();
  }

  const wants = (notice) => !notice.complete || notice.executions.includes(uuidOf(id));
  return { title: "Run", element, refresh, wants, close: () => output.close() };
}

function idButton(run) {
  const whole = uuidOf(run.id);
  return h("button", { type: "button", class: "quiet tiny mono", "data-key": "copy-id", title: "Copy the id", onclick: (event) => copyFrom(event.currentTarget, whole) }, whole);
}

function failure(run) {
  const trace = run.failure.detail;
  return card(run.state === "failed" ? "Why it failed" : "Its last failure", [
    h("p", { class: "problem words", tabindex: 0 }, run.failure.message),
    h("p", { class: "muted small" }, [run.failure.category, run.failure.step ? `in step ${run.failure.step}` : null].filter(Boolean).join(", ")),
    trace ? h("details", { "data-key": "trace" }, h("summary", { "data-key": "trace-open" }, "Traceback"), h("pre", { class: "block small" }, typeof trace === "string" ? trace : pretty(trace))) : null,
  ]);
}

function reasons(found, depth = 0) {
  return h("ul", { class: "reasons" }, found.map((reason) => h("li", {},
    h("span", {}, sentence(reason.text)),
    reason.until ? [" ", h("span", { class: "muted" }, "Ends ", moment(reason.until), ".")] : reason.since ? [" ", h("span", { class: "muted" }, "For ", since(reason.since), " now.")] : null,
    reason.children?.length && depth < 3 ? reasons(reason.children, depth + 1) : null)));
}

function facts(run) {
  const tags = Object.entries(run.tags);
  const rows = [
    ["Lane", h("a", { href: `#/executions?lane=${part(run.lane)}`, "data-key": "lane" }, run.lane)], ["Namespace", run.namespace],
    ["Created", moment(run.created_at)], ["Started", moment(run.started_at)],
    run.ended_at ? ["Ended", moment(run.ended_at)] : ["Since its start", run.started_at ? since(run.started_at) : "–"],
    run.ended_at && run.started_at ? ["Took", duration(run.ended_at - run.started_at)] : null,
    ["Attempts", `${number(run.attempts_made)}${run.retries ? `, ${run.retries} retried` : ""}${run.replays ? `, ${run.replays} replayed` : ""}`],
    ["Priority", run.priority],
    run.lease ? ["Worker", `${run.lease.instance}`] : null,
    run.lease ? ["Lease ends", moment(run.lease.expires_at)] : null,
    run.flow ? ["Flow", h("a", { href: `#/flows/${run.flow}`, "data-key": "flow" }, `…${run.flow.slice(-12)}`)] : null,
    run.deadline_at ? ["Deadline", moment(run.deadline_at)] : null,
    run.version ? ["Code version", run.version] : null,
    run.creator ? ["Submitted by", run.creator] : null,
    run.cancel_reason ? ["Cancelled", `${run.cancel_reason}${run.cancelled_by ? `, by ${run.cancelled_by}` : ""}`] : null,
    run.progress ? ["Progress", `${run.progress.percent ?? ""}${run.progress.percent === null ? "" : " %"} ${run.progress.message ?? ""}`] : null,
    tags.length ? ["Tags", h("span", { class: "tagline" }, tags.map(([key, value]) => h("a", { class: "tag", href: `#/executions?tag=${part(`${key}=${value}`)}`, "data-key": `tag-${key}` }, `${key}=${value}`))), "two"] : null,
  ];
  return h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value, className = ""]) => h("div", { class: className }, h("dt", {}, name), h("dd", {}, value))));
}

function result(run) {
  if (run.state === "completed") return h("pre", { class: "block", tabindex: 0, "aria-label": "Result" }, pretty(run.result));
  const text = ENDED.has(run.state) ? `None: the run ended as ${word(run.state)}.` : "It comes when the run completes.";
  return h("p", { class: "muted pad" }, text);
}

function stepTable(steps) {
  return table([["Step"], ["Result"], ["Took", "num"], ["Tries", "num"]], steps.map((step) => h("tr", {},
      h("td", { class: "wide all" }, h("span", { class: "cut", title: step.name }, step.call > 1 ? `${step.name} (${step.call})` : step.name)),
      h("td", { class: "wide all" }, step.error ? h("span", { class: "problem cut-2" }, step.error) : h("code", { class: "cut-2", title: pretty(step.result).slice(0, HINT) }, step.ended_at === null ? (step.until ? ["sleeps until ", exact(step.until)] : "running") : pretty(step.result))),
      h("td", { class: "num" }, step.started_at && step.ended_at ? duration(step.ended_at - step.started_at) : step.started_at ? duration(serverNow() - step.started_at) : "–"),
      h("td", { class: "num" }, step.tries))), { caption: "Steps" });
}

function eventTable(events) {
  const shown = events.slice(-LISTED).reverse();
  return h("div", { class: "scroll log", tabindex: 0, role: "region", "aria-label": "Events" }, h("table", { class: "events" }, h("tbody", {}, shown.map((event) => h("tr", {},
    h("td", { class: "nowrap muted" }, moment(event.at)), h("td", { class: "nowrap" }, word(event.kind)),
    h("td", { class: "name small muted" }, aboutEvent(event)))))));
}

function aboutEvent(event) {
  const { lease, signal: sent, operator } = event;
  return [
    event.reason === event.kind ? null : word(event.reason), lease ? `lease ${lease.change}${lease.worker_instance ? ` (${lease.worker_instance})` : ""}` : null,
    sent ? [sent.name, sent.effect, sent.source_identity].filter(Boolean).join(", ") : null,
    operator?.action,
  ].filter(Boolean).join(" · ");
}
