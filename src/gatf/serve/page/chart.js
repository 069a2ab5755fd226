// The plane of the classes, and a line of accuracies, as SVG in the report's colours.

import { draw } from "./dom.js";

const SERIES = 7;
const WIDTH = 460;
const HEIGHT = 340;

/** Half axes and angle of the ellipse of a 2×2 covariance. */
function ellipse([[a, b], [, d]]) {
  const middle = (a + d) / 2;
  const reach = Math.hypot((a - d) / 2, b);
  return { long: Math.sqrt(Math.max(middle + reach, 0)), short: Math.sqrt(Math.max(middle - reach, 0)), angle: Math.atan2(2 * b, a - d) / 2 };
}

/**
 * Ellipses (one standard deviation), names, arrows from where a class lay before the last update.
 */
export function drawChart(chart, { alt }) {
  const classes = chart.classes.map((item, number) => ({ ...item, ...ellipse(item.spread), colour: `var(--series${number % SERIES})` }));
  const xs = [], ys = [];
  for (const item of classes) {
    const wide = Math.hypot(item.long * Math.cos(item.angle), item.short * Math.sin(item.angle));
    const high = Math.hypot(item.long * Math.sin(item.angle), item.short * Math.cos(item.angle));
    xs.push(item.place[0] - wide, item.place[0] + wide);
    ys.push(item.place[1] - high, item.place[1] + high);
    if (item.from) { xs.push(item.from[0]); ys.push(item.from[1]); }
  }
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const room = 30;
  const scale = Math.min((WIDTH - 2 * room) / Math.max(right - left, 1e-9), (HEIGHT - 2 * room) / Math.max(high - low, 1e-9));
  const height = Math.max(180, (high - low) * scale + 2 * room);
  const across = x => WIDTH / 2 + (x - (left + right) / 2) * scale;
  const down = y => height / 2 - (y - (low + high) / 2) * scale;
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": alt });
  for (const item of classes) {
    const [x, y] = [across(item.place[0]), down(item.place[1])];
    svg.append(draw("ellipse", {
      cx: x, cy: y, rx: Math.max(item.long * scale, 1), ry: Math.max(item.short * scale, 1), class: "spread",
      style: `stroke: ${item.colour}; fill: ${item.colour}`, transform: `rotate(${-item.angle * 180 / Math.PI} ${x} ${y})`,
    }));
    if (item.from) svg.append(...arrow(across(item.from[0]), down(item.from[1]), x, y));
  }
  const dots = classes.map(item => [across(item.place[0]), down(item.place[1])]);
  const taken = dots.map(([x, y]) => ({ x: x - 4, y: y - 4, w: 8, h: 8 }));
  for (const [number, item] of classes.entries()) {
    const [x, y] = dots[number];
    svg.append(draw("circle", { cx: x, cy: y, r: 4, style: `fill: ${item.colour}` }));
    svg.append(name(short(String(item.label)), x, y, taken, height, { class: "name" }));
  }
  return svg;
}

/** A name beside a dot, where it covers least of what is there already; it takes its place. */
function name(text, x, y, taken, height, attributes) {
  const w = 7.4 * text.length + 4, h = 16;
  const places = [[x + 7, y - 18], [x + 7, y + 3], [x - 7 - w, y - 18], [x - 7 - w, y + 3], [x - w / 2, y - 25], [x - w / 2, y + 9]];
  const covered = ([left, top]) => taken.reduce((sum, box) => sum
    + Math.max(0, Math.min(left + w, box.x + box.w) - Math.max(left, box.x)) * Math.max(0, Math.min(top + h, box.y + box.h) - Math.max(top, box.y)), 0)
    + 1e4 * Number(left < 0 || left + w > WIDTH || top < 0 || top + h > height);
  const [left, top] = places.reduce((best, place) => (covered(place) < covered(best) ? place : best));
  taken.push({ x: left, y: top, w, h });
  const element = draw("text", { x: left + 2, y: top + 12.5, ...attributes });
  element.textContent = text;
  return element;
}

function arrow(x1, y1, x2, y2) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  if (length < 8) return [];
  const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
  const [ex, ey] = [x2 - 6 * ux, y2 - 6 * uy];
  const head = `M${ex} ${ey}L${ex - 7 * ux - 3.5 * uy} ${ey - 7 * uy + 3.5 * ux}L${ex - 7 * ux + 3.5 * uy} ${ey - 7 * uy - 3.5 * ux}Z`;
  return [draw("line", { x1, y1, x2: ex, y2: ey, class: "arrow" }), draw("path", { d: head, class: "arrow-head" })];
}

const short = name => (name.length > 16 ? `${name.slice(0, 15)}…` : name);

/** Expected accuracy over all classes after each update, with its range. */
export function drawAccuracy(history, alt, alone) {
  const [width, tall] = alone ? [2 * WIDTH, 0.7 * HEIGHT] : [WIDTH, HEIGHT];
  const [left, right, top, bottom] = [40, 14, 14, 34];
  const svg = draw("svg", { viewBox: `0 0 ${width} ${tall}`, role: "img", "aria-label": alt });
  const steps = Math.max(history.length - 1, 1);
  const across = number => history.length === 1 ? (width + left - right) / 2 : left + 12 + (width - left - right - 24) * number / steps;
  const down = value => top + (tall - top - bottom) * (1 - value / 100);
  for (const value of [0, 25, 50, 75, 100]) {
    svg.append(draw("line", { x1: left, x2: width - right, y1: down(value), y2: down(value), class: "grid-line" }));
    const text = draw("text", { x: left - 6, y: down(value) + 4, class: "tick", "text-anchor": "end" });
    text.textContent = value;
    svg.append(text);
  }
  const every = Math.ceil(history.length / 12);
  for (const record of history) {
    if (record.number % every) continue;
    const text = draw("text", { x: across(record.number), y: tall - 12, class: "tick", "text-anchor": "middle" });
    text.textContent = record.number === 0 ? "first fit" : record.number;
    svg.append(text);
  }
  const known = history.filter(record => record.expected_all !== null);
  const points = known.map(record => [across(record.number), down(record.expected_all)]);
  svg.append(draw("polyline", { points: points.map(point => point.join(",")).join(" "), class: "line", style: "stroke: var(--series0)" }));
  for (const [place, [x, y]] of points.entries()) {
    const [low, high] = [known[place].expected_all_low, known[place].expected_all_high].map(down);
    svg.append(draw("line", { x1: x, x2: x, y1: low, y2: high, class: "line", style: "stroke: var(--series0); opacity: 0.5" }));
    svg.append(draw("circle", { cx: x, cy: y, r: 4.5, style: "fill: var(--series0)" }));
  }
  return svg;
}
