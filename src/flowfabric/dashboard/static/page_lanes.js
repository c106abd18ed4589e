// Lanes: what waits in them; pause, drain, resume.
import { get, list, part, post } from "./api.js";
import { meter } from "./charts.js";
import { h, render } from "./dom.js";
import { badge, number, plural, since } from "./format.js";
import { act, ask, empty, head, pager, table } from "./ui.js";

const SIZE = 100;
const TEXTS = {
  pause: "Nothing of the lane is taken until it is resumed. What runs goes on.",
  drain: "What has begun goes on to its end, with retries and resumes; nothing new begins until the lane is resumed.",
  resume: "Its runs are taken again.",
};

export function lanes({ query, can, everywhere, refresh: again }) {
  const cursor = query.get("cursor");
  const body = h("div", {}, h("p", { class: "muted pad" }, "Loading…"));
  const element = h("div", {}, head("Lanes", "Runs wait in lanes for a worker. A paused lane gives out nothing."), h("section", { class: "card", "aria-label": "Lanes" }, body));
  const operate = can("operate") && everywhere();

  async function refresh() {
    const [found, overview] = await Promise.all([get("v1/lanes", { cursor, limit: SIZE }), list("v1/overview")]);
    const depths = new Map(overview.lanes.map((lane) => [lane.lane, lane]));
    const most = Math.max(1, ...overview.lanes.map((lane) => lane.waiting + lane.running));
    const columns = [["Lane", "name"], ["State"], ["Depth"], ["Oldest", "num"], ["At once", "num"]];
    if (operate) columns.push(["Actions"]);
    render(body, found.lanes.length
      ? [table(columns, found.lanes.map((lane) => line(lane, depths.get(lane.name), most)), { caption: "Lanes by name" }), pager((next) => (next ? `#/lanes?cursor=${part(next)}` : "#/lanes"), cursor, found.next_cursor, plural(found.lanes.length, "lane"))]
      : empty("No lanes yet", "A lane exists as soon as a run was submitted to it. The first one is called “default”.", "flowfabric submit app.module:fabric TASK --lane default"));
  }

  function line(lane, depth = { waiting: 0, running: 0, oldest_at: null }, most = 1) {
    const state = lane.state === "active" ? "open" : lane.state;
    const actions = state === "open" ? ["pause", "drain"] : ["resume"];
    return h("tr", { "data-key": `row-${lane.name}` },
      h("td", { class: "name" }, h("a", { class: "cut", title: lane.name, href: `#/executions?lane=${part(lane.name)}`, "data-key": `lane-${lane.name}` }, lane.name)),
      h("td", { class: "wide all" }, h("span", {}, badge(state), state !== "open" && lane.reason ? h("span", { class: "cut-2 small muted" }, `${lane.reason}${lane.by ? `, ${lane.by}` : ""}`) : null,
        state !== "open" && lane.at ? h("span", { class: "small muted" }, " for ", since(lane.at)) : null)),
      h("td", { class: "wide all" }, h("span", {}, meter((depth.waiting + depth.running) / most, `${depth.waiting} waiting, ${depth.running} running`),
        h("span", { class: "small muted nowrap" }, `${number(depth.waiting)} waiting · ${number(depth.running)} running`))),
      h("td", { class: "num" }, depth.oldest_at ? since(depth.oldest_at) : "–"),
      h("td", { class: "num" }, lane.concurrency ? `${number(depth.running)} of ${number(lane.concurrency)}` : "any"),
      operate ? h("td", { class: "all" }, h("span", { class: "actions" }, actions.map((action, place) => h("button", {
        type: "button", class: "tiny", "aria-label": `${title(action)} ${lane.name}`, "data-key": `act-${place}-${lane.name}`, onclick: (event) => change(event.target, lane.name, action),
      }, action === "resume" ? "Resume" : `${title(action)}…`)))) : null);
  }

  async function change(button, name, action) {
    const given = action === "resume" ? { reason: "" } : await ask({
      title: `${title(action)} the lane ${name}?`, text: TEXTS[action], confirm: title(action),
      fields: [{ name: "reason", label: "Reason, for those who find it so" }],
    });
    if (!given) return;
    const said = { pause: "paused", drain: "draining", resume: "open again" }[action];
    await act(button, () => post(`v1/lanes/${part(name)}/${action}`, { reason: given.reason }), `${name} is ${said}`);
    await again();
  }
  return { title: "Lanes", element, refresh };
}

const title = (action) => action.slice(0, 1).toUpperCase() + action.slice(1);
