// Shows what every position of a dial promises, and gives the policy at one of them.
import { Unanswered, ask, carryToken, needsToken, option } from "/asking.js";
import {
  byId, card, element, extent, frame, isKnown, nameOf, padded, rule, shape, shareAt, tidy, trace, vertical, write,
} from "/drawing.js";

const PATIENCE = 120_000;  // milliseconds: a policy is checked before it is written
const FORM_NOTES = {
  moose: "One file with everything; moose.load_policy(file).at(λ) turns it further.",
  onnx: "One graph for ONNX Runtime, from raw history to raw action.",
  c: "One C99 file that needs math.h only.",
};

// What is known: the measurements, the manifest of the policy, which row of the dial is chosen, and
// the range of every signal and action over all positions.
const known = { tuning: null, manifest: null, index: 0, extents: {} };

async function begin() {
  try {
    [known.tuning, known.manifest] = [await ask("/dial.json"), await ask("/policy")];
  } catch (error) {
    return complain(error);
  }
  byId("notice").hidden = byId("empty").hidden = true;
  byId("data").hidden = false;
  layOut();
  turnTo(indexInAddress() ?? firstIndex());
}

function complain(error) {
  if (!(error instanceof Unanswered)) throw error;
  byId("empty").hidden = error.status !== 422;
  byId("notice").hidden = error.status === 422;
  if (error.status === 422) {
    byId("missing").textContent = error.told.what;
    byId("remedy").textContent = `${sentence(error.told.advice)}.`;
  } else {
    byId("notice").textContent = error.status === 401 ? needsToken("/dial")
      : "The service does not answer. See whether moose serve is still running, and load this page again.";
  }
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);
const fixed = (position) => position.toFixed(2);
const share = (value) => `${Number((100 * value).toFixed(1))} %`;
const here = () => known.tuning.dial[known.index];

// ------------------------------------------------------------------------------ the chosen position

const nearest = (position) => known.tuning.positions.reduce((best, each, i, all) =>
  (Math.abs(each - position) < Math.abs(all[best] - position) ? i : best), 0);

function firstIndex() {
  const { advice, dial } = known.tuning;
  if (isKnown(advice.position)) return nearest(advice.position);
  return dial.reduce((best, row, i) => (row.lower_bound > dial[best].lower_bound ? i : best), 0);
}

function indexInAddress() {
  const position = parseFloat(option("position"));
  return position >= 0 && position <= 1 ? nearest(position) : null;
}

function turnTo(index) {
  known.index = index;
  byId("position").value = known.tuning.positions[index];
  show();
}

function keepInAddress() {
  const options = new URLSearchParams(location.hash.slice(1));
  options.set("position", known.tuning.positions[known.index]);
  history.replaceState(null, "", `#${options}`);
}

// --------------------------------------------------------------- what does not depend on the position

function layOut() {
  const { tuning, manifest: { task, numbers } } = known;
  const stands = isKnown(numbers?.position) ? `; the controller has it at ${fixed(numbers.position)}` : "";
  byId("policy").textContent = nameOf(known.manifest) + stands;
  document.title = `${task.name}: moose dial`;
  const slider = byId("position"), { positions } = tuning;
  const gaps = positions.slice(1).map((position, i) => position - positions[i]);
  slider.min = positions[0];
  slider.max = positions.at(-1);
  slider.step = gaps.length ? Number(Math.min(...gaps).toFixed(6)) : "any";
  byId("hold-key").hidden = !tuning.hold;
  showAdvice();
  showManner();
  const units = new Map([...task.observations, ...task.actions].map(({ name, unit }) => [name, unit]));
  for (const kind of ["actions", "signals"]) {
    const names = Object.keys(tuning.dial[0][kind]);
    byId(kind).replaceChildren(...names.map((name) => card({ name, unit: units.get(name) })));
    known.extents[kind] = names.map((name) =>
      extent([...tuning.dial, tuning.logged].flatMap((row) => row[kind]?.[name] ?? []).flat()));
    byId(kind).previousElementSibling.replaceChildren(...curveKeys());
  }
}

function curveKeys() {
  return [["imagined", "imagined: middle and range"], ["logged", "logged: middle and range"]].map(([kind, text]) => {
    const item = element("span", kind, text);
    item.prepend(element("i", "line"), element("i", "band"));
    return item;
  });
}

function showAdvice() {
  const { advice, reasons, positions, hold, dial } = known.tuning;
  const first = fixed(positions[firstIndex()]);
  byId("advice").dataset.choice = advice.choice;
  if (advice.choice === "hold") {
    byId("choice").textContent = "Advised: change nothing";
    byId("promise").textContent = "Doing nothing is what is advised: to leave everything as it is earns " +
      `${tidy(advice.return)}, with a lower bound of ${tidy(advice.lower_bound)}. The dial's best lower bound is ` +
      `${tidy(dial[firstIndex()].lower_bound)}, at λ = ${first}.`;
  } else {
    byId("choice").textContent = `Advised: λ = ${first}`;
    byId("promise").textContent = `It promises a return of ${tidy(advice.return)}, with a lower bound of ` +
      `${tidy(advice.lower_bound)}. The log has earned ${tidy(known.tuning.logged.return)}` +
      `${hold ? `, never changing anything ${tidy(hold.return)}` : ""}.`;
  }
  byId("promise").textContent += controllerStands();
  byId("advised").textContent = markWord();
  byId("reasons").replaceChildren(...reasons.map(({ kind, text }) => {
    const item = element("li", "", text);
    item.dataset.kind = kind;
    return item;
  }));
}

// The controller of this service may stand elsewhere than what is advised.
function controllerStands() {
  const { advice } = known.tuning, position = known.manifest.numbers?.position;
  if (!isKnown(position)) return "";
  const isAdvised = isKnown(advice.position) && fixed(advice.position) === fixed(position);
  return ` The controller of this service has it at ${fixed(position)}${isAdvised ? "" : ", which is not what is advised"}.`;
}

const markWord = () => (known.tuning.advice.choice === "hold" ? "best lower bound" : "advised");

function showManner() {
  const { protocol, models } = known.tuning;
  byId("manner").textContent = `Returns of ${protocol.steps} steps with discount ${tidy(protocol.discount)}, ` +
    `imagined from ${protocol.start_states} states of the log in ${protocol.models} models` +
    `${protocol.groups > 1 ? ` of ${protocol.groups} groups` : ""}. ${sentence(protocol.manner)}` +
    `${protocol.manner.endsWith(".") ? "" : "."} Along the log's own actions they tell ${share(models.explained)} ` +
    `of the variance of what was earned, and promise ${tidy(Math.abs(models.bias))} too ` +
    `${models.bias > 0 ? "much" : "little"} on average.` +
    `${protocol.changed?.length ? ` Not as by default: ${protocol.changed.join(", ")}.` : ""}`;
}

// ------------------------------------------------------------------- what depends on the position

function show() {
  const row = here();
  byId("stands").textContent = fixed(row.position);
  byId("position").setAttribute("aria-valuetext", `λ = ${fixed(row.position)}`);
  showScale();
  showReturns();
  showOverPositions("newness", "new", share);
  showOverPositions("distance", "apart", tidy);
  showNumbers(row);
  showCurves("actions");
  showCurves("signals");
  showTake();
}

function showScale() {
  const { positions } = known.tuning;
  const chart = byId("scale"), from = positions[0], to = positions.at(-1);
  const { width: room } = chart.getBoundingClientRect();
  const inside = room < 400 ? [] : room < 640 ? [0.5] : [0.25, 0.5, 0.75];
  const foot = [[from, `${tidy(from)}: what the log did`], ...inside.map((tick) => [tick, String(tick)]),
    [to, `${tidy(to)}: all that was found`]];
  const { x, right, bottom } = frame(chart, { low: 0, high: 1, ticks: [], from, to, foot });
  positions.forEach((position) => vertical(chart, "tick", x(position), bottom, bottom + 4));
  const mark = positions[firstIndex()];
  shape(chart, "path", "mark", { d: `M${x(mark)} 2l5 9h-10z` });
  const [anchor, shift] = x(mark) + 140 > right ? ["end", -9] : ["start", 9];
  write(chart, x(mark) + shift, 11, `${markWord()} ${fixed(mark)}`, anchor).setAttribute("class", "mark");
}

function showReturns() {
  const { dial, hold, logged } = known.tuning;
  const levels = [logged.return, ...(hold ? [hold.return] : [])];
  const all = [...dial.flatMap((row) => [row.low, row.high, row.return, row.lower_bound]), ...levels];
  const { low, high } = padded(all);
  const chart = byId("returns");
  const box = overPositions(chart, { low, high, ticks: roundTicks(low, high) });
  const { x, y } = box, at = (i) => x(dial[i].position);
  band(chart, "imagined band", dial.map((row) => row.low), dial.map((row) => row.high), at, y);
  rule(chart, box, "logged level", logged.return);
  if (hold) rule(chart, box, "hold level", hold.return);
  shape(chart, "path", "imagined dashes", { d: trace(dial.map((row) => row.lower_bound), at, y) });
  shape(chart, "path", "imagined line", { d: trace(dial.map((row) => row.return), at, y) });
  shape(chart, "circle", "imagined dot", { cx: at(known.index), cy: y(here().return), r: 4 });
}

function showOverPositions(id, name, say) {
  const { dial } = known.tuning;
  const values = dial.map((row) => row[name]);
  const [, most] = extent(values);
  const high = most > 0 ? most : 1;
  const { x, y } = overPositions(byId(id), { low: 0, high: high * 1.08, ticks: [0, high], say });
  const at = (i) => x(dial[i].position);
  shape(byId(id), "path", "imagined line", { d: trace(values, at, y) });
  shape(byId(id), "circle", "imagined dot", { cx: at(known.index), cy: y(values[known.index]), r: 3 });
}

// A chart over the positions, on which the mark and the slider are drawn.
function overPositions(chart, options) {
  const { positions } = known.tuning;
  const box = frame(chart, { from: positions[0], to: positions.at(-1), ...options });
  vertical(chart, "advised", box.x(positions[firstIndex()]), box.top, box.bottom + 4);
  vertical(chart, "cursor", box.x(here().position), 0, box.bottom + 4);
  return box;
}

function roundTicks(low, high) {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

function band(chart, kind, lows, highs, x, y) {
  const back = lows.map((value, i) => `L${x(i).toFixed(1)} ${y(value).toFixed(1)}`).reverse();
  shape(chart, "path", kind, { d: `${trace(highs, x, y)}${back.join("")}Z` });
}

function showNumbers(row) {
  const { hold, logged } = known.tuning;
  const bounds = Object.entries(row.at_bounds).sort(([, a], [, b]) => b - a);
  const rows = [
    ["Imagined return", tidy(row.return), `${tidy(row.low)} to ${tidy(row.high)}, by model`, "is-main"],
    ["Lower bound", tidy(row.lower_bound), "", "is-main"],
    ["The log itself", tidy(logged.return), `episodes from ${tidy(logged.worst)} to ${tidy(logged.best)}`],
    ["Never changing anything", hold ? tidy(hold.return) : "–",
      hold ? `lower bound ${tidy(hold.lower_bound)}` : "no action of this task does that"],
    ["New to the log", share(row.new), "of the situations: newer than 99 % of the log's own"],
    ["Distance from the log", tidy(row.apart), "beyond what is usual in it"],
    ["Novelty", tidy(row.novelty["0.5"]),
      `80 % from ${tidy(row.novelty["0.1"])} to ${tidy(row.novelty["0.9"])}; 1: newer than all of the log`],
    ["Distance from its actions", tidy(row.from_behaviour), "mean square, from the cloned behaviour"],
    ["Actions at bounds", bounds.length ? share(bounds[0][1]) : "–",
      bounds.length && bounds[0][1] > 0 ? `of the steps: ${bounds[0][0]}, the most of all` : "of the steps"],
  ];
  byId("numbers").querySelector("dl").replaceChildren(...rows.map(([name, value, note, kind = ""]) => {
    const line = element("div", kind);
    const title = element("dt", "", name);
    if (note) title.append(element("small", "", note));
    line.append(title, element("dd", "", value));
    return line;
  }));
}

function showCurves(kind) {
  const { dial, logged } = known.tuning;
  const bounds = new Map(known.manifest.task.actions.map(({ name, low, high }) => [name, [low, high]]));
  Object.keys(dial[0][kind]).forEach((name, i) => {
    const box = byId(kind).children[i], chart = box.querySelector("svg");
    const [imagined, past] = [here()[kind][name], logged[kind]?.[name]];
    const limits = kind === "actions" ? bounds.get(name) ?? [] : [];
    const told = extent([...known.extents[kind][i], ...limits]);
    const last = imagined[1].length - 1;
    const foot = [[0, "0"], [last, `step ${last}`]];
    // The scale is that of all positions, so that what moves is the plant and not the axis.
    const place = frame(chart, { ...padded(told), ticks: [...limits, ...told], to: Math.max(last, 1), foot });
    limits.forEach((limit) => rule(chart, place, "limit", limit));
    for (const [curves, whose] of [[past, "logged"], [imagined, "imagined"]]) {
      if (!curves) continue;
      band(chart, `${whose} band`, curves[0], curves[2], place.x, place.y);
      shape(chart, "path", `${whose} line`, { d: trace(curves[1], place.x, place.y) });
    }
    const atBounds = here().at_bounds[name];
    box.querySelector(".value").textContent = kind === "signals" ? `ends at ${tidy(imagined[1][last])}`
      : isKnown(atBounds) ? `at bounds ${share(atBounds)}` : "";
  });
}

// -------------------------------------------------------------------------------- what to take along

function chosenFile() {
  const form = byId("take").elements.form.value, { position } = here();
  const isTurnable = form !== "moose" && byId("turnable").checked;
  return { form, position, isTurnable, name: `policy-${fixed(position)}${isTurnable ? "-dial" : ""}.${form}` };
}

function showTake() {
  const { form, position, isTurnable, name } = chosenFile();
  byId("taken").textContent = `the policy at λ = ${fixed(position)}`;
  byId("turnable").disabled = form === "moose";
  const turning = isTurnable ? ` λ is an input, ${fixed(position)} at first.` : "";
  byId("form-note").textContent = FORM_NOTES[form] + turning;
  byId("download").textContent = `Download ${name}`;
  byId("command").textContent = ["moose export", known.tuning.run, `--position ${tidy(position)}`,
    ...(form === "moose" ? [] : [`--format ${form}`]), ...(isTurnable ? ["--dial"] : []), `--out ${name}`].join(" ");
}

async function download() {
  const { form, position, isTurnable, name } = chosenFile();
  const query = new URLSearchParams({ position, form, turnable: isTurnable });
  byId("download").disabled = true;
  byId("outcome").textContent = "checking and writing it …";
  try {
    const content = await ask(`/dial/policy?${query}`, { patience: PATIENCE, read: (answer) => answer.blob() });
    const link = element("a");
    link.href = URL.createObjectURL(content);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    byId("outcome").textContent = `${name}: ${content.size.toLocaleString("en")} bytes`;
  } catch (error) {
    if (!(error instanceof Unanswered)) throw error;
    const { what, advice } = error.told ?? { what: "The service does not answer.", advice: "try again" };
    byId("outcome").textContent = `${what} ${sentence(advice)}.`;
  } finally {
    byId("download").disabled = false;
  }
}

async function copyCommand() {
  try {
    await navigator.clipboard.writeText(byId("command").textContent);
    byId("copy").textContent = "Copied";
  } catch (error) {  // no clipboard, or none for this page: a person can do it
    getSelection().selectAllChildren(byId("command"));
    byId("copy").textContent = "Selected";
  }
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 2000);
}

// ------------------------------------------------------------------------------ what a person does

function choose(index) {
  turnTo(index);
  keepInAddress();
}

byId("position").addEventListener("input", (event) => turnTo(nearest(Number(event.target.value))));
byId("position").addEventListener("change", keepInAddress);
byId("advised").addEventListener("click", () => choose(firstIndex()));
for (const chart of document.querySelectorAll(".over")) {
  chart.addEventListener("click", (event) => {
    const { positions } = known.tuning;
    choose(nearest(positions[0] + shareAt(chart, event) * (positions.at(-1) - positions[0])));
  });
}
byId("forms").addEventListener("change", showTake);
byId("take").addEventListener("submit", (event) => {
  event.preventDefault();
  download();
});
byId("copy").addEventListener("click", copyCommand);
addEventListener("resize", () => known.tuning && show());
addEventListener("hashchange", () => {
  if (known.tuning) turnTo(indexInAddress() ?? firstIndex());
  else begin();
});

carryToken(byId("to-controller"));
begin();
