// The whole at a glance.
import { list } from "./api.js";
import { legend, meter, throughput } from "./charts.js";
import { h, render } from "./dom.js";
import { badge, count, duration, moment, noteServerTime, number, plural, runsTasks, since, uuidOf } from "./format.js";
import { card, empty, head, noWorker, table } from "./ui.js";

const TILES = [
  ["waiting", "waiting", ""], ["active", "active", "run"], ["suspended", "suspended", "susp"],
  ["delayed", "delayed", ""], ["rate_limited", "rate limited", ""], ["completed", "completed", "ok"], ["failed", "failed", "fail"],
  ["cancelled", "cancelled", ""],
];

export function overview() {
  const element = h("div", {}, head("Overview"), h("p", { class: "muted" }, "Loading…"));
  async function refresh() {
    const found = await list("v1/overview");
    noteServerTime(found.now);
    render(element, head("Overview"), isNew(found) ? firstSteps() : null, tiles(found),
      h("div", { class: "cards" },
        card("Throughput", [throughput(found.spans), legend(`runs that ended in each ${found.span_ms / 1000} s`)], { className: "span-8", extra: rate(found) }),
        card("How long it takes", durations(found), { className: "span-4", flush: true }),
        card("Lanes", lanes(found), { className: "span-6", extra: h("a", { href: "#/lanes", "data-key": "all-lanes" }, "All lanes") }),
        card("Workers", workers(found), { className: "span-6", extra: h("a", { href: "#/workers", "data-key": "all-workers" }, "All workers") }),
        card("Failures of the last hour", failures(found), { flush: found.failures.length > 0 })));
  }
  return { title: "Overview", element, refresh };
}

const isNew = (found) => Object.values(found.counts).every((each) => !each) && !found.workers.some(runsTasks);

function firstSteps() {
  return h("div", { class: "card first" }, empty("Nothing has run here yet", "Submit a run, or look at a lively example first.", "flowfabric demo --serve"));
}

function tiles(found) {
  return h("div", { class: "tiles" }, TILES.map(([state, title, colour]) => {
    const value = found.counts[state] ?? 0;
    return h("a", { class: "tile", href: `#/executions?state=${state}`, "data-key": `tile-${state}`, "data-tone": value ? colour : "" },
      h("b", {}, count(value, found.capped.includes(state))), h("span", {}, title));
  }));
}

function rate(found) {
  const last = found.spans.slice(-13, -1);
  const ended = last.reduce((sum, span) => sum + span.completed + span.failed + span.cancelled, 0);
  const perSecond = ended / ((last.length || 1) * found.span_ms / 1000);
  const shown = perSecond >= 10 ? number(Math.round(perSecond)) : perSecond.toFixed(1);
  return h("span", { class: "muted small" }, `${shown} runs a second in the last minute`);
}

function durations(found) {
  const row = (title, each) => h("tr", {}, h("th", { scope: "row" }, title),
    h("td", { class: "num" }, each ? duration(each.p50) : "–"), h("td", { class: "num" }, each ? duration(each.p95) : "–"), h("td", { class: "num" }, each ? duration(each.max) : "–"));
  const oldest = found.oldest_waiting;
  return [
    h("table", {}, h("thead", {}, h("tr", {}, ["Last 5 minutes", "median", "95 %", "max"].map((title, place) => h("th", { scope: "col", class: place ? "num" : "" }, title)))),
      h("tbody", {}, row("waited to start", found.waited), row("ran", found.ran))),
    h("p", { class: "small note" }, oldest
      ? ["Oldest waiting: ", h("a", { href: `#/executions/${oldest.id}`, "data-key": "oldest" }, oldest.kind), " in ", oldest.lane, ", ", since(oldest.since), "."]
      : h("span", { class: "muted" }, "Nothing waits for a worker.")),
  ];
}

function lanes(found) {
  if (!found.lanes.length) return h("p", { class: "muted" }, "Nothing waits and nothing runs.");
  const most = Math.max(1, ...found.lanes.map((lane) => lane.waiting + lane.running));
  return h("div", { class: "rows" }, found.lanes.slice(0, 8).map((lane) => h("div", { class: "row-line" },
    h("a", { class: "cut", title: lane.lane, href: `#/executions?lane=${encodeURIComponent(lane.lane)}`, "data-key": `lane-${lane.lane}` }, lane.lane),
    lane.state === "active" ? meter((lane.waiting + lane.running) / most, `${lane.waiting} waiting, ${lane.running} running`) : badge(lane.state),
    h("span", { class: "num small muted" }, `${number(lane.waiting)} waiting · ${number(lane.running)} running`))));
}

function workers(found) {
  const shown = found.workers.filter(runsTasks);
  if (!shown.length) return noWorker();
  return h("div", { class: "rows" }, shown.slice(0, 8).map((worker) => {
    const share = worker.running / Math.max(1, worker.concurrency);
    return h("div", { class: "row-line" },
      h("span", { class: "cut", title: worker.instance }, worker.worker || worker.instance),
      meter(share, `${worker.running} of ${worker.concurrency} slots`, "run"),
      h("span", { class: "num small muted" }, `${worker.running} of ${plural(worker.concurrency, "slot")}`));
  }), shown.length > 8 ? h("p", { class: "muted small" }, `and ${shown.length - 8} more`) : null);
}

function failures(found) {
  if (!found.failures.length) return h("p", { class: "muted" }, "None. Runs that fail are grouped here by their error.");
  return table([["Task"], ["Error"], ["Runs", "num"], ["Last", "num"]], found.failures.slice(0, 10).map((group, place) => h("tr", {},
      h("td", { class: "wide all" }, h("a", { class: "cut", title: group.kind, href: `#/executions?state=failed&kind=${encodeURIComponent(group.kind)}`, "data-key": `failed-${place}` }, group.kind)),
      h("td", { class: "name" }, h("a", { class: "cut-2", href: `#/executions/${uuidOf(group.example)}`, "data-key": `example-${place}` }, group.message || group.error)),
      h("td", { class: "num" }, count(group.count, !found.failures_complete)),
      h("td", { class: "num" }, moment(group.last_at)))), { caption: "Failures by task and error" });
}
