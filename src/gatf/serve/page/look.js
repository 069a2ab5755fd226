// Look: class map, accuracy by update, contents of the model, history and downloads.

import { download, get, post } from "./api.js";
import { drawAccuracy, drawChart } from "./chart.js";
import { $, breakable, keptTable, make, plural, size } from "./dom.js";

const MOST_ON_MAP = 20;
const FEWEST = 20; // images without which no percentage is shown
const broad = matchMedia("(min-width: 861px)");
let shared = null;

export function start(given) {
  shared = given;
  broad.addEventListener("change", () => { if (!$("look").hidden) draw(); });
  $("rollback").addEventListener("click", async () => {
    const last = shared.model.history.at(-1);
    await attempt($("rollback"), async () => {
      await post("/v1/rollback");
      await shared.refresh();
      $("rollback-words").textContent = `Update ${last.number} was undone. The undone model is in ${shared.model.name}.undone.`;
    });
  });
  for (const button of document.querySelectorAll("[data-download]")) {
    button.addEventListener("click", () => attempt(button, () => download(button.dataset.download)));
  }
}

async function attempt(button, work) {
  button.disabled = true;
  shared.tell("");
  try {
    await work();
  } catch (error) {
    shared.tell(error.message);
  }
  button.disabled = button.id === "rollback" && !shared.model.versions.length;
}

export async function draw() {
  const model = shared.model;
  if (!model) return;
  const last = model.history.at(-1);
  const { classes } = await get("/v1/classes");
  numbers(model, last);
  await chart(model);
  const spans = model.history.map(record => `${record.number}: ${record.expected_all === null ? "not measured" : span(record)}`);
  $("accuracy-words").textContent = "Expected accuracy over all classes after every update, with its range.";
  $("accuracy").replaceChildren(drawAccuracy(model.history, `Expected accuracy by update. ${spans.join(", ")}`, alone()));
  drawClasses(classes);
  $("kept").replaceChildren(keptTable(model.kept));
  $("history").replaceChildren(...[...model.history].reverse().map(entry));
  $("rollback").disabled = !model.versions.length;
  $("rollback-words").textContent = model.versions.length
    ? `${plural(model.versions.length, "older version is", "older versions are")} kept.`
    : "No older version is kept.";
}

/** Whether the accuracies have the whole width, because there is no map beside them. */
const alone = () => $("map").hidden && broad.matches;

const span = record => `${record.expected_all.toFixed(0)} % (${record.expected_all_low.toFixed(0)} to ${record.expected_all_high.toFixed(0)})`;

/** The class table: least accurate classes first, and those whose name contains the searched text. */
function drawClasses(classes) {
  const wanted = $("class-search").value.trim().toLowerCase();
  const found = classes.filter(item => String(item.label).toLowerCase().includes(wanted))
    .sort((one, other) => (one.accuracy ?? 101) - (other.accuracy ?? 101));
  $("class-search").oninput = () => drawClasses(classes);
  $("class-count").textContent = found.length === classes.length ? "" : `${found.length} of ${classes.length}`;
  const unmeasured = classes.every(item => item.accuracy === null); // a column of dashes shows nothing
  const together = classes.every(item => item.since === 0);
  $("classes-accuracy").hidden = unmeasured;
  $("classes-since").hidden = together;
  $("classes").replaceChildren(...found.map(item => make("tr", {},
    nameCell(item.label), make("td", { hidden: unmeasured }, item.accuracy === null ? "–" : `${item.accuracy.toFixed(0)} %`),
    make("td", {}, item.images.toLocaleString("en")), make("td", { class: "wrap" }, ...breakable(item.similar === null ? "–" : String(item.similar))),
    make("td", { hidden: together }, item.since === null ? "–" : item.since === 0 ? "first fit" : `update ${item.since}`),
  )));
}

/** The name of a class and a button that lets users type another one. */
function nameCell(label) {
  const cell = make("td", { class: "wrap" }, ...breakable(String(label)));
  if (typeof label !== "string") return cell;
  const input = make("input", { type: "text", maxlength: 200, "aria-label": `New name of ${label}`, onkeydown: event => {
    if (event.key === "Escape") cell.replaceChildren(...breakable(label), " ", button);
    if (event.key === "Enter") attempt(input, () => rename(label, input.value.trim()));
  } });
  const button = make("button", { type: "button", class: "plain", "aria-label": `Rename ${label}`, onclick: () => {
    cell.replaceChildren(input);
    input.value = label;
    input.select();
  } }, "Rename");
  cell.append(" ", button);
  return cell;
}

async function rename(label, name) {
  await post("/v1/rename", new Blob([JSON.stringify({ label, name })], { type: "application/json" }));
  await shared.refresh();
}

function numbers(model, last) {
  const measured = last.expected_all !== null;
  const fresh = last.accuracy_new !== null && last.held_out >= FEWEST;
  const cards = [
    [model.classes, "classes", `${model.shape[1]}×${model.shape[2]} ${model.shape[0] === 1 ? "grey" : "colour"}, ${model.network}`],
    [measured ? `${last.expected_all.toFixed(0)} %` : "–", "expected accuracy", measured ? `between ${last.expected_all_low.toFixed(0)} and ${last.expected_all_high.toFixed(0)} %, from ${plural(last.measured_images, "image")}` : "too few images measured it"],
    [fresh ? `${last.accuracy_new.toFixed(0)} %` : "–", "accuracy in the last update", fresh ? `on ${plural(last.held_out, "image")}, among all classes` : "too few images measured it"],
    [size(model.bytes), "in the file", "no images"],
  ];
  $("numbers").replaceChildren(...cards.map(([value, name, why]) => make("div", {},
    make("dt", {}, name), make("dd", { class: "value" }, String(value)), make("dd", { class: "why" }, why))));
}

async function chart(model) {
  let found;
  $("map").hidden = model.classes > MOST_ON_MAP;
  $("map").parentElement.classList.toggle("one", $("map").hidden);
  if ($("map").hidden) return;
  try {
    found = await get("/v1/map");
  } catch (error) {
    $("chart").replaceChildren();
    $("chart-words").textContent = error.message;
    return;
  }
  const moved = found.moved ? " Arrows start at the class mean before the last update." : "";
  $("chart-words").textContent = `Class means on their two principal axes (${(100 * found.share).toFixed(0)} % of the variance). Ellipses show one standard deviation.${moved}`;
  const names = found.classes.slice(0, 30).map(item => item.label).join(", ");
  $("chart").replaceChildren(drawChart(found, { alt: `${plural(model.classes, "class", "classes")} on a map: ${names}` }));
}

/** One line for an update, which opens to its record. */
function entry(record) {
  const parts = [record.number === 0 ? "First fit" : `Update ${record.number}`];
  if (record.added.length) parts.push(plural(record.added.length, "new class", "new classes"));
  parts.push(plural(record.images, "image"));
  if (record.warnings.length) parts.push(plural(record.warnings.length, "warning"));
  const when = make("time", { class: "quiet", datetime: record.date }, new Date(record.date).toLocaleString());
  return make("li", {}, make("details", { class: "card" }, make("summary", {}, parts.join(" · "), " ", when), make("p", { class: "record" }, record.text)));
}
