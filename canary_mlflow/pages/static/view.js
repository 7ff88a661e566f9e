"use strict";
// What somebody chose to see of a session's charts. It stands in the address, so that it can be sent to somebody.

// A hash without "=" is the name of a part of the page.
function state() {
  return new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
}

function seen(key) {
  return (state().get(key) || "").split(",").filter(Boolean);
}

function remember(key, value) {
  const now = state();
  if (value) now.set(key, value); else now.delete(key);
  history.replaceState(null, "", `${location.pathname}${location.search}${String(now) ? `#${now}` : ""}`);
}

const SCALES = ["linear", "log"], ACROSS = ["time", "tokens"];
const view = { zoom: null, smooth: 0, scale: "", across: "" };

function readView() {
  const zoom = seen("zoom").map(Number), smooth = Number(state().get("smooth"));
  view.zoom = zoom.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1] ? zoom : null;
  view.smooth = smooth > 0 && smooth < 1 ? smooth : 0;
  view.scale = SCALES.includes(state().get("scale")) ? state().get("scale") : "";
  view.across = ACROSS.includes(state().get("across")) ? state().get("across") : "";
}

readView();
addEventListener("hashchange", () => { if (location.hash.includes("=")) location.reload(); });  // pasted over this one

// What is unfolded stands in the address too; the name of a part there opens it.
const folds = [...document.querySelectorAll("details.fold")], foldOf = (id) => folds.find((one) => one.querySelector("h2").id === id);
const usual = new Set(folds.filter((one) => one.open));

for (const id of [...seen("open"), location.hash.slice(1)]) if (foldOf(id)) foldOf(id).open = true;
for (const fold of folds) {
  fold.addEventListener("toggle", () => {
    remember("open", folds.filter((one) => one.open && !usual.has(one)).map((one) => one.querySelector("h2").id).join(","));
    if (!fold.open) return;
    redraw();  // a chart that was folded had no width
    dispatchEvent(new Event("resize"));
  });
}

// To a part of the page, without losing what the address keeps.
for (const link of document.querySelectorAll(".jump a")) {
  link.addEventListener("click", (event) => {
    const part = document.getElementById(link.hash.slice(1));
    event.preventDefault();
    if (foldOf(part.id)) foldOf(part.id).open = true;
    part.tabIndex = -1;
    part.focus();
    part.scrollIntoView();
  });
}

// ---- other axes than steps ----------------------------------------------------------------------------------------

// Where on the axis each step lies, by a run's clock; null where the clock does not know. Beyond its end it goes on as
// it went.
function along(clock, steps) {
  if (!view.across) return steps;
  const values = clock && (view.across === "time" ? clock.seconds : clock.tokens);
  return values ? interpolated(clock.steps, values, steps) : null;
}

// The steps between two places on the axis, of whichever run; null where no clock knows.
function stepsBetween(clocks, [low, high]) {
  if (!view.across) return [low, high];
  const known = clocks.map((clock) => [clock, view.across === "time" ? clock.seconds : clock.tokens]).filter((one) => one[1]);
  if (!known.length) return null;
  const ends = known.map(([clock, values]) => interpolated(values, clock.steps, [low, high]));
  return [Math.min(...ends.map((one) => one[0])), Math.max(...ends.map((one) => one[1]))];
}

function interpolated(from, to, wanted) {
  const last = from.length - 1;
  let at = 0;
  return wanted.map((x) => {
    if (last < 1) return to[0];
    while (at > 0 && from[at] > x) at -= 1;
    while (at < last - 1 && from[at + 1] < x) at += 1;
    const slope = (to[at + 1] - to[at]) / (from[at + 1] - from[at] || 1);
    return Math.max(to[0], to[at] + (x - from[at]) * slope);
  });
}

function spelled(x) {
  if (view.across !== "time") return short(x);
  if (x < 120) return `${short(x)} s`;
  return x < 7200 ? `${short(x / 60)} min` : `${short(x / 3600)} h`;
}

// An average over the rows before, each worth `weight` of the next; the first rows are not drawn towards 0.
function smoothed(values, weight) {
  let sum = 0, all = 0;
  return values.map((value) => {
    sum = sum * weight + (1 - weight) * value;
    all = all * weight + (1 - weight);
    return sum / all;
  });
}
