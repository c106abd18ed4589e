// Flows: a list, newest first.
import { list } from "./api.js";
import { meter } from "./charts.js";
import { h, render } from "./dom.js";
import { badge, moment, number, plural, word } from "./format.js";
import { empty, head, pager, table } from "./ui.js";

const SIZE = 50;
const STATES = ["open", "running", "completed", "failed", "cancelled"];

export function flows({ query, everywhere }) {
  const cursor = query.get("cursor");
  const body = h("div", {}, h("p", { class: "muted pad" }, "Loading…"));
  const element = h("div", {}, head("Flows", "Graphs of runs that depend on each other."), filters(query, everywhere()),
    h("section", { class: "card", "aria-label": "Flows" }, body));

  async function refresh() {
    const asked = { state: query.getAll("state"), kind: query.get("kind"), cursor, limit: SIZE };
    if (query.get("namespace")) asked.namespace = query.get("namespace");
    const found = await list("v1/flows", asked);
    if (!found.flows.length) {
      render(body, [...query.keys()].length ? empty("No flow matches", "Remove a filter, or reset all of them.")
        : empty("No flows yet", "A flow appears here as soon as your application declares one with fabric.flow(…).", "python examples/flow_diamond.py"));
      return;
    }
    render(body, table([["Flow", "name"], ["State"], ["Members"], ["Created", "num"]], found.flows.map(line), { caption: "Flows, newest first" }),
      pager((next) => href(query, next), cursor, found.next_cursor, found.next_cursor ? `${found.flows.length} shown, there are more` : plural(found.flows.length, "flow")));
  }
  return { title: "Flows", element, refresh };
}

function line(flow) {
  const over = Object.values(flow.ended).reduce((sum, each) => sum + each, 0);
  const failed = (flow.ended.failed ?? 0) + (flow.ended.expired ?? 0);
  return h("tr", { "data-key": `row-${flow.id}` },
    h("td", { class: "name" }, h("a", { class: "cut", title: flow.kind, href: `#/flows/${flow.id}`, "data-key": flow.id }, flow.kind || "flow"),
      h("span", { class: "muted small mono" }, `…${flow.id.slice(-12)}`)),
    h("td", { class: "all" }, badge(flow.ended_at ? flow.status : flow.state)),
    h("td", { class: "wide all" }, h("span", {}, meter(flow.nodes ? over / flow.nodes : 0, `${over} of ${flow.nodes} have ended`, failed ? "fail" : "ok"),
      h("span", { class: "muted small" }, `${number(over)} of ${number(flow.nodes)} ended${failed ? `, ${number(failed)} failed` : ""}`))),
    h("td", { class: "num" }, moment(flow.created_at)));
}

function href(query, cursor) {
  const next = new URLSearchParams(query);
  next.delete("cursor");
  if (cursor) next.set("cursor", cursor);
  return `#/flows?${next}`;
}

function filters(query, everywhere) {
  const form = h("form", { role: "search", "aria-label": "Filter flows", onsubmit: (event) => { event.preventDefault(); apply(form); } });
  const chosen = new Set(query.getAll("state"));
  const field = (id, label) => h("div", { class: "field" }, h("label", { for: `f-${id}` }, label), h("input", { id: `f-${id}`, name: id, "data-key": `f-${id}`, value: query.get(id) ?? "", autocomplete: "off" }));
  form.append(
    h("fieldset", { class: "chips" }, h("legend", { class: "sr-only" }, "State"), STATES.map((state) => h("label", { class: "chip" },
      h("input", { type: "checkbox", name: "state", value: state, "data-key": `f-${state}`, checked: chosen.has(state), onchange: () => apply(form) }), h("span", {}, word(state))))),
    h("div", { class: "filters" }, field("kind", "Name"), everywhere ? field("namespace", "Namespace") : null, h("button", { type: "submit", "data-key": "f-go" }, "Filter"),
      [...query.keys()].length ? h("a", { class: "button", href: "#/flows" }, "Reset") : null));
  return form;
}

function apply(form) {
  const text = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== "")).toString();
  location.hash = text ? `#/flows?${text}` : "#/flows";
}
