// Workers: who is there, how busy, and what each holds.
import { list, part } from "./api.js";
import { meter } from "./charts.js";
import { h, render } from "./dom.js";
import { moment, number, plural, runsTasks, since, uuidOf } from "./format.js";
import { act, head, noWorker, pager, table } from "./ui.js";

const SIZE = 100;

export function workers({ query }) {
  const cursor = query.get("cursor");
  const opened = new Map(); // instance → its leases
  const body = h("div", {}, h("p", { class: "muted pad" }, "Loading…"));
  const element = h("div", {}, head("Workers", "Processes that take runs. One that falls silent disappears; its runs go to others."), h("section", { class: "card", "aria-label": "Workers" }, body));
  let found = { workers: [], next_cursor: null };

  async function refresh() {
    found = await list("v1/workers", { cursor, limit: SIZE });
    for (const instance of opened.keys()) opened.set(instance, (await leases(instance)).leases);
    show();
  }

  function show() {
    const any = found.workers.some(runsTasks) || cursor || found.next_cursor;
    render(body, any ? null : noWorker(), found.workers.length
      ? [table([["Worker", "name"], ["Load"], ["Takes"], ["Seen", "num"], ["Since", "num"], ["Holds"]], found.workers.flatMap(line), { caption: "Workers" }),
        pager((next) => (next ? `#/workers?cursor=${part(next)}` : "#/workers"), cursor, found.next_cursor, plural(found.workers.length, "worker"))]
      : null);
  }

  const leases = (instance) => list(`v1/workers/${part(instance)}/leases`, { limit: 50 });

  function line(worker) {
    const share = worker.running / Math.max(1, worker.concurrency);
    const open = opened.has(worker.instance);
    const row = h("tr", { "data-key": `row-${worker.instance}` },
      h("td", { class: "name" }, h("b", { class: "cut", title: worker.worker }, worker.worker), h("span", { class: "cut small muted mono", title: worker.instance }, worker.instance)),
      h("td", { class: "wide all" }, h("span", {}, meter(share, `${worker.running} of ${worker.concurrency} slots`, "run"), h("span", { class: "small muted" }, `${number(worker.running)} of ${plural(worker.concurrency, "slot")}`))),
      h("td", { class: "wide all" }, h("span", { class: "cut-2 small", title: worker.kinds.join(", ") }, takes(worker))),
      h("td", { class: "num" }, moment(worker.seen_at)), h("td", { class: "num" }, since(worker.registered_at)),
      h("td", {}, worker.held ? h("button", { type: "button", class: "tiny", "aria-expanded": String(open), "data-key": `open-${worker.instance}`, onclick: (event) => toggle(event.target, worker.instance) }, plural(worker.held, "run")) : h("span", { class: "muted" }, "nothing")));
    return open ? [row, held(worker.instance, opened.get(worker.instance))] : [row];
  }

  async function toggle(button, instance) {
    if (opened.delete(instance)) return show();
    const answer = await act(button, () => leases(instance));
    if (answer) opened.set(instance, answer.leases);
    return show();
  }

  function held(instance, runs) {
    return h("tr", { "data-key": `held-${instance}` }, h("td", { class: "all", colspan: 6 }, h("span", { class: "tagline" }, runs.map((lease) =>
      h("a", { class: "tag", href: `#/executions/${uuidOf(lease.id)}`, "data-key": `held-${lease.id}` }, `${lease.kind} `, h("span", { class: "muted" }, since(lease.since)))))));
  }
  return { title: "Workers", element, refresh, every: 2000 };
}

function takes(worker) {
  if (!runsTasks(worker)) return "webhooks only";
  return [worker.lanes.length ? `lanes ${worker.lanes.join(", ")}` : "every lane", worker.kinds.length ? plural(worker.kinds.length, "task") : "every task",
    worker.capabilities.length ? `can ${worker.capabilities.join(", ")}` : null].filter(Boolean).join(" · ");
}
