// Parts that several pages share.
import { announce, byId, h } from "./dom.js";

export function card(title, body, { extra, flush, className = "" } = {}) {
  return h("section", { class: `card ${className}`, "data-key": title === null ? null : `card-${title}` },
    title === null ? null : h("div", { class: "card-head" }, h("h2", {}, title), extra),
    h("div", { class: flush ? "card-body flush" : "card-body" }, body));
}

/** A command to copy. */
export function command(text) {
  return h("div", { class: "copy" }, h("code", {}, text), h("button", { type: "button", class: "tiny", "data-key": `copy-${text}`, onclick: (event) => copyFrom(event.currentTarget, text) }, "Copy"));
}

/** Copies, and says so on the button. */
export async function copyFrom(button, text) {
  const before = button.textContent;
  await copy(text);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages served without TLS have no clipboard
    const area = h("textarea", { value: text, class: "sr-only" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce("Copied");
}

/** What to do where there is nothing to see. */
export function empty(title, text, commandText) {
  return h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), commandText ? command(commandText) : null);
}

export const noWorker = () => empty("No worker runs your tasks", "Runs wait until a worker takes them. Start one where your code is.", "flowfabric worker app.module:fabric");

/** A table that becomes a list of cards on a narrow screen. `columns` are [label, className]. */
export function table(columns, rows, { caption } = {}) {
  for (const row of rows) {
    [...row.children].forEach((cell, place) => { cell.dataset.label = columns[place]?.[0] ?? ""; });
  }
  return h("div", { class: "scroll" }, h("table", { class: "fold" },
    caption ? h("caption", { class: "sr-only" }, caption) : null,
    h("thead", {}, h("tr", {}, columns.map(([label, className, content]) =>
      h("th", { scope: "col", class: className ?? "" }, content ?? label)))),
    h("tbody", {}, rows)));
}

export function toast(text, tone = "") {
  const shown = h("div", { class: "toast", "data-tone": tone }, text);
  byId("toasts").append(shown);
  setTimeout(() => shown.remove(), tone === "fail" ? 9000 : 4500);
}

/** Runs an action of a button: disabled meanwhile, with a word about how it ended. */
export async function act(button, work, done) {
  if (button) button.disabled = true;
  try {
    const answer = await work();
    const said = typeof done === "function" ? done(answer) : done;
    if (said) toast(said);
    return answer;
  } catch (error) {
    toast(explain(error), "fail");
    return null;
  } finally {
    if (button) button.disabled = false;
  }
}

/** An error as advice. */
export function explain(error) {
  if (error.status === 0) return "The server cannot be reached. Nothing was changed; try again when it is back.";
  if (error.status === 403) return `Your access token does not allow this: ${error.message}.`;
  if (error.status === 429) return "Too many requests at once. Wait a moment, then try again.";
  return error.message.endsWith(".") ? error.message : `${error.message}.`;
}

/** Asks before something is done. Resolves to the values of the fields, or null. */
export function ask({ title, text, items = [], fields = [], confirm = "OK", danger = false }) {
  return new Promise((resolve) => {
    const inputs = fields.map((field) => {
      const props = { id: `ask-${field.name}`, name: field.name, value: field.value ?? "", required: field.required, placeholder: field.placeholder };
      const input = field.lines ? h("textarea", { ...props, rows: field.lines }) : h("input", { ...props, type: field.type ?? "text" });
      return h("div", { class: "field" }, h("label", { for: props.id }, field.label), input);
    });
    const shown = items.slice(0, 5).map((item) => h("li", {}, item));
    if (items.length > 5) shown.push(h("li", {}, `and ${items.length - 5} more`));
    const dialog = h("dialog", { "aria-labelledby": "ask-title" }, h("form", { method: "dialog", onsubmit: (event) => {
      event.preventDefault();
      const values = Object.fromEntries(new FormData(event.target));
      finish(values);
    } },
      h("h2", { id: "ask-title" }, title), text ? h("p", {}, text) : null, shown.length ? h("ul", {}, shown) : null, inputs,
      h("div", { class: "actions" },
        h("button", { type: "button", onclick: () => finish(null) }, "Back"),
        h("button", { type: "submit", class: danger ? "primary danger" : "primary" }, confirm))));
    const before = document.activeElement;
    function finish(values) {
      dialog.close();
      dialog.remove();
      before?.focus?.();
      resolve(values);
    }
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); finish(null); });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("input, textarea") ?? dialog.querySelector("button[type=submit]")).focus();
  });
}

export function head(title, sub, actions) {
  return h("div", { class: "head" },
    h("div", {}, h("h1", {}, title), sub ? h("p", { class: "sub" }, sub) : null),
    h("div", { class: "actions" }, actions));
}

/** Links to the first and the next page of a list with cursors. */
export function pager(href, cursor, next, text, onward = "Next page") {
  return h("div", { class: "pager" }, h("span", { class: "muted small" }, text),
    h("div", { class: "actions" },
      cursor ? h("a", { class: "button", href: href(null), "data-key": "first" }, "First page") : null,
      next ? h("a", { class: "button", href: href(next), "data-key": "next" }, onward) : null));
}
