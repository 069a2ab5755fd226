// The OpenAPI document as a page for reading.

import { get, useToken } from "./api.js";
import { $, make } from "./dom.js";

async function show() {
  let api;
  try {
    api = await get("/openapi.json");
  } catch (error) {
    $("token").hidden = error.status !== 401;
    $("about").textContent = error.message;
    return;
  }
  $("token").hidden = true;
  $("about").textContent = `${api.info.description} Version ${api.info.version}.`;
  const sections = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, what]) => section(path, method, what, api)));
  $("docs").append(...sections);
}

function section(path, method, what, api) {
  const fields = (what.parameters || []).map(item => [item.name, `${item.in}${item.required ? ", required" : ""}`, item.description || item.schema?.description || ""]);
  const bodies = Object.entries(what.requestBody?.content || {}).map(([kind, body]) => [kind, "body", Object.keys(resolved(body.schema, api).properties || {}).join(", ")]);
  const answers = Object.entries(what.responses).map(([status, answer]) => {
    const schema = Object.values(answer.content || {})[0]?.schema;
    return [status, "response", schema ? Object.keys(resolved(schema, api).properties || {}).join(", ") : answer.description];
  });
  const rows = [...fields, ...bodies, ...answers].map(cells => make("tr", {}, ...cells.map(cell => make("td", { class: "wrap" }, cell))));
  return make("section", { class: "card" },
    make("h2", {}, make("span", { class: "badge" }, method.toUpperCase()), " ", make("code", {}, path)),
    make("p", {}, (what.description || "").replaceAll("`", "")),
    make("div", { class: "scroll" }, make("table", { class: "fields" }, make("tbody", {}, ...rows))));
}

const resolved = (schema, api) => (schema.$ref ? api.components.schemas[schema.$ref.split("/").at(-1)] || {} : schema);

$("token").addEventListener("submit", event => {
  event.preventDefault();
  useToken($("token-text").value.trim());
  show();
});
show();
