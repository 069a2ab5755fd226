// The page: tabs, theme, what the model is called, and the three parts.

import { Refused, get, useToken } from "./api.js";
import { $, plural } from "./dom.js";
import * as ask from "./ask.js";
import * as look from "./look.js";
import * as teach from "./teach.js";

const TABS = ["teach", "ask", "look"];
const shared = { model: null, tell, refresh, show };

/** Show a sentence at the top of the page; an empty one removes it. */
function tell(sentence) {
  $("alert").hidden = !sentence;
  $("alert").textContent = sentence || "";
}

function show(name) {
  for (const tab of TABS) {
    const chosen = tab === name;
    $(tab).hidden = !chosen;
    const button = $(`tab-${tab}`);
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
  tell("");
  if (name !== "ask") ask.leave();
  if (name === "look") look.draw(shared).catch(failed);
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
}

/** Load the description of the model. */
async function refresh() {
  try {
    shared.model = (await get("/healthz")).ready ? await get("/v1/model") : null;
  } catch (error) {
    return failed(error);
  }
  const model = shared.model;
  $("title").textContent = model ? model.name : "A new model";
  document.title = model ? `${model.name} · gatf studio` : "gatf studio";
  $("subtitle").textContent = model
    ? plural(model.classes, "class", "classes") + (model.updates ? `, ${plural(model.updates, "update")} since the first fit` : "")
    : "The model has no classes yet. Teach two classes to start.";
  for (const tab of ["ask", "look"]) $(`tab-${tab}`).disabled = !model;
  teach.refresh(shared);
  ask.refresh(shared);
  if (!$("look").hidden) await look.draw(shared).catch(failed);
}

function failed(error) {
  if (!(error instanceof Refused)) throw error;
  $("token").hidden = error.status !== 401;
  if (error.status === 401) $("token-text").focus();
  else tell(error.message);
}

$("token").addEventListener("submit", event => {
  event.preventDefault();
  useToken($("token-text").value.trim());
  $("token").hidden = true;
  refresh();
});

for (const [number, tab] of TABS.entries()) {
  $(`tab-${tab}`).addEventListener("click", () => show(tab));
  $(`tab-${tab}`).addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const open = TABS.filter(name => !$(`tab-${name}`).disabled);
    const next = open[(open.indexOf(TABS[number]) + step + open.length) % open.length];
    show(next);
    $(`tab-${next}`).focus();
  });
}

$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// a file that is dropped beside the drop zone must not replace the page
for (const kind of ["dragover", "drop"]) addEventListener(kind, event => event.preventDefault());

teach.start(shared);
ask.start(shared);
look.start(shared);
await refresh();
const wanted = location.hash.slice(1);
show(shared.model && TABS.includes(wanted) ? wanted : "teach");
await teach.takeUp(shared).catch(failed);
document.documentElement.dataset.ready = "yes";
