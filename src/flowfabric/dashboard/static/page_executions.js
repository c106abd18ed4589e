// Runs: filters in the address, pages by cursor, many at once.
import { list, post } from "./api.js";
import { announce, h, render } from "./dom.js";
import { ENDED, STATES, badge, duration, moment, plural, shortId, since, uuidOf, word } from "./format.js";
import { act, ask, card, empty, head, pager, table } from "./ui.js";

const SIZE = 50;
const MOST = 1000;
const ROUNDS = 10; // requests for one page, each of which looks at some ten thousand runs
const PATIENT = 5000; // milliseconds between two reads of a page that takes several
const MINUTE = 60000;
const WITHIN = { "": "any time", 3600000: "last hour", 86400000: "last day", 604800000: "last week" };

export function executions({ query, can, everywhere, refresh: again }) {
  const selected = new Map(); // id → row
  const cursor = query.get("cursor");
  let rows = [];
  const bar = h("div", { class: "bulk", hidden: true });
  const body = h("div", {}, h("p", { class: "muted pad" }, "Loading…"));
  const operate = can("operate");
  const element = h("div", {}, head("Runs", null, []), filters(query, everywhere()),
    h("section", { class: "card", "aria-label": "Runs" }, bar, body));

  async function refresh() {
    const found = await search(query, cursor, SIZE);
    rows = found.executions;
    page.every = found.rounds > 1 ? PATIENT : undefined;
    render(body, rows.length ? listing(found) : found.next_cursor ? furtherBack(found) : nothing(query));
  }

  function furtherBack(found) {
    return [empty("No run matches so far", "The newest runs were looked at; older ones may match."), pages(found, "")];
  }

  const pages = (found, text) => pager((next) => href(query, next), cursor, found.next_cursor, text, found.executions.length < SIZE ? "Search older runs" : "Next page");

  function listing(found) {
    const all = h("input", { type: "checkbox", "aria-label": "Select all on this page", "data-key": "all",
      checked: rows.every((row) => selected.has(row.id)), onchange: (event) => {
        for (const row of rows) mark(row, event.target.checked);
        for (const box of body.querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
      } });
    const columns = [["Run", "name"], ["State"], ["Lane"], ["Created", "num"], ["Took", "num"], ["Attempts", "num"]];
    if (operate) columns.unshift(["", "check", all]);
    return [
      table(columns, rows.map(line), { caption: "Runs, newest first" }),
      pages(found, found.next_cursor ? `${rows.length} shown, there ${rows.length < SIZE ? "may be" : "are"} more` : plural(rows.length, "run")),
    ];
  }

  function line(row) {
    const box = h("input", { type: "checkbox", "aria-label": `Select ${row.kind} ${shortId(row.id)}`, "data-key": `select-${row.id}`,
      checked: selected.has(row.id), onchange: (event) => mark(row, event.target.checked) });
    return h("tr", { "data-key": `row-${row.id}` },
      operate ? h("td", { class: "check" }, box) : null,
      h("td", { class: "name" },
        h("a", { class: "cut", href: `#/executions/${uuidOf(row.id)}`, title: row.kind, "data-key": `run-${row.id}` }, row.kind),
        h("span", { class: "muted small mono", title: uuidOf(row.id) }, `…${shortId(row.id)}`)),
      h("td", { class: "wide all" }, h("span", {}, badge(row.state), note(row))),
      h("td", { class: "wide" }, h("span", { class: "cut", title: row.lane }, row.lane)),
      h("td", { class: "num" }, moment(row.created_at)),
      h("td", { class: "num" }, took(row)),
      h("td", { class: "num" }, row.attempts_made));
  }

  function mark(row, on) {
    if (on) selected.set(row.id, row);
    else selected.delete(row.id);
    showBar();
  }

  function showBar() {
    bar.hidden = selected.size === 0;
    if (!selected.size) return;
    announce(`${plural(selected.size, "run")} selected`);
    render(bar, h("b", {}, `${plural(selected.size, "run")} selected`),
      h("button", { type: "button", class: "danger tiny", "data-key": "cancel", onclick: (event) => cancel(event.target) }, "Cancel…"),
      h("button", { type: "button", class: "tiny", "data-key": "replay", onclick: (event) => replay(event.target) }, "Replay…"),
      h("button", { type: "button", class: "quiet tiny", "data-key": "more", onclick: (event) => selectAll(event.target) }, `Select all that match (up to ${MOST.toLocaleString("en")})`),
      h("button", { type: "button", class: "quiet tiny", "data-key": "clear", onclick: clear }, "Clear"));
  }

  function clear() {
    selected.clear();
    showBar();
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = false;
  }

  async function selectAll(button) {
    const found = await act(button, () => search(query, null, MOST));
    for (const row of found?.executions ?? []) selected.set(row.id, row);
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = true;
    showBar();
  }

  async function cancel(button) {
    const aimed = [...selected.values()].filter((row) => !ENDED.has(row.state));
    if (!aimed.length) return void ask({ title: "Nothing to cancel", text: "All selected runs have ended.", confirm: "OK" });
    const given = await ask({
      title: `Cancel ${plural(aimed.length, "run")}?`, text: "What they have done so far stays done; what waits for them is skipped.",
      items: aimed.map(name), confirm: `Cancel ${plural(aimed.length, "run")}`, danger: true,
      fields: [{ name: "reason", label: "Reason, for those who find them so", value: "cancelled in the dashboard", required: true }],
    });
    if (given) await many(button, "v1/executions/cancel", aimed, { reason: given.reason }, "cancelled");
  }

  async function replay(button) {
    const aimed = [...selected.values()].filter((row) => ENDED.has(row.state));
    if (!aimed.length) return void ask({ title: "Nothing to replay", text: "Only runs that have ended can be replayed.", confirm: "OK" });
    const given = await ask({
      title: `Replay ${plural(aimed.length, "run")}?`, text: "They start over with the same input, under the same ids.",
      items: aimed.map(name), confirm: `Replay ${plural(aimed.length, "run")}`,
    });
    if (given) await many(button, "v1/executions/replay", aimed, {}, "replayed");
  }

  async function many(button, path, aimed, body, verb) {
    const done = await act(button, () => post(path, { execution_ids: aimed.map((row) => row.id), ...body }), (answer) => {
      const refused = answer.results.filter((each) => each.error);
      const first = refused.length ? `; ${refused.length} refused: ${refused[0].error.error}` : "";
      return `${plural(answer.results.length - refused.length, "run")} ${verb}${first}`;
    });
    if (done) clear();
    await again();
  }

  const page = { title: "Runs", element, refresh };
  return page;
}

/** A page of runs. The server looks at some thousands for each request, so that one may find few or
    none though older runs match. */
async function search(query, cursor, limit) {
  const found = { executions: [], next_cursor: cursor, rounds: 0 };
  do {
    const asked = { ...filterOf(query), cursor: found.next_cursor, limit: limit - found.executions.length };
    const { executions: more, next_cursor: next } = await list("v1/executions/search", asked);
    found.executions.push(...more);
    found.next_cursor = next;
    found.rounds += 1;
  } while (found.next_cursor && found.executions.length < limit && found.rounds < ROUNDS);
  return found;
}

const name = (row) => `${row.kind} …${shortId(row.id)}`;

function note(row) {
  const text = row.state === "failed" || row.state === "expired" ? row.failure?.message
    : row.state === "cancelled" ? row.cancel_reason
      : row.failure ? `${row.waits_for ? `for ${row.waits_for}` : "tried again"} after: ${row.failure.message}`
        : row.waits_for ? `for ${row.waits_for}` : null;
  return text ? h("span", { class: "cut-2 small muted", title: text }, text) : null;
}

function took(row) {
  if (row.started_at === null) return "–";
  return row.ended_at === null ? since(row.started_at) : duration(row.ended_at - row.started_at);
}

function filterOf(query) {
  const within = Number(query.get("within") ?? 0);
  return {
    state: query.getAll("state"), kind: query.get("kind"), lane: query.get("lane"), tag: query.get("tag"),
    ...(query.get("namespace") ? { namespace: query.get("namespace") } : {}),
    created_from: within ? Math.floor((Date.now() - within) / MINUTE) * MINUTE : null, // the same for all who ask
  };
}

function href(query, cursor) {
  const next = new URLSearchParams(query);
  next.delete("cursor");
  if (cursor) next.set("cursor", cursor);
  return `#/executions?${next}`;
}

function filters(query, everywhere) {
  const form = h("form", { role: "search", "aria-label": "Filter runs", onsubmit: (event) => { event.preventDefault(); apply(form); } });
  const chosen = new Set(query.getAll("state"));
  form.append(
    h("fieldset", { class: "chips" }, h("legend", { class: "sr-only" }, "State"), STATES.map((state) => h("label", { class: "chip" },
      h("input", { type: "checkbox", name: "state", value: state, "data-key": `f-${state}`, checked: chosen.has(state), onchange: () => apply(form) }), h("span", {}, word(state))))),
    more(query, h("div", { class: "filters" },
      field("kind", "Task", query), field("lane", "Lane", query), field("tag", "Tag", query, "key=value"),
      everywhere ? field("namespace", "Namespace", query) : null,
      h("div", { class: "field" }, h("label", { for: "f-within" }, "Created"),
        h("select", { id: "f-within", "data-key": "f-within", name: "within", onchange: () => apply(form) }, Object.entries(WITHIN).map(([value, text]) =>
          h("option", { value, selected: (query.get("within") ?? "") === value }, text)))),
      h("button", { type: "submit", "data-key": "f-go" }, "Filter"),
      [...query.keys()].length ? h("a", { class: "button", href: "#/executions" }, "Reset") : null)));
  return form;
}

/** On a narrow screen these filters are folded away, unless one of them is set. */
function more(query, content) {
  const used = [...query.keys()].some((name) => name !== "state" && name !== "cursor");
  return h("details", { class: "more", open: used || matchMedia("(min-width: 861px)").matches }, h("summary", { "data-key": "more-filters" }, "More filters"), content);
}

function field(id, label, query, placeholder = "") {
  return h("div", { class: "field" }, h("label", { for: `f-${id}` }, label),
    h("input", { id: `f-${id}`, "data-key": `f-${id}`, name: id, value: query.get(id) ?? "", placeholder, autocomplete: "off", spellcheck: false }));
}

function apply(form) {
  const given = [...new FormData(form)].filter(([, value]) => value !== "");
  const text = new URLSearchParams(given).toString();
  location.hash = text ? `#/executions?${text}` : "#/executions";
}

function nothing(query) {
  if ([...query.keys()].length) {
    return empty("No run matches", "Remove a filter, or reset all of them. A cursor of an old page may also be past the end.");
  }
  return empty("No runs yet", "A run appears here as soon as your application submits it.", "flowfabric submit app.module:fabric TASK");
}
