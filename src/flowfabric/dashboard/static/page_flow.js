// One flow: its graph with live states, and its members as a list.
import { get, part, post } from "./api.js";
import { h, render } from "./dom.js";
import { badge, duration, moment, number, plural, uuidOf, word } from "./format.js";
import { Graph } from "./graph.js";
import { act, ask, card, head, table } from "./ui.js";

const PAGE = 1000;
const DRAWN = 2000;
const LISTED = 200;
const MOST = { members: DRAWN, edges: 10 * DRAWN };

export function flow({ rest, can, refresh: again }) {
  const path = `v1/flows/${part(rest[0])}`;
  let graph = null;
  const top = h("div", { class: "stack" }, h("p", { class: "muted" }, "Loading…"));
  const picture = h("div", {});
  const members = h("div", {});
  const element = h("div", { class: "stack" }, top, picture, members);

  async function refresh() {
    const [found, all, edges] = await Promise.all([get(path), every(path, "members"), every(path, "edges")]);
    document.title = `${found.kind} · FlowFabric`;
    render(top, head(found.kind || "Flow", [badge(found.ended_at ? found.status : found.state), " ", h("span", { class: "mono small" }, found.id), " · created ", moment(found.created_at), found.ended_at ? [", took ", duration(found.ended_at - found.created_at)] : null], actions(found)), tiles(found));
    draw(all, edges.map(shape));
    render(members, card("Members", list(inOrder(all)), { flush: true, extra: h("span", { class: "muted small" }, plural(all.length, "member")) }));
  }

  /** As drawn, from left to right. */
  function inOrder(all) {
    const place = new Map(graph?.order.map((id, n) => [id, n]));
    return all.toSorted((a, b) => (place.get(uuidOf(a.id)) ?? 0) - (place.get(uuidOf(b.id)) ?? 0));
  }

  function draw(all, edges) {
    if (all.length > DRAWN) return render(picture, card("Graph", h("p", { class: "muted" }, `${number(all.length)} members are too many to draw; the list below has the first ${LISTED}.`)));
    if (edges.length > MOST.edges) return render(picture, card("Graph", h("p", { class: "muted" }, `${number(edges.length)} edges are too many to draw.`)));
    const nodes = all.map((member) => ({ id: uuidOf(member.id), uuid: uuidOf(member.id), name: member.name || member.kind, kind: member.kind, state: member.state }));
    if (graph?.shows(nodes, edges)) return graph.update(nodes, edges);
    graph = new Graph(nodes, edges);
    const hint = h("span", { class: "muted small wide-only graph-hint" }, "Drag to move, wheel or + and − to zoom, 0 to fit, Tab to go from node to node");
    return render(picture, card("Graph", graph.element, { flush: true, extra: [hint, graph.tools] }));
  }

  function actions(found) {
    if (!can("operate")) return [];
    if (!found.ended_at) return [h("button", { type: "button", class: "danger", "data-key": "cancel", onclick: (event) => cancel(event.target) }, "Cancel…")];
    const failed = (found.ended.failed ?? 0) + (found.ended.cancelled ?? 0) + (found.ended.expired ?? 0) + (found.ended.skipped ?? 0);
    return failed ? [h("button", { type: "button", class: "primary", "data-key": "replay", onclick: (event) => replay(event.target) }, "Replay what did not succeed…")] : [];
  }

  async function cancel(button) {
    const given = await ask({
      title: "Cancel this flow?", text: "Members that have not ended are cancelled. What they have done so far stays done.", confirm: "Cancel the flow", danger: true,
      fields: [{ name: "reason", label: "Reason, for those who find it so", value: "cancelled in the dashboard", required: true }],
    });
    if (given) await act(button, () => post(`${path}/cancel`, { reason: given.reason, cancellation_policy: "cancel_all" }), "The flow is cancelled");
    await again();
  }

  async function replay(button) {
    const given = await ask({ title: "Replay this flow?", text: "The members that did not succeed run again; the results of the others stay.", confirm: "Replay" });
    if (given) await act(button, () => post(`${path}/replay`), (answer) => `${plural(answer.replayed, "member")} replayed`);
    await again();
  }
  return { title: "Flow", element, refresh };
}

/** All of them, or more than can be drawn. */
async function every(path, noun) {
  const found = [];
  let cursor = null;
  do {
    const page = await get(`${path}/${noun}`, { cursor, limit: PAGE });
    found.push(...page[noun]);
    cursor = page.next_cursor;
  } while (cursor && found.length <= MOST[noun]);
  return found;
}

function shape({ edge, outcome }) {
  const on = String(edge.on ?? "success").replace(/^on_/, "");
  const done = outcome === null ? null : on === "any" || (on === "success") === (outcome === "success");
  return { id: edge.id, from: uuidOf(edge.upstream), to: uuidOf(edge.downstream), done };
}

function tiles(found) {
  const shown = Object.entries(found.states).filter(([, value]) => value);
  return h("div", { class: "tiles" }, [["members", found.nodes], ["edges", found.edges], ...shown].map(([name, value]) =>
    h("div", { class: "tile" }, h("b", {}, number(value)), h("span", {}, word(name)))));
}

function list(all) {
  return table([["Member", "name"], ["State"], ["Task"]], all.slice(0, LISTED).map((member) => h("tr", { "data-key": `row-${member.id}` },
    h("td", { class: "name" }, h("a", { class: "cut", title: member.name, href: `#/executions/${uuidOf(member.id)}`, "data-key": member.id }, member.name || member.kind)),
    h("td", {}, badge(member.state)), h("td", { class: "wide" }, h("span", { class: "cut", title: member.kind }, member.kind)))), { caption: "Members of the flow" });
}
