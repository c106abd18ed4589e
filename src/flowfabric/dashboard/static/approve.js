// Waitpoints that people answer: what is asked, and the buttons.
import { part, post } from "./api.js";
import { h } from "./dom.js";
import { moment, pretty, shortId, since, uuidOf, word } from "./format.js";
import { act, ask } from "./ui.js";

const WORDS = { approved: "Approve", rejected: "Reject" };

export const isApproval = (waitpoint) => waitpoint.terms !== null && waitpoint.terms !== undefined;

/** One open waitpoint with what can be done about it. */
export function waitpointItem(waitpoint, { can, after, withRun }) {
  const run = uuidOf(waitpoint.execution);
  const approval = isApproval(waitpoint);
  const title = approval ? "Approval" : "Waits for a signal";
  const name = waitpoint.key || waitpoint.required_signal_names?.join(", ") || "any";
  return h("div", { class: approval ? "item" : "item beside", "data-key": `item-${waitpoint.id}` },
    h("div", {}, h("h3", {}, `${title}: ${name}`, waitpoint.kind ? h("span", { class: "muted" }, ` · ${waitpoint.kind}`) : null),
      h("p", { class: "small muted" }, withRun ? [h("a", { href: `#/executions/${run}`, "data-key": `run-${waitpoint.id}` }, `Open the run …${shortId(run)}`), " · "] : null,
        "waiting for ", since(waitpoint.since ?? waitpoint.activated_at ?? waitpoint.created_at),
        waitpoint.expires_at ? [" · ends ", moment(waitpoint.expires_at)] : null,
        waitpoint.terms?.approvers?.length ? ` · for ${waitpoint.terms.approvers.join(", ")}` : null)),
    approval ? about(waitpoint) : waitpoint.required_signal_names?.length ? h("p", { class: "small" }, "Accepts: ", h("code", {}, waitpoint.required_signal_names.join(", "))) : null,
    can("signal") ? buttons(waitpoint, run, approval, after) : null);
}

function about(waitpoint) {
  const value = waitpoint.about;
  if (value === null || value === undefined) return h("p", { class: "small muted" }, "Nothing was attached to this decision.");
  const plain = typeof value === "object" && !Array.isArray(value);
  if (!plain) return h("div", { class: "about" }, h("pre", {}, pretty(value)));
  return h("div", { class: "about" }, h("table", {}, h("tbody", {}, Object.entries(value).map(([name, each]) =>
    h("tr", {}, h("th", { scope: "row" }, word(name)), h("td", {}, shown(each)))))));
}

function shown(value) {
  if (!Array.isArray(value) || !value.length || value.some((each) => typeof each === "object")) return pretty(value);
  return h("ul", { class: "plain" }, value.map((each) => h("li", {}, String(each))));
}

function buttons(waitpoint, run, approval, after) {
  if (!approval) {
    return h("div", { class: "actions" }, h("button", { type: "button", "data-key": `signal-${waitpoint.id}`, onclick: (event) => signal(event.target, run, waitpoint.key, after) }, "Send a signal…"));
  }
  const names = waitpoint.terms.decisions?.length ? waitpoint.terms.decisions : ["approved", "rejected"];
  return h("div", { class: "actions" }, names.map((decision, place) => h("button", {
    type: "button", class: place === 0 ? "primary" : "", "data-key": `${decision}-${waitpoint.id}`,
    onclick: (event) => decide(event.target, waitpoint, run, decision, after),
  }, WORDS[decision] ?? word(decision))));
}

async function decide(button, waitpoint, run, decision, after) {
  const verb = WORDS[decision] ?? word(decision);
  const given = await ask({
    title: `${verb}: ${waitpoint.key}?`, text: "The run continues with your decision at once. It cannot be taken back.",
    confirm: verb, danger: decision === "rejected", fields: [{ name: "comment", label: "Comment (optional)", lines: 3 }],
  });
  if (!given) return;
  const body = { decision, comment: given.comment, about_digest: waitpoint.terms.about ?? null };
  await act(button, () => post(`v1/executions/${part(run)}/waitpoints/${part(waitpoint.id)}/decide`, body), `Decided: ${word(decision)}`);
  await after();
}

/** Asks for a signal and sends it. */
export async function signal(button, run, name, after) {
  const given = await ask({
    title: "Send a signal", text: "A signal that comes before the run waits for it is kept.", confirm: "Send",
    fields: [{ name: "name", label: "Name", value: name ?? "", required: true }, { name: "payload", label: "Payload, as JSON (optional)", lines: 4, placeholder: '{"paid": 1999}' }],
  });
  if (!given) return;
  await act(button, () => {
    const body = { name: given.name };
    if (given.payload.trim()) body.payload = readJson(given.payload);
    return post(`v1/executions/${part(run)}/send`, body);
  }, `Signal “${given.name}” sent`);
  await after();
}

function readJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The payload is not JSON: ${error.message}. Put text in double quotes`);
  }
}
