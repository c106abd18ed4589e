// Budgets and quotas, and how full they are.
import { get, part } from "./api.js";
import { gauge } from "./charts.js";
import { h, render } from "./dom.js";
import { duration, moment, number, plural, sentence } from "./format.js";
import { card, empty, head } from "./ui.js";

const SIZE = 100;
const BUSY = { full: "delay" }; // a quota that is used up is at work, not at fault
const ASKED = 30; // quotas whose fill is asked for, one request each

export function limits({ everywhere }) {
  const title = head("Limits", "Budgets count what is spent; quotas limit how many run at once and how many start.");
  const element = h("div", {}, title, h("p", { class: "muted" }, "Loading…"));

  async function refresh() {
    if (!everywhere()) {
      render(element, head("Limits"), h("div", { class: "card" }, empty("Not for your access token", "All namespaces share budgets and quotas, so they are shown to tokens for all namespaces.")));
      return;
    }
    const [budgets, quotas] = await Promise.all([get("v1/budgets", { limit: SIZE }), get("v1/quotas", { limit: SIZE })]);
    const fills = await Promise.all(quotas.quotas.slice(0, ASKED).map((quota) => get(`v1/quotas/${part(quota.name)}`)));
    render(element, head("Limits", "Budgets count what is spent; quotas limit how many run at once and how many start."),
      h("div", { class: "stack" },
        budgets.budgets.length ? h("div", { class: "cards" }, budgets.budgets.map(budgetCard))
          : card("Budgets", empty("No budgets", "A budget limits what runs may spend: tokens, cents, calls.", 'fabric.budget("team", tokens=10_000, every="1d")')),
        quotas.quotas.length ? h("div", { class: "cards" }, fills.map(quotaCard))
          : card("Quotas", empty("No quotas", "A quota limits how many runs use something at once, or how many start in a period.", 'fabric.quota("api", concurrency=10, rate="100/m")')),
        quotas.quotas.length > ASKED ? h("p", { class: "muted" }, `${quotas.quotas.length - ASKED} more quotas are not shown; see flowfabric quotas.`) : null));
  }
  return { title: "Limits", element, refresh, every: 5000, age: 5 };
}

function budgetCard(budget) {
  const dimensions = Object.entries(budget.dimensions);
  const notes = [
    budget.parent ? `part of ${budget.parent}` : null,
    budget.breaches ? `refused ${plural(budget.breaches, "time")}` : null,
    budget.soft_breaches ? `over its soft limit ${plural(budget.soft_breaches, "time")}` : null,
  ].filter(Boolean).join(", ");
  return card(`Budget ${budget.name}`, [
    dimensions.map(([name, each]) => gauge(name, each.taken, each.hard ?? each.soft, { soft: each.hard ? each.soft : null })),
    h("p", { class: "small muted pad-top" }, notes ? sentence(notes) : "Nothing was refused.", budget.next_reset_at ? [" Starts over ", moment(budget.next_reset_at), "."] : null),
  ], { className: "span-4" });
}

function quotaCard(status) {
  const { quota } = status;
  const keys = status.keys.filter((each) => each.uses.some((use) => use.key)).slice(0, 5);
  const own = (each) => each.uses.find((use) => use.quota === quota.name)?.key ?? "";
  return card(quota.name.startsWith("task:") ? `Task ${quota.name.slice(5)}` : `Quota ${quota.name}`, [
    quota.concurrency ? gauge("at once", status.admitted, quota.concurrency, BUSY) : null,
    quota.rate ? [gauge(`starts in ${duration(quota.rate.window)}`, status.started ?? 0, quota.rate.count, BUSY), status.opens_at ? h("p", { class: "small" }, "The next one starts ", moment(status.opens_at), ".") : null] : null,
    keys.map((each) => gauge(own(each), each.held, quota.concurrency_per_key, BUSY)),
    h("p", { class: "small muted pad-top" }, `${number(status.waiting)} waiting · ${number(status.admitted)} admitted, ${number(status.running)} of them running${status.key_count > 5 ? ` · ${number(status.key_count)} keys` : ""}`),
  ], { className: "span-4" });
}
