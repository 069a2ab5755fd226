// Look: class map, accuracy by update, contents of the model, history and downloads.

import { download, get, post } from "./api.js";
import { drawAccuracy, drawChart } from "./chart.js";
import { $, keptTable, make, plural, size } from "./dom.js";

let shared = null;

export function start(given) {
  shared = given;
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
  $("accuracy-words").replaceChildren(
    key("series0", "● on held-out images"), " ", ...(model.history.length > 1 ? [key("series1", "■ forecast for older classes")] : []),
  );
  const values = model.history.map(record => `${record.number}: ${record.accuracy_new === null ? "not measured" : record.accuracy_new.toFixed(0) + " %"}`);
  $("accuracy").replaceChildren(drawAccuracy(model.history, `Accuracy by update. ${values.join(", ")}`));
  $("classes").replaceChildren(...classes.map(item => make("tr", {},
    make("td", {}, String(item.label)), make("td", {}, item.images.toLocaleString("en")),
    make("td", {}, item.since === null ? "–" : item.since === 0 ? "first fit" : `update ${item.since}`), make("td", {}, item.bytes.toLocaleString("en")),
  )));
  $("kept").replaceChildren(keptTable(model.kept));
  $("history").replaceChildren(...[...model.history].reverse().map(entry));
  $("rollback").disabled = !model.versions.length;
  $("rollback-words").textContent = model.versions.length
    ? `${plural(model.versions.length, "older version is", "older versions are")} kept.`
    : "No older version is kept.";
}

function numbers(model, last) {
  const cards = [
    [model.classes, "classes", `${model.shape[1]}×${model.shape[2]} ${model.shape[0] === 1 ? "grey" : "colour"}, ${model.network}`],
    [last.accuracy_new === null ? "–" : `${last.accuracy_new.toFixed(0)} %`, "accuracy", last.accuracy_new === null ? "no images were held out" : `on ${last.held_out} images held out at the last update`],
    [last.expected_old === null ? "–" : `${last.expected_old.toFixed(0)} %`, "forecast for older classes", last.expected_old === null ? (last.number === 0 ? "there are no older classes" : "not available") : "from their stored statistics"],
    [size(last.bytes_per_class), "stored per class", `${size(model.bytes)} in total, no images`],
  ];
  $("numbers").replaceChildren(...cards.map(([value, name, why]) => make("div", {},
    make("dt", {}, name), make("dd", { class: "value" }, String(value)), make("dd", { class: "why" }, why))));
}

async function chart(model) {
  let found;
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

function entry(record) {
  const date = new Date(record.date);
  return make("li", { class: "card" },
    make("h3", {}, record.number === 0 ? "First fit" : `Update ${record.number}`, " ", make("time", { class: "quiet", datetime: record.date }, date.toLocaleString())),
    make("p", { class: "record" }, record.text),
  );
}

const key = (colour, words) => make("span", { class: `key ${colour}` }, words);
