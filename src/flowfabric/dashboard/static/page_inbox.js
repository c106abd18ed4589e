// What waits for people: approvals first, then other waitpoints.
import { list } from "./api.js";
import { isApproval, waitpointItem } from "./approve.js";
import { h, render } from "./dom.js";
import { plural } from "./format.js";
import { card, empty, head, pager } from "./ui.js";

const SIZE = 50;

export function inbox({ query, can, refresh: again }) {
  const cursor = query.get("cursor");
  const element = h("div", {}, head("Inbox", "What runs ask of people and of the outside world."), h("p", { class: "muted" }, "Loading…"));

  async function refresh() {
    const { waitpoints, next_cursor: next } = await list("v1/waitpoints", { cursor, limit: SIZE });
    const asked = waitpoints.filter(isApproval);
    const others = waitpoints.filter((each) => !isApproval(each));
    const item = (each) => waitpointItem(each, { can, after: again, withRun: true });
    render(element, head("Inbox", "What runs ask of people and of the outside world."),
      h("div", { class: "stack" },
        card("Approvals", asked.length ? asked.map(item)
          : empty("Nothing to decide", "A run that calls ctx.approval(…) waits here until someone decides, and holds no worker meanwhile."), { flush: true, extra: h("span", { class: "muted small" }, plural(asked.length, "open decision")) }),
        others.length ? card("Waits for signals", others.map(item), { flush: true, extra: h("span", { class: "muted small" }, plural(others.length, "open waitpoint")) }) : null,
        next || cursor ? h("div", { class: "card" }, pager((to) => (to ? `#/inbox?cursor=${encodeURIComponent(to)}` : "#/inbox"), cursor, next, "")) : null));
  }
  return { title: "Inbox", element, refresh, every: 2000 };
}
