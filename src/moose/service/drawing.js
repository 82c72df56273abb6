// Elements and charts for all pages. What comes from data is only ever set as text.

const LEFT = 48, RIGHT = 8;  // room beside a chart: for its labels, and for half a dot

export const byId = (id) => document.getElementById(id);
export const isKnown = (value) => value !== null && value !== undefined;
export const tidy = (value) => (Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3)
  ? value.toExponential(2) : String(Number(value.toPrecision(4))));

// What to call a policy: its task, and where it is from.
export function nameOf({ task, origin }) {
  const maker = [origin?.algorithm, origin?.preset, origin?.digest].filter(Boolean).join(", ");
  return maker ? `${task.name} (${maker})` : task.name;
}

export function element(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}

export function svg(name) {
  const made = byId("blank").content.firstElementChild.cloneNode();
  made.setAttribute("class", name);
  return made;
}

export function card({ name, unit }) {
  const title = element("span", "name", name);
  if (unit) title.append(element("span", "unit", unit));
  const head = element("div", "head");
  head.append(title, element("span", "value"));
  const box = element("div", "card");
  box.append(head, svg("chart"));
  return box;
}

// ------------------------------------------------------------------------------- parts of a chart

// An empty chart with its labels: `ticks` at the left, `foot` below, as pairs of a place and a text.
export function frame(chart, { low, high, ticks, scale = (value) => value, say = tidy, from = 0, to, foot = [] }) {
  const { width, height } = chart.getBoundingClientRect();
  const left = LEFT, right = width - RIGHT, top = 8, bottom = height - (foot.length ? 22 : 14);
  const x = (value) => left + ((value - from) / (to - from)) * (right - left);
  const y = (value) => bottom - ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (bottom - top);
  chart.replaceChildren();
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  shape(chart, "line", "frame", { x1: left, x2: right, y1: bottom + 4, y2: bottom + 4 });
  labels(ticks, y).forEach(([tick, height]) => write(chart, left - 6, height + 4, say(tick), "end"));
  foot.forEach(([place, text]) => {
    const anchor = place === from ? "start" : place === to ? "end" : "middle";
    write(chart, x(place), bottom + 18, text, anchor);
  });
  return { x, y, left, right, top, bottom, width, height };
}

// Ticks that are far enough apart to be read.
function labels(ticks, y) {
  const kept = [];
  for (const tick of ticks) if (kept.every(([, other]) => Math.abs(other - y(tick)) > 12)) kept.push([tick, y(tick)]);
  return kept;
}

// The range of values, with some room above and below.
export function padded(values) {
  let [low, high] = extent(values);
  if (low === high) { low -= 1; high += 1; }
  const room = (high - low) * 0.06;
  return { low: low - room, high: high + room };
}

// Without spreading, which has a limit.
export const extent = (values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];

export function rule(chart, { left, right, y }, kind, value, name = "") {
  shape(chart, "line", kind, { x1: left, x2: right, y1: y(value), y2: y(value) });
  if (name) write(chart, left + 4, y(value) - 3, `${name} ${tidy(value)}`, "start");
}

export const vertical = (chart, kind, x, from, to) => shape(chart, "line", kind, { x1: x, x2: x, y1: from, y2: to });

// A line that is broken where a value is missing, or before what begins anew.
export function trace(values, x, y, isFirst = () => false) {
  let path = "", isDown = false;
  values.forEach((value, i) => {
    if (isFirst(i)) isDown = false;
    if (isKnown(value)) path += `${isDown ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    isDown = isKnown(value);
  });
  return path;
}

export function shape(chart, tag, name, attributes) {
  const made = document.createElementNS(chart.namespaceURI, tag);
  made.setAttribute("class", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  chart.append(made);
  return made;
}

export function write(chart, x, y, text, anchor) {
  const made = shape(chart, "text", "", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

// How far across a chart the pointer is, from 0 to 1.
export function shareAt(chart, event) {
  const { left, width } = chart.getBoundingClientRect();
  return Math.min(Math.max((event.clientX - left - LEFT) / (width - LEFT - RIGHT), 0), 1);
}
