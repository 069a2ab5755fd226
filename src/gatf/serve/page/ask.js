// Ask: classify an image and explain the prediction.

import { post } from "./api.js";
import { $, acceptDrops, breakable, isPicture, make, percent, sharpIfSmall } from "./dom.js";

const KEPT_ANSWERS = 6;
const RATES = [0.01, 0.02, 0.05, 0.1, 0.2];
let stream = null;
let shared = null;
let asked = 0;

export function start(given) {
  shared = given;
  acceptDrops($("ask-drop"), groups => ask(groups.flatMap(group => group.files)));
  $("ask-files").addEventListener("change", () => {
    ask([...$("ask-files").files].filter(isPicture));
    $("ask-files").value = "";
  });
  addEventListener("paste", event => {
    const files = [...(event.clipboardData?.files || [])].filter(isPicture);
    if (!$("ask").hidden && files.length) ask(files);
  });
  $("camera").addEventListener("click", openCamera);
  $("camera-stop").addEventListener("click", leave);
  $("camera-shoot").addEventListener("click", shoot);
}

/** Offer the rates of false rejections that the model supports. */
export function refresh() {
  const unknown = shared.model?.unknown;
  const chosen = $("unknown").value;
  const rates = unknown?.available ? RATES.filter(rate => rate >= unknown.smallest_rate) : [];
  $("unknown").replaceChildren(
    make("option", { value: "" }, "never"),
    ...rates.map(rate => make("option", { value: rate }, `at ${(100 * rate).toFixed(0)} % false rejections`)),
  );
  $("unknown").value = rates.map(String).includes(chosen) ? chosen : "";
  $("unknown").disabled = !rates.length;
  const words = { estimated: "For classes older than the last update the rate is an estimate.", withdrawn: "Not available: the drift of older classes is unknown." };
  $("unknown-words").textContent = rates.length || unknown?.status === "withdrawn" ? words[unknown.status] || "" : "Too few images were held out for this.";
}

/** Switch the camera off. */
export function leave() {
  for (const track of stream?.getTracks() || []) track.stop();
  stream = null;
  $("camera-view").hidden = true;
}

async function openCamera() {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    shared.tell("This page has no access to a camera.");
    return;
  }
  $("camera-view").hidden = false;
  $("camera-video").srcObject = stream;
  await $("camera-video").play();
  $("camera-shoot").focus();
}

function shoot() {
  const video = $("camera-video");
  const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob(blob => ask([new File([blob], "camera.jpg", { type: "image/jpeg" })]), "image/jpeg", 0.95);
}

async function ask(files) {
  if (!files.length) return;
  shared.tell("");
  const some = files.slice(0, KEPT_ANSWERS);
  const form = new FormData();
  for (const file of some) form.append("image", file, "picture");
  const model = shared.model;
  const query = new URLSearchParams({ top: 5 });
  if (model.certifies) query.set("certificate", true);
  if (model.certifies || model.unknown.status) query.set("explain", true);
  if ($("unknown").value) query.set("unknown", $("unknown").value);
  try {
    const result = await post(`/v1/predict?${query}`, form);
    const cards = result.answers.map((answer, place) => card(answer, some[place]));
    const all = [...cards, ...$("answers").children];
    for (const old of all.slice(KEPT_ANSWERS)) URL.revokeObjectURL(old.querySelector("img")?.src || "");
    $("answers").replaceChildren(...all.slice(0, KEPT_ANSWERS));
    if (files.length > some.length) shared.tell(`The first ${some.length} of ${files.length} images were classified.`);
  } catch (error) {
    shared.tell(error.message);
  }
}

function card(answer, file) {
  asked += 1;
  const name = answer.unknown ? "unknown" : String(answer.label);
  const image = make("img", { src: URL.createObjectURL(file), alt: `Image classified as ${name}`, onload: sharpIfSmall });
  const bars = answer.top.map(item => make("li", {},
    make("span", { class: "name" }, ...breakable(String(item.label))),
    make("meter", { min: 0, max: 1, value: item.probability, "aria-label": `probability of ${item.label}` }),
    make("span", { class: "value" }, percent(item.probability)),
  ));
  const words = [];
  if (answer.unknown) words.push(make("p", { class: "badge warn" }, "unknown: far from all classes"));
  else if (answer.certified !== null) {
    words.push(answer.certified
      ? make("p", { class: "badge", title: "The transport error that was measured at the last update cannot have changed this prediction. It can still be wrong." }, "unaffected by transport error")
      : make("p", { class: "badge", title: "The transport error of older classes may have changed this prediction." }, "transport error may matter"));
  }
  const parts = [make("div", { class: "asked" }, image), make("div", { class: "said" }, make("h2", {}, ...breakable(name)), ...words, make("ol", { class: "bars" }, ...bars))];
  if (answer.why) {
    const nearest = answer.why.nearest;
    const far = Math.max(...nearest.map(item => item.distance));
    parts.push(make("div", { class: "why" }, make("h3", {}, "Nearest classes"), make("ol", { class: "bars" }, ...nearest.map(item => make("li", {},
      make("span", { class: "name" }, ...breakable(String(item.label))),
      make("meter", { min: 0, max: far, value: item.distance, "aria-label": `distance to ${item.label}` }),
      make("span", { class: "value" }, item.distance.toFixed(2)),
    ))), make("p", { class: "quiet" }, "Distances in units of the mean class spread: shorter is more similar.")));
  }
  return make("article", { class: "card answer", "aria-label": `Prediction ${asked}` }, ...parts);
}
