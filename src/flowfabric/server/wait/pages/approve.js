// The token is in the fragment of the address, which browsers do not send: it reaches the server
// only in the body of the two requests below.
const [, , run, waitpoint] = location.pathname.split("/");
const token = decodeURIComponent(location.hash.slice(1));
const $ = (id) => document.getElementById(id);
const WORDS = { approved: "Approve", rejected: "Reject" };
const PROBLEMS = {
  invalid_token: "This link is not valid. Ask for a new one.",
  missing_token: "This link is incomplete: its last part is missing. Copy the whole link.",
  token_expired: "This link has expired. Ask for a new one.",
  token_revoked: "This link was taken back. Ask for a new one.",
  token_used: "This link was for one use, and it was used.",
  waitpoint_closed: "There is nothing to decide any more.",
  target_not_signalable: "There is nothing to decide any more.",
  approval_outdated: "What was to be decided has changed since. Ask for a new link.",
  already_decided: "You have already decided otherwise.",
  decision_not_allowed: "You may not decide this.",
};

async function post(path, body) {
  const reply = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ execution_id: run, waitpoint_id: waitpoint, token, ...body }),
  });
  const answer = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(answer.error), { code: answer.code });
  return answer;
}

function say(text, kind = "") {
  $("status").textContent = text;
  $("status").className = kind;
}

function fail(error) {
  const known = PROBLEMS[error.code];
  say(known ?? `That did not work: ${error.message}. Nothing was decided; try again.`, "problem");
}

function cell(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function shown(value) {
  if (typeof value === "string") return value;
  const simple = Array.isArray(value) && value.every((each) => each === null || typeof each !== "object");
  return simple ? value.map((each) => `• ${each}`).join("\n") : JSON.stringify(value, null, 2);
}

function showAbout(about) {
  const plain = about !== null && typeof about === "object" && !Array.isArray(about);
  if (!plain) {
    const text = about === null ? "Nothing was attached to this decision." : shown(about);
    return $("about").replaceChildren(cell("pre", text));
  }
  const table = document.createElement("table");
  for (const [name, value] of Object.entries(about)) {
    const row = document.createElement("tr");
    const head = cell("th", name);
    head.scope = "row";
    row.append(head, cell("td", shown(value)));
    table.append(row);
  }
  $("about").replaceChildren(table);
}

function showDecisions(asked) {
  const names = asked.decisions.length ? asked.decisions : ["approved", "rejected"];
  $("decisions").replaceChildren(...names.map((name, place) => {
    const button = cell("button", WORDS[name] ?? name);
    button.type = "button";
    if (place === 0) button.className = "main";
    button.addEventListener("click", () => decide(name, asked));
    return button;
  }));
}

async function decide(decision, asked) {
  const buttons = [...document.querySelectorAll("button")];
  buttons.forEach((button) => { button.disabled = true; });
  say("Sending your decision…");
  try {
    await post("/v1/waitpoints/decide", {
      decision,
      comment: $("comment").value,
      about_digest: asked.about_digest,
    });
    $("asked").hidden = true;
    say(`Recorded: ${WORDS[decision] ? decision : `“${decision}”`}. You can close this page.`, "done");
  } catch (error) {
    fail(error);
    buttons.forEach((button) => { button.disabled = false; });
  }
}

async function load() {
  try {
    const asked = await post("/v1/waitpoints/look", {});
    if (!asked.open) return say("There is nothing to decide any more.", "problem");
    if (asked.approvers.length && asked.approver === null) {
      return say(`Only ${asked.approvers.join(", ")} may decide this, each by a link of their own.`, "problem");
    }
    $("title").textContent = asked.key;
    $("context").textContent = `Asked by ${asked.kind} on ${new Date(asked.asked_at).toLocaleString()}.`
      + (asked.approver ? ` This link is for ${asked.approver}.` : "");
    showAbout(asked.about);
    showDecisions(asked);
    say("");
    $("asked").hidden = false;
    $("title").tabIndex = -1;
    $("title").focus();
  } catch (error) {
    fail(error);
  }
}

$("form").addEventListener("submit", (event) => event.preventDefault());
load();
