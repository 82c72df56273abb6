// Shows the latest steps of one plant.
import { Unanswered, ask, carryToken, needsToken, option } from "/asking.js";
import {
  byId, card, element, extent, frame, isKnown, nameOf, padded, rule, shape, shareAt, svg, tidy, trace, vertical,
} from "/drawing.js";

const PERIOD = 500;            // milliseconds between questions
const QUIET = 10;              // seconds without a step that are worth a word
const LOG_ROWS = 50;
const SOURCES = {
  policy: "The policy acts",
  blend: "Policy and fallback are blended",
  fallback: "The fallback acts",
};
const REASONS = {
  "sensor-held": "a missing sensor was replaced by its last value",
  "sensor-lost": "a sensor has been missing for too long",
  "novelty": "the situation is unlike the training data",
  "policy-failed": "the policy's answer was not a number",
  "fallback-failed": "the fallback gave no action",
  "bounds": "an action was brought within its limits",
  "rate": "an action was kept from changing too fast",
};

// What is known: the manifest of the policy, the last answer of /live, and the steps gathered from
// all answers so far. The cursor is the step under the pointer, in all charts at once.
const known = {
  manifest: null, live: null, points: [], cursor: null, session: option("session"), generation: 0,
};

async function refresh() {
  const { generation } = known;
  const last = known.points.at(-1)?.step ?? -1;
  const live = await ask(`/live?session=${encodeURIComponent(chosen())}&after=${last}`);
  if (live.started !== known.live?.started) {
    // Another service than before, maybe with another policy: nothing of the old one holds.
    known.manifest = await ask("/policy");
    known.live = live;
    forget();
    layOut();
    return refresh();
  }
  if (generation !== known.generation) return;  // another plant was chosen, or another answer was first
  known.generation += 1;
  known.live = live;
  known.points = known.points.concat(live.points).slice(-live.points_kept);
  const busy = Object.keys(live.sessions).find((name) => live.sessions[name].steps);
  if (known.session === null && !known.points.length && busy) return choose(busy);
  show();
}

const chosen = () => known.session ?? "plant";

function choose(session) {
  known.session = session;
  forget();
  return refresh();
}

function forget() {
  known.points = [];
  known.cursor = null;
  known.generation += 1;
}

let goneSince = null;

async function forever() {
  try {
    await refresh();
    goneSince = null;
  } catch (error) {
    complain(error);
  } finally {
    setTimeout(forever, PERIOD);
  }
}

function complain(error) {
  if (!(error instanceof Unanswered)) throw error;  // a mistake in this script: let the console tell
  if (error.status === 401) {
    notify("gone", "refused", needsToken("/"));
  } else if (error.status !== null) {
    notify("gone", "refused", `The service refuses to tell (status ${error.status}). ` +
      "Look at what moose serve has printed.");
  } else {
    goneSince ??= new Date();
    notify("gone", "no answer", `The service has not answered since ${goneSince.toLocaleTimeString()}. ` +
      "What is below is the last that it told, not what the plant does now. See whether moose serve is " +
      "still running; this page goes on asking.");
  }
}

function notify(state, word, text) {
  byId("link").dataset.state = state;
  byId("link").textContent = word;
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
  byId("data").classList.toggle("is-stale", state === "gone");
}

// ---------------------------------------------------------------- what depends on the policy only

function layOut() {
  const { task } = known.manifest;
  byId("policy").textContent = nameOf(known.manifest);
  document.title = `${task.name}: moose controller`;
  byId("signals").replaceChildren(...task.observations.map(card));
  byId("actions").replaceChildren(...task.actions.map(card));
  byId("novelty").replaceChildren(svg("chart"));
  showExample();
}

function showExample() {
  const { task } = known.manifest;
  const middle = task.observations.map(({ name }) => {
    const { minimum, maximum } = known.manifest.scaling[name];
    return Number(((minimum + maximum) / 2).toPrecision(3));
  });
  byId("example").textContent = `curl -s ${location.origin}/act -H 'Content-Type: application/json' \\\n` +
    (option("token") ? "  -H 'Authorization: Bearer …' \\\n" : "") +
    `  -d '${JSON.stringify({ session: chosen(), observation: middle })}'\n\n` +
    `# ${task.observations.map(({ name, unit }) => (unit ? `${name} in ${unit}` : name)).join(", ")}`;
}

// ------------------------------------------------------------------------ what a new step changes

function show() {
  const { live, points } = known;
  listSessions();
  byId("to-dial").hidden = !live.has_tuning;
  const idle = live.sessions[chosen()]?.idle_seconds ?? null;
  if (!points.length) notify("waiting", "waiting", "");
  else if (idle > QUIET) notify("idle", `quiet for ${Math.round(idle)} s`, "");
  else notify("live", "live", "");
  byId("empty").hidden = points.length > 0;
  byId("data").hidden = points.length === 0;
  if (points.length) draw(); else showExample();
}

function listSessions() {
  const select = byId("session");
  const labels = Object.entries(known.live.sessions).map(([name, { source }]) =>
    [name, source === null ? `${name} (no step yet)` : source === "policy" ? name : `${name} (${source})`]);
  if (!(chosen() in known.live.sessions)) labels.push([chosen(), `${chosen()} (no step yet)`]);
  const before = [...select.options].map((each) => [each.value, each.text]);
  if (JSON.stringify(before) !== JSON.stringify(labels)) {
    select.replaceChildren(...labels.map(([name, text]) => new Option(text, name)));
  }
  select.value = chosen();
}

function draw() {
  const { points, manifest: { task, scaling } } = known;
  const now = points.at(points.findIndex((point) => point.step === known.cursor));  // or the newest
  showGuard(now);
  showNovelty();
  task.actions.forEach(({ name, low, high }, i) => {
    const values = points.map((point) => point.action[name]);
    showCard(byId("actions").children[i], values, now.action[name], { limits: [low, high] });
  });
  task.observations.forEach(({ name }, i) => {
    const values = points.map((point) => point.observation[i]);
    const { minimum, maximum } = scaling[name];
    showCard(byId("signals").children[i], values, now.observation[i], { range: [minimum, maximum] });
  });
  showLog();
}

function showGuard(now) {
  const state = byId("state");
  state.dataset.source = now.source;
  byId("source").textContent = SOURCES[now.source];
  const why = now.interventions.map(({ reason, detail }) => `${reason} (${detail})`).join("; ");
  const place = known.cursor === null ? "" : "under the pointer, ";
  byId("reasons").textContent = `${place}step ${now.step}: ${why || "no intervention"}`;
  const { points, live } = known;
  const seen = Object.keys(REASONS).filter((reason) => live.counts[reason]);
  const rows = [timelineRow("who acts", "", points.map((point) => ["who", point.source])),
    ...seen.map((reason) => timelineRow(
      reason, String(live.counts[reason]), points.map(({ interventions }) =>
        interventions.some((each) => each.reason === reason) ? ["tick", null] : null), REASONS[reason]))];
  const legend = element("div", "legend");
  legend.append(...Object.keys(SOURCES).map((source) => {
    const item = element("span", "", source);
    item.dataset.source = source;
    item.prepend(element("i"));
    return item;
  }), element("span", "axis", `steps ${points[0].step} to ${points.at(-1).step}; at the right: how often in all`));
  byId("timeline").replaceChildren(...rows.flat(), legend);
}

function timelineRow(name, count, marks, title = "") {
  const label = element("span", "label", name);
  label.title = title;
  const strip = svg("strip");
  strip.setAttribute("viewBox", `0 0 ${marks.length} 1`);
  strip.setAttribute("preserveAspectRatio", "none");
  // Equal neighbours become one piece.
  for (let from = 0, to; from < marks.length; from = to) {
    to = from + 1;
    while (to < marks.length && String(marks[to]) === String(marks[from])) to += 1;
    if (marks[from] === null) continue;
    const piece = shape(strip, "rect", marks[from][0], { x: from, y: 0, width: to - from, height: 1 });
    if (marks[from][1]) piece.dataset.source = marks[from][1];
  }
  return [label, strip, element("span", "count", count)];
}

function showNovelty() {
  const { live, points } = known;
  const values = points.map((point) => point.novelty);
  const place = byId("novelty");
  if (live.settings.novelty_limit === null) {
    place.textContent = live.has_novelty
      ? "Not watched. Start the service with --set novelty_limit=1 to let the fallback act in situations " +
        "that are more unusual than all of the training data."
      : "This policy has no support model, so that nobody can tell what is new to it.";
    return;
  }
  // Quantiles up to 1, then multiples of the most unusual data, ten times as much a step.
  const scale = (value) => (value <= 1 ? value : 1 + Math.log10(value));
  const lines = [[live.settings.novelty_limit, "limit"], [live.novelty_release, "release"]];
  const top = Math.max(1, ...values.filter(isKnown), live.settings.novelty_limit) * 1.1;
  const ticks = [0, 0.5, 1, 10, 100, 1000, 1e4, 1e5, 1e6].filter((tick) => scale(tick) <= scale(top));
  plot(place.firstChild, values, { scale, low: 0, high: top, lines, ticks });
}

function showCard(box, values, now, { limits, range }) {
  const value = box.querySelector(".value");
  value.textContent = isKnown(now) ? tidy(now) : "missing";
  value.classList.toggle("is-missing", !isKnown(now));
  const told = limits ?? range;
  const inside = [...values.filter(isKnown), ...told];
  const ticks = [...told, ...extent(inside)];
  const lines = (limits ?? []).map((limit) => [limit, ""]);
  plot(box.querySelector("svg"), values, { ...padded(inside), lines, range, ticks });
}

function showLog() {
  const rows = [];  // the newest first; the same thing in steps that follow each other is one row
  for (const { step, interventions } of known.points.toReversed()) {
    for (const { reason, detail } of interventions) {
      const row = rows.find((each) => each.from === step + 1 && each.reason === reason && each.detail === detail);
      if (row) row.from = step; else rows.push({ from: step, to: step, reason, detail });
    }
  }
  byId("log-range").textContent = rows.length > LOG_ROWS
    ? `the latest ${LOG_ROWS} of ${rows.length} in the steps shown`
    : rows.length ? "in the steps shown" : "none in the steps shown";
  byId("log").hidden = !rows.length;
  byId("log").tBodies[0].replaceChildren(...rows.slice(0, LOG_ROWS).map(({ from, to, reason, detail }) => {
    const row = element("tr");
    row.append(element("td", "", from === to ? String(to) : `${from} to ${to}`),
      element("td", "", `${reason}: ${REASONS[reason]}`), element("td", "", detail));
    return row;
  }));
}

// ------------------------------------------------------------------------------------- one chart

function plot(chart, values, { low, high, lines, range, ticks, scale }) {
  const { points, cursor } = known;
  const box = frame(chart, { low, high, ticks, scale, to: Math.max(points.length - 1, 1) });
  const { x, y, left, right, top, bottom, height } = box;
  if (range) {
    const [from, to] = [y(range[1]), y(range[0])];
    shape(chart, "rect", "range", { x: left, y: from - 1, width: right - left, height: to - from + 2 });
  }
  lines.forEach(([value, name]) => rule(chart, box, "limit", value, name));
  points.forEach((point, i) => {
    if (point.is_first && i) vertical(chart, "start", x(i), top, bottom + 4);
    if (!isKnown(values[i])) vertical(chart, "missing", x(i), bottom + 4, height - 3);
    if (point.step === cursor) vertical(chart, "cursor", x(i), 0, height);
  });
  shape(chart, "path", "line", { d: trace(values, x, y, (i) => points[i].is_first) });
  const marked = points.findIndex((point) => point.step === cursor);
  const at = marked < 0 ? values.length - 1 : marked;
  if (isKnown(values[at])) shape(chart, "circle", "dot", { cx: x(at), cy: y(values[at]), r: 3 });
}

// ------------------------------------------------------------------------------ what a person does

byId("session").addEventListener("change", (event) => {
  choose(event.target.value).catch(complain);
});
document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.(".chart");
  if (!chart || !known.points.length) return setCursor(null);
  setCursor(known.points[Math.round(shareAt(chart, event) * (known.points.length - 1))].step);
});
document.documentElement.addEventListener("pointerleave", () => setCursor(null));
addEventListener("resize", () => known.points.length && draw());

function setCursor(step) {
  if (step === known.cursor) return;
  known.cursor = step;
  if (known.points.length) draw();
}

carryToken(byId("to-dial"));
forever();
