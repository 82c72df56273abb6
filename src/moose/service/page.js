"use strict";
// Shows the latest steps of one plant; asks this server and nobody else.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D"];
const STATES = { policy: "#009E73", blend: "#E69F00", fallback: "#D55E00" };
const byId = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");

function draw(id, names, series, limit) {
  const canvas = byId(id), context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  context.font = "12px sans-serif";
  names.forEach((name, i) => {
    const values = series[i];
    const known = values.filter((value) => value !== null).concat(limit ?? []);
    if (!known.length) return;
    // Every signal has its own scale, which its label tells.
    const low = Math.min(...known), high = Math.max(...known), span = high - low || 1;
    const y = (value) => height - 8 - ((value - low) / span) * (height - 30);
    context.strokeStyle = context.fillStyle = COLOURS[i % COLOURS.length];
    context.beginPath();
    let isPenDown = false;
    values.forEach((value, t) => {
      if (value === null) { isPenDown = false; return; }
      const x = (t / Math.max(values.length - 1, 1)) * (width - 10) + 5;
      if (isPenDown) context.lineTo(x, y(value)); else context.moveTo(x, y(value));
      isPenDown = true;
    });
    context.stroke();
    context.fillText(`${name} ${low.toPrecision(3)} to ${high.toPrecision(3)}`, 5 + i * 150, 14);
    if (limit !== undefined) context.fillRect(0, y(limit), width, 1);
  });
}

async function refresh() {
  const select = byId("session");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`/live?session=${encodeURIComponent(select.value || "plant")}`, { headers });
  if (!answer.ok) { byId("state").textContent = `refused (${answer.status})`; return; }
  const live = await answer.json();
  live.sessions.filter((name) => ![...select.options].some((o) => o.value === name))
    .forEach((name) => select.add(new Option(name, name)));
  const points = live.points, last = points[points.length - 1];
  draw("signals", live.observations, live.observations.map((_, i) => points.map((p) => p.observation[i])));
  draw("actions", live.actions, live.actions.map((name) => points.map((p) => p.action[name])));
  draw("novelty", ["novelty"], [points.map((p) => p.novelty)], live.novelty_limit ?? undefined);
  byId("state").textContent = last ? `${last.source}, step ${last.step}` : "waiting";
  byId("state").style.background = last ? STATES[last.source] : "#777";
  byId("counts").textContent = Object.entries(live.counts).map(([k, v]) => `${k} ${v}`).join(", ");
}

async function forever() {
  try { await refresh(); } catch (error) { byId("state").textContent = "no answer"; }
  setTimeout(forever, 500);
}
forever();
