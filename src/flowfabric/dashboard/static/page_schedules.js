// Schedules: when they submit next; pause, resume, run now.
import { get, part, post } from "./api.js";
import { h, render } from "./dom.js";
import { badge, duration, moment, plural } from "./format.js";
import { act, ask, card, empty, head, pager, table } from "./ui.js";

const SIZE = 100;

export function schedules({ query, can, refresh: again }) {
  const cursor = query.get("cursor");
  const body = h("div", {}, h("p", { class: "muted pad" }, "Loading…"));
  const element = h("div", {}, head("Schedules", "What submits runs by itself."), h("section", { class: "card", "aria-label": "Schedules" }, body));

  async function refresh() {
    const found = await get("v1/schedules", { cursor, limit: SIZE });
    const columns = [["Schedule", "name"], ["Times"], ["Next", "num"], ["Last", "num"], ["Lane"]];
    if (can("operate")) columns.push(["Actions"]);
    render(body, found.schedules.length
      ? [table(columns, found.schedules.map(line), { caption: "Schedules by name" }), pager((next) => (next ? `#/schedules?cursor=${part(next)}` : "#/schedules"), cursor, found.next_cursor, plural(found.schedules.length, "schedule"))]
      : empty("No schedules", "A task declared with schedule=\"…\" or every=\"…\" appears here when a worker of it has started.", '@fabric.task(schedule="30 2 * * *")'));
  }

  function line(schedule) {
    const { name } = schedule;
    const times = schedule.cron ? h("code", {}, schedule.cron) : `every ${duration(schedule.every)}`;
    return h("tr", { "data-key": `row-${name}` },
      h("td", { class: "name" }, schedule.kind === name ? null : h("b", { class: "cut", title: name }, name),
        h("a", { class: schedule.kind === name ? "cut" : "cut small", title: schedule.kind, href: `#/executions?kind=${part(schedule.kind)}`, "data-key": `runs-${name}` }, schedule.kind)),
      h("td", {}, h("span", {}, times, schedule.cron && schedule.timezone !== "UTC" ? h("span", { class: "muted small" }, ` ${schedule.timezone}`) : null)),
      h("td", { class: "num" }, schedule.paused ? badge("paused") : moment(schedule.next_at)),
      h("td", { class: "num" }, moment(schedule.last_at)),
      h("td", { class: "wide" }, h("span", { class: "cut", title: schedule.lane }, schedule.lane)),
      can("operate") ? h("td", { class: "all" }, h("span", { class: "actions" },
        button(name, schedule.paused ? "resume" : "pause", schedule.paused ? "Resume" : "Pause", schedule.paused ? "It submits again" : "Paused"),
        h("button", { type: "button", class: "tiny", "aria-label": `Run ${name} now`, "data-key": `now-${name}`, onclick: (event) => now(event.target, name) }, "Run now"))) : null);
  }

  function button(name, action, title, said) {
    return h("button", { type: "button", class: "tiny", "aria-label": `${title} ${name}`, "data-key": `pause-${name}`, onclick: async (event) => {
      await act(event.target, () => post(`v1/schedules/${part(name)}/${action}`), said);
      await again();
    } }, title);
  }

  async function now(target, name) {
    const given = await ask({ title: `Run ${name} now?`, text: "One run is submitted in addition to its times.", confirm: "Run now" });
    if (given) await act(target, () => post(`v1/schedules/${part(name)}/trigger`), "A run was submitted");
    await again();
  }
  return { title: "Schedules", element, refresh, every: 2000 };
}
