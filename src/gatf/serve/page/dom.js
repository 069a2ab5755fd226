// Elements are made by calls, never from text: whatever a class is called, it is shown as it is.

export const $ = id => document.getElementById(id);

/** An element with attributes and children; text stays text. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

/** The same for SVG. */
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") element.style.cssText = value; // the policy of the page refuses the attribute
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** A name that breaks after its underscores, hyphens, points and slashes where it does not fit a line. */
export const breakable = text => (text.match(/[^_./-]+[_./-]*|[_./-]+/g) || [text]).flatMap(part => [part, make("wbr")]);

export const percent = share => `${(100 * share).toFixed(1)} %`;
export const plural = (count, one, many = one + "s") => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

export function size(bytes) {
  if (bytes >= 1e6) return `${(bytes / 1e6).toFixed(1)} MB`;
  return bytes >= 1e3 ? `${(bytes / 1e3).toFixed(bytes >= 1e4 ? 0 : 1)} kB` : `${bytes} bytes`;
}

export function lasting(seconds) {
  if (seconds < 100) return `${Math.ceil(seconds)} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Pixels of very small pictures are shown as they are. */
export function sharpIfSmall(event) {
  event.target.classList.toggle("tiny", event.target.naturalWidth < 48);
}

/** A table of what a model keeps. */
export function keptTable(kept) {
  const rows = kept.map(item => make("tr", {}, make("td", { class: "wrap" }, item.what), make("td", {}, size(item.bytes))));
  const table = make("table", { "aria-label": "What the model stores" }, make("tbody", {}, ...rows));
  return make("div", { class: "table" }, make("div", { class: "scroll" }, table));
}

/** Accept dropped files and folders on an element: `use` gets [{folder, files}]. */
export function acceptDrops(element, use) {
  element.addEventListener("dragover", event => {
    event.preventDefault();
    event.stopPropagation();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", async event => {
    event.preventDefault();
    event.stopPropagation();
    element.classList.remove("over");
    const entries = [...event.dataTransfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
    const files = [...event.dataTransfer.files];
    use(entries.length ? await groupsOf(entries) : [{ folder: null, files: files.filter(isPicture) }]);
  });
}

export const isPicture = file => file.type.startsWith("image/") || /\.(jpe?g|png|webp|gif|bmp|tiff?|jp2|avif|ppm)$/i.test(file.name);

/** Files that were chosen by folder, by the name of the folder they lie in. */
export function groupsOfFiles(files) {
  const groups = new Map();
  for (const file of files.filter(isPicture)) {
    const parts = (file.webkitRelativePath || "").split("/");
    const folder = parts.length > 1 ? parts[parts.length - 2] : null;
    if (!groups.has(folder)) groups.set(folder, []);
    groups.get(folder).push(file);
  }
  return [...groups].map(([folder, found]) => ({ folder, files: found }));
}

async function groupsOf(entries) {
  const groups = [];
  const loose = [];
  for (const entry of entries) {
    if (entry.isFile) loose.push(await fileOf(entry));
    else await walk(entry, groups);
  }
  const pictures = loose.filter(isPicture);
  return pictures.length ? [{ folder: null, files: pictures }, ...groups] : groups;
}

async function walk(directory, groups) {
  const files = [];
  const reader = directory.createReader();
  for (;;) {
    const entries = await new Promise((found, failed) => reader.readEntries(found, failed));
    if (!entries.length) break;
    for (const entry of entries) {
      if (entry.isFile) files.push(await fileOf(entry));
      else await walk(entry, groups);
    }
  }
  const pictures = files.filter(isPicture);
  if (pictures.length) groups.push({ folder: directory.name, files: pictures });
}

const fileOf = entry => new Promise((found, failed) => entry.file(found, failed));
