// Teach: collect images by class, run an update, show its result.

import { get, listen, post, remove } from "./api.js";
import { $, acceptDrops, groupsOfFiles, isPicture, keptTable, lasting, make, plural, sharpIfSmall } from "./dom.js";

/** Classes that are about to be taught: {name, pictures: [{file, url}]}. */
const drafts = [];
const SHOWN = 60;
let running = null;
let shared = null;

export function start(given) {
  shared = given;
  acceptDrops($("teach-drop"), groups => groups.forEach(add));
  for (const id of ["teach-files", "teach-folder"]) {
    $(id).addEventListener("change", () => {
      const files = [...$(id).files];
      const groups = id === "teach-folder" ? groupsOfFiles(files) : [{ folder: null, files: files.filter(isPicture) }];
      groups.forEach(add);
      $(id).value = "";
    });
  }
  $("learn").addEventListener("click", learn);
  $("cancel").addEventListener("click", async () => {
    $("cancel").disabled = true;
    $("progress-words").textContent = "Cancelling after the current step …";
    await remove(`/v1/updates/${running}`).catch(error => shared.tell(error.message));
  });
}

export function refresh() {
  const kept = shared.model ? shared.model.adapt : "never";
  $("adapt-row").hidden = kept === null;
  $("adapt").options[0].textContent = `as before: ${kept}`;
  hint();
}

/** Follow an update that started before this page was opened. */
export async function takeUp() {
  const { updates } = await get("/v1/updates");
  const begun = updates.find(update => update.state === "running");
  if (begun) follow(begun);
}

/** Images of one class: of the card `to`, of the class that a folder names, or of a class without a name yet. */
function add({ folder, files }, to = folder && drafts.find(draft => draft.name === folder)) {
  if (!files.length) return;
  const draft = to || { name: folder || "", pictures: [] };
  draft.pictures.push(...files.map(file => ({ file, url: URL.createObjectURL(file) })));
  if (!to) drafts.push(draft);
  $("outcome").hidden = true;
  render(to || folder ? null : draft);
}

/** The cards of all classes; the name of `fresh` is ready to be typed. */
function render(fresh) {
  $("drafts").replaceChildren(...drafts.map(card));
  hint();
  if (fresh) {
    const input = $("drafts").querySelectorAll("input[type=text]")[drafts.indexOf(fresh)];
    input.focus();
  }
}

function card(draft, number) {
  const id = `name-${number}`;
  const count = make("p", { class: "quiet" }, plural(draft.pictures.length, "image"));
  const input = make("input", { type: "text", id, maxlength: 200, autocomplete: "off", required: true, placeholder: "name of this class", oninput: event => {
    draft.name = event.target.value.trim();
    hint();
  } });
  input.value = draft.name;
  const pictures = draft.pictures.slice(0, SHOWN).map((picture, place) => thumbnail(draft, picture, place));
  const more = draft.pictures.length - SHOWN;
  if (more > 0) pictures.push(make("li", { class: "quiet more" }, `and ${more} more`));
  const element = make(
    "section", { class: "card draft", "aria-label": `Class ${number + 1}` },
    make("div", { class: "row" },
      make("label", { for: id }, "Class"), input, count,
      make("label", { class: "button" }, "Add", make("input", { type: "file", accept: "image/*", multiple: true, "aria-label": `Add images to class ${number + 1}`, onchange: event => {
        add({ files: [...event.target.files].filter(isPicture) }, draft);
      } })),
      make("button", { type: "button", "aria-label": `Remove class ${draft.name || number + 1}`, onclick: () => drop(draft) }, "Remove"),
    ),
    make("ul", { class: "thumbs" }, ...pictures),
  );
  acceptDrops(element, groups => groups.forEach(group => add(group, draft)));
  return element;
}

function thumbnail(draft, picture, place) {
  const what = `image ${place + 1} of ${draft.name || "a class without a name"}`;
  const image = make("img", { src: picture.url, alt: what, loading: "lazy", width: 72, height: 72, onload: sharpIfSmall, onerror: () => {
    image.replaceWith(make("span", { class: "unseen", role: "img", "aria-label": `${what}, no preview` }, picture.file.name));
  } });
  const button = make("button", { type: "button", "aria-label": `Remove ${what}`, title: "Remove", onclick: () => {
    URL.revokeObjectURL(picture.url);
    draft.pictures.splice(draft.pictures.indexOf(picture), 1);
    if (draft.pictures.length) render();
    else drop(draft);
  } }, "×");
  return make("li", {}, image, button);
}

function drop(draft) {
  for (const picture of draft.pictures) URL.revokeObjectURL(picture.url);
  drafts.splice(drafts.indexOf(draft), 1);
  render();
}

/** What is missing before Learn can be pressed. */
function hint() {
  const names = drafts.map(draft => draft.name || draft);
  const first = !shared.model;
  let words = "";
  if (running) words = "Only one update can run at a time.";
  else if (!drafts.length) words = first ? "Add two classes to start." : "Add new classes, or more images of known classes.";
  else if (first && new Set(names).size < 2) words = "A new model needs a second class.";
  const few = drafts.filter(draft => draft.name && draft.pictures.length < 20).map(draft => draft.name);
  $("learn").disabled = Boolean(words);
  if (!words && few.length) words = `Use at least 20 images per class for better accuracy: ${few.slice(0, 3).join(", ")}${few.length > 3 ? " …" : ""}`;
  $("learn-hint").textContent = words;
}

async function learn() {
  shared.tell("");
  const unnamed = drafts.findIndex(draft => !draft.name);
  if (unnamed >= 0) {
    $(`name-${unnamed}`).focus();
    $("learn-hint").textContent = "Name every class.";
    return;
  }
  const form = new FormData();
  for (const draft of drafts) {
    form.append("label", draft.name);
    for (const picture of draft.pictures) form.append("image", picture.file, "picture");
  }
  $("learn").disabled = true;
  $("learn-hint").textContent = "Uploading images …";
  let update;
  try {
    update = await post(`/v1/updates${$("adapt").value && `?adapt=${$("adapt").value}`}`, form);
  } catch (error) {
    shared.tell(error.message);
    hint();
    return;
  }
  for (const draft of drafts) for (const picture of draft.pictures) URL.revokeObjectURL(picture.url);
  drafts.length = 0;
  render();
  follow(update);
}

async function follow(update) {
  running = update.id;
  hint();
  $("outcome").hidden = true;
  $("progress").hidden = false;
  $("cancel").disabled = false;
  const names = update.classes.map(item => item.label);
  $("progress-title").textContent = `Learning ${names.slice(0, 4).join(", ")}${names.length > 4 ? " …" : ""}`;
  $("progress-bar").removeAttribute("value");
  $("progress-words").textContent = `Reading ${plural(update.images, "image")} …`;
  let last = update;
  try {
    await listen(`/v1/updates/${update.id}/events`, state => {
      last = state;
      progress(state);
    });
  } catch (error) {
    shared.tell(error.message);
  }
  running = null;
  $("progress").hidden = true;
  await shared.refresh();
  outcome(last);
}

function progress({ state, images: total, progress: now }) {
  if (state !== "running" || $("cancel").disabled) return;
  if (now.phase === "waiting") $("progress-words").textContent = "Waiting for another process that updates the model …";
  if (now.phase === "features") {
    $("progress-bar").value = now.share;
    const left = now.left === null ? "" : ` · about ${lasting(now.left)} left`;
    $("progress-words").textContent = `Extracting features of ${plural(total, "image")}${left}`;
    return;
  }
  if (now.epoch === null) {
    if (now.share === 1) $("progress-words").textContent = "Evaluating and transporting older classes …";
    if (now.share === 1) $("progress-bar").value = 1;
    return;
  }
  $("progress-bar").value = now.share;
  const words = [`epoch ${now.epoch} of ${now.epochs}`];
  if (now.loss !== null) words.push(`loss ${now.loss.toFixed(3)}`);
  if (now.left !== null) words.push(`about ${lasting(now.left)} left`);
  $("progress-words").textContent = words.join(" · ");
}

function outcome(update) {
  const titles = { done: "Learnt", failed: "The update failed", cancelled: "Cancelled", interrupted: "Interrupted" };
  if (!titles[update.state]) return;
  $("outcome").hidden = false;
  $("outcome-title").textContent = titles[update.state];
  $("outcome-text").textContent = update.message || "";
  $("outcome-pictures").textContent = update.pictures_deleted
    ? `The ${plural(update.images, "image")} ${update.images === 1 ? "has" : "have"} been deleted from the server.`
    : "The images are still on the server.";
  const kept = update.state === "done" && shared.model ? [make("p", { class: "quiet" }, "The model stores:"), keptTable(shared.model.kept)] : [];
  $("outcome-kept").replaceChildren(...kept);
}
