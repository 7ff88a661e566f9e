"use strict";
// Two jobs: take over what changed of the page's parts, and draw the curves. Everything it shows comes as text.

const every = Number(document.body.dataset.every || 0);
const status = document.getElementById("link");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const going = () => document.body.dataset.while !== "running" || document.querySelector("#status[data-running]") !== null;

// ---- the page's parts -------------------------------------------------------------------------------------------

async function refreshParts() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(String(answer.status));
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-part]")) {
    const found = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!found) continue;
    if (part.innerHTML !== found.innerHTML) {
      if (part.contains(document.activeElement) && document.activeElement !== part) continue;  // being read
      const scrolled = part.querySelector(".scroll")?.scrollLeft || 0;
      part.replaceChildren(...found.childNodes);
      if (scrolled) part.querySelector(".scroll").scrollLeft = scrolled;
    }
    part.toggleAttribute("data-running", found.hasAttribute("data-running"));
  }
  keepBanners(fresh);
}

// A banner that has been shown stays, also when the run's tag has room for more serious ones only.
function keepBanners(fresh) {
  const place = document.querySelector("[data-banners]");
  const there = new Set([...document.querySelectorAll("[data-banners] > [data-key]")].map((one) => one.dataset.key));
  for (const one of fresh.querySelectorAll("[data-banners] > [data-key]")) {
    if (!there.has(one.dataset.key)) place.append(one);
  }
}

const RARELY = 5;  // refreshes of the curves for one of the parts beside them, which cost the server twice as much

async function forever() {
  for (let turn = 1; every && going(); turn += 1) {
    await new Promise((done) => setTimeout(done, every));
    if (document.hidden) continue;
    try {
      const news = (await Promise.all(charts.map((one) => one.refresh()))).some(Boolean);
      if (news || !charts.length || turn % RARELY === 0) await refreshParts();
      status.textContent = "";
    } catch (error) {
      status.textContent = "The server does not answer; what stands here is what it said last.";
    }
  }
}

// ---- curves -----------------------------------------------------------------------------------------------------

const ROOM = 4000;  // points of one curve here before all of them are asked for again, thinned out by the server
const FEW = "A few points of each long curve; the rest is being read.";
const charts = [];

class Curves {
  constructor(place) {
    this.place = place;
    this.lines = {};
    this.around = {};
    this.band = null;  // until it has come: a busy database may refuse it once
    this.warnings = [];
    this.away = {};  // by series: how far it went from the champion's runs, and where it left their band
    this.next = null;
    this.wasRunning = true;
    this.figures = [...place.querySelectorAll("figure")].map((one) => new Figure(one, this));
  }

  // Long curves in few points first: reading all of them for the first time takes the server a while.
  async start() {
    await this.refresh("&rough=1");
    this.next = null;
    await this.refresh();
    status.textContent = "";
  }

  async fetchBand() {
    try {
      const found = await json(this.place.dataset.band);
      this.band = found.waits ? null : found.series;
      this.draw();
    } catch (error) {
      this.band = null;
    }
  }

  // Whether there is news for the rest of the page: another warning, or the end.
  async refresh(which = "") {
    const after = this.next === null ? which : `&after=${this.next}`;
    const found = await json(this.place.dataset.curves + after);
    if (found.whole) {
      this.lines = found.series;
      this.around = found.spreads;
    } else {
      for (const [name, line] of Object.entries(found.series)) merge(this.lines, name, line, ["values"]);
      for (const [name, band] of Object.entries(found.spreads)) merge(this.around, name, band, ["low", "high"]);
    }
    const news = JSON.stringify(found.warnings) !== JSON.stringify(this.warnings) || found.running !== this.wasRunning;
    this.warnings = found.warnings;
    const full = Object.values(this.lines).some((one) => one.steps.length > ROOM || (!found.whole && one.broken));
    const ended = this.wasRunning && !found.running && !found.whole;  // what came late belongs to it too
    this.wasRunning = found.running;
    this.next = found.next;
    if (full || ended) {
      this.next = null;
      return (await this.refresh()) || news;
    }
    this.away = found.whole ? found.away : farther(this.away, found.away);
    this.draw();
    tick(new URL(this.place.dataset.curves, location.href).searchParams.get("id"), this.lines);
    this.sayGone();
    if (found.rough) status.textContent = FEW;
    if (this.band === null && !which) await this.fetchBand();
    return news;
  }

  draw() {
    for (const figure of this.figures) figure.draw();
  }

  // Which charts left the champion's band, the first to leave first.
  sayGone() {
    const gone = this.figures.map((one) => ({ title: one.caption, ...this.away[one.names[0]] })).filter((one) => Number.isInteger(one.step));
    gone.sort(byHarm);
    const said = gone.map((one) => `${one.title} at step ${one.step} (${now(one)})`);
    say(said.length ? `Out of the champion's band: ${said.join("; ")}.` : "");
  }
}

// The first to leave first; before those that are back, or better now.
const over = (one) => one.now === "better" || one.now === "inside";
const byHarm = (one, other) => Number(over(one)) - Number(over(other)) || one.step - other.step || other.far - one.far;

// Where a curve that left the band is now: it may have crossed it since.
const now = (gone) => (gone.now === "inside" ? "inside again" : gone.now === "not a number" ? gone.now : `now ${gone.now}`);

// The page's header has the clock of its charts.
function tick(id, lines) {
  const place = document.querySelector(`[data-step="${id}"]`), bar = place?.closest("li, p").querySelector("progress");
  const step = Math.max(...Object.values(lines).map((line) => (line.steps.length ? end(line) : 0)), bar?.value || 0);
  if (place) place.textContent = step.toLocaleString("en");
  if (bar) bar.value = step;
}

function say(text) {
  const place = document.getElementById("gone");
  if (place.textContent !== text) place.textContent = text;
}

// Of a stretch: the farthest so far, the first step at which it left, and where it is now.
function farther(before, now) {
  const found = { ...before };
  for (const [name, one] of Object.entries(now)) {
    const old = found[name];
    if (!old) { found[name] = one; continue; }
    const first = (was, is) => (was === null ? is : is === null ? was : Math.min(was, is));
    found[name] = { far: Math.max(old.far, one.far), step: first(old.step, one.step), ahead: first(old.ahead, one.ahead), now: one.now };
  }
  return found;
}

// The values of later steps behind, or in the place of, those that are there.
function merge(all, name, fresh, fields) {
  const old = all[name];
  if (!old) { all[name] = fresh; return; }
  if (!fresh.steps.length) { if (fresh.broken) old.broken = fresh.broken; return; }
  let keep = old.steps.length;
  while (keep > 0 && old.steps[keep - 1] >= fresh.steps[0]) keep -= 1;
  old.steps = old.steps.slice(0, keep).concat(fresh.steps);
  for (const field of fields) old[field] = old[field].slice(0, keep).concat(fresh[field]);
  if (fresh.broken) old.broken = fresh.broken;
}

async function json(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

class Figure {
  constructor(figure, curves) {
    this.figure = figure;
    this.curves = curves;
    this.plot = figure.querySelector(".plot");
    this.note = figure.querySelector(".note");
    this.names = figure.dataset.lines.split(" ");
    this.marked = figure.dataset.marked.split(" ");
    this.target = figure.dataset.target === undefined ? null : Number(figure.dataset.target);
    this.log = figure.dataset.log !== undefined;
    const caption = figure.querySelector("figcaption");
    this.title = caption.textContent.trim().replace(/\s+/g, " ");
    this.caption = caption.firstChild.textContent.trim();  // without unit and target
    this.chart = null;
    this.shape = "";
    walkable(this.plot, () => this.chart, (x) => this.curves.stepped?.(x));
  }

  // Which series there are decides how the chart is made; their values alone change while it stays.
  draw() {
    const { lines, around, band } = this.curves;
    const names = this.names.filter((name) => lines[name]);
    this.figure.hidden = !names.length;
    if (!names.length) return;
    const said = names.map((name) => lines[name].said).filter(Boolean), gone = this.curves.away[this.names[0]];
    if (gone && gone.step !== null) said.unshift(`Left the band at step ${gone.step}, ${now(gone)}.`);
    else if (gone && gone.ahead !== null) said.unshift(`Better than the band from step ${gone.ahead} on, ${now(gone)}.`);
    this.note.textContent = said.join(" ");
    const drawn = names.filter((name) => lines[name].steps.length);
    this.plot.hidden = !drawn.length;
    if (!drawn.length) return;
    const last = Math.max(...drawn.map((name) => end(lines[name])));
    this.last = last;
    const first = Math.min(...drawn.map((name) => lines[name].steps[0]));
    const own = names[0] === this.names[0] ? names[0] : null;
    const champion = own && band && band[own] ? upTo(band[own], last) : null;
    const spread = own && this.figure.dataset.spread !== undefined ? around[own] : null;
    const tables = [], series = [{ label: "step", value: (u, step) => String(step ?? this.last) }], bands = [];
    if (champion && champion.steps.length) this.edges(champion, "--champion", tables, series, bands, 1, "champion");
    if (spread && spread.steps.length) this.edges(spread, "--around", tables, series, bands);
    this.now = Object.fromEntries(drawn.map((name) => [name, latest(lines[name])]));  // until the cursor asks
    drawn.forEach((name, at) => {
      const { steps, values } = lines[name];
      tables.push([steps, values.map(this.visible, this)]);
      series.push({
        label: name, stroke: colour(["--curve", "--curve-2", "--curve-3"][at]), width: 1.5, spanGaps: true,
        points: { show: steps.length < 40, size: 5 }, value: (u, value, at, index) => (value != null ? short(value) : index == null ? short(this.now[name]) : "–"),
      });
    });
    const log = this.log && drawn.some((name) => lines[name].values.some((value) => value > 0));
    const broken = drawn.flatMap((name) => lines[name].broken || []);
    const described = [drawn[0], lines[drawn[0]]];
    this.show({ tables, series, bands, ends: [first, last], log, warnings: this.curves.warnings, broken, described, zoomed: this.zoomed });
    if (this.zoomed) this.chart.redraw();
  }

  // The chart with what all have: a target, warnings and values that are no numbers. It is made anew if its lines or
  // scales are others.
  show({ tables, series, bands, ends, log, warnings, broken, described, zoomed }) {
    if (this.target !== null) {
      tables.push([ends, [this.target, this.target]]);
      series.push({ label: "target", stroke: colour("--good"), width: 1.5, dash: [6, 4], spanGaps: true, points: { show: false }, value: () => short(this.target) });
    }
    this.warnings = warnings.filter((one) => this.marked.includes(one.stream));
    this.broken = broken;
    this.figure.classList.toggle("warned", this.warnings.some((one) => one.level !== "WARN"));
    this.describe(...described);
    const data = joined(tables, [...broken, ...this.warnings.map((one) => one.step)]);
    const options = this.options(series, bands, log), shape = JSON.stringify([series.map((one) => [one.label, one.stroke, one.points?.show]), log, options.across]);
    if (this.chart && this.shape === shape) {
      this.chart.setData(data, !zoomed);
      return;
    }
    if (this.chart) this.chart.destroy();
    this.shape = shape;
    this.chart = new uPlot(options, data, this.plot);
  }

  // An area from low to high; with a stroke, so that one run alone is a line. `said`: what the legend calls it.
  edges(found, fill, tables, series, bands, width = 0, said = "") {
    tables.push([found.steps, found.high.map(this.visible, this), found.low.map(this.visible, this)]);
    bands.push({ series: [series.length, series.length + 1], fill: colour(fill) });
    for (const label of ["high", "low"]) {
      const shown = said && label === "high" ? { label: said, value: range } : { label, class: "edge" };
      series.push({ ...shown, width, stroke: colour(fill), points: { show: false }, spanGaps: true });
    }
  }

  visible(value) {
    return this.log && !(value > 0) ? null : value;
  }

  options(series, bands, log) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    return {
      width: this.plot.clientWidth || 360, height: 190, series, bands, padding: [14, 22, 0, 0],
      scales: { x: { time: false }, y: log ? { distr: 3, range: (u, low, high) => [low / 1.5, high * 1.5] } : { range: roomy } },
      axes: [{ ...axis, size: 32 }, { ...axis, size: 56, values: (u, ticks) => ticks.map((one) => (one == null ? "" : short(one))) }],
      cursor: { y: false, sync: { key: "steps" }, drag: { x: true, y: false } },
      legend: { live: true },
      hooks: {
        draw: [(u) => this.mark(u)],
        setSelect: [(u) => { this.zoomed = u.select.width > 0 || this.zoomed; }],
        ready: [(u) => u.over.addEventListener("dblclick", () => { this.zoomed = false; })],
      },
    };
  }

  // Warnings as lines with a flag on top, values that are not numbers as crosses at the bottom.
  mark(u) {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    ctx.save();
    for (const warning of this.warnings) {
      const x = Math.round(u.valToPos(warning.step, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(warning.level === "WARN" ? "--open" : "--bad");
      ctx.lineWidth = 1.5 * ratio;
      ctx.setLineDash([4 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(x - 6 * ratio, bbox.top - 10 * ratio);
      ctx.lineTo(x + 6 * ratio, bbox.top - 10 * ratio);
      ctx.lineTo(x, bbox.top);
      ctx.fill();
    }
    ctx.restore();
    crosses(u, this.broken);
  }

  describe(name, line) {
    const warned = this.warnings.map((one) => `${one.level} at step ${one.step}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}: ${name} is ${short(latest(line))} at step ${end(line)}, ` +
      `between ${short(least(line.values))} and ${short(-least(line.values.map((value) => -value)))} so far${warned ? `; ${warned}` : ""}`);
  }
}

// Where a line ends, and its last value: also where that is no number.
const end = (line) => Math.max(line.steps.at(-1), line.broken?.at(-1) ?? 0);
const latest = (line) => (end(line) > line.steps.at(-1) ? NaN : line.values.at(-1));

// The range at the cursor, or at the end: that of the last step before it that has one.
function range(u, high, at, index) {
  let i = index ?? u.data[0].length - 1;
  while (i > 0 && u.data[at][i] == null) i -= 1;
  const [low, most] = [u.data[at + 1][i], u.data[at][i]];
  return most == null ? "–" : low === most ? short(most) : `${short(low)} to ${short(most)}`;
}

// The tables on one axis, which also holds the places of marks where no line has a point.
function joined(tables, marks) {
  const data = uPlot.join(tables), more = [...new Set(marks)].filter((x) => !data[0].includes(x));
  if (!more.length) return data;
  const x = [...data[0], ...more], order = x.map((_, at) => at).sort((a, b) => x[a] - x[b]);
  return data.map((values, at) => order.map((n) => (at ? values[n] : x[n])));
}

// At the bottom, where there is no number.
function crosses(u, places) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour("--bad");
  ctx.lineWidth = 1.5 * ratio;
  for (const place of places) {
    const x = u.valToPos(place, "x", true), y = bbox.top + bbox.height - 5 * ratio, size = 3 * ratio;
    ctx.beginPath();
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y + size);
    ctx.moveTo(x - size, y + size);
    ctx.lineTo(x + size, y - size);
    ctx.stroke();
  }
  ctx.restore();
}

// A tenth of room above and below; a level that hardly moves is not blown up to look like an alarm.
function roomy(u, low, high) {
  if (low == null) return [0, 1];
  const level = Math.max(Math.abs(low), Math.abs(high));
  const room = Math.max((high - low) * 0.1, level * 0.02) || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

const least = (values) => values.reduce((one, other) => Math.min(one, other), Infinity);

function upTo(band, last) {
  const count = band.steps.findIndex((step) => step > last);
  const cut = (values) => (count < 0 ? values : values.slice(0, count));
  return { steps: cut(band.steps), low: cut(band.low), high: cut(band.high) };
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}

// Arrow keys move the cursor of a chart that has the focus; Home and End go to its ends.
function walkable(plot, chart, then = () => {}) {
  plot.addEventListener("keydown", (event) => {
    const u = chart();
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
    if (!u || !(event.key in moves)) return;
    event.preventDefault();
    const count = u.data[0].length;
    const from = u.cursor.idx ?? (moves[event.key] > 0 ? -1 : count);
    const at = Math.max(0, Math.min(count - 1, from + moves[event.key]));
    u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: 10 });
    then(u.data[0][at]);
  });
}

// ---- trends of a model ------------------------------------------------------------------------------------------

class Trends {
  constructor(place) {
    this.place = place;
    this.figures = [...place.querySelectorAll("figure")].map((one) => ({ plot: one.querySelector(".plot"), note: one.querySelector(".note"), name: one.dataset.trend, chart: null, shape: "" }));
    for (const one of this.figures) {
      walkable(one.plot, () => one.chart);
      one.plot.addEventListener("click", () => this.open(one));
      one.plot.addEventListener("keydown", (event) => { if (event.key === "Enter") this.open(one); });
    }
  }

  async start() {
    this.found = await json(this.place.dataset.trends);
    this.draw();
  }

  async refresh() {}

  // The verdict under the cursor.
  open(figure) {
    const at = this.found?.verdicts[figure.chart?.cursor.idx];
    if (at) location.assign(`${this.place.dataset.verdict}?row=${at.row}`);
  }

  say(figure, trend) {
    const at = this.found.verdicts[figure.chart?.cursor.idx];
    if (!at) return;
    const point = trend.points.find((one) => one[0] === at.row);
    const limit = point?.[4] == null ? "" : `, limit ${short(point[4])}`;
    figure.note.textContent = `version ${at.version}, ${at.word}${at.changed ? `, ${at.changed}` : ""}: ${point ? `${short(point[2])} ${trend.unit} (${point[3]}${limit})` : "no number"}`;
  }

  draw() {
    if (!this.found) return;
    for (const figure of this.figures) {
      const trend = this.found.trends.find((one) => one.name === figure.name);
      if (figure.chart) figure.chart.destroy();
      const { verdicts, champions, by_hand: byHand } = this.found;
      const order = verdicts.map((one, at) => at), versions = verdicts.map((one) => one.version);
      const points = new Map(trend.points.map((one) => [one[0], one]));
      const values = verdicts.map((one) => points.get(one.row)?.[2] ?? null);
      const only = (wanted) => values.map((value, at) => (wanted.includes(versions[at]) ? value : null));
      const limits = verdicts.map((one) => points.get(one.row)?.[4] ?? null);
      const without = order.filter((at) => values[at] === null && verdicts[at].word !== "bootstrap");
      const size = order.length > 60 ? 5 : 8;
      const said = (word) => values.map((value, at) => (verdicts[at].word === word ? value : null));
      const dots = (label, ink, fill = "--paper") => ({ label, stroke: colour(ink), width: 0, points: { show: true, size, fill: colour(fill) } });
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      figure.chart = new uPlot({
        width: figure.plot.clientWidth || 360, height: 180, padding: [12, 22, 0, 0],
        scales: { x: { time: false, range: [-0.5, Math.max(0.5, order.length - 0.5)] }, y: { range: roomy } },
        axes: [{ ...axis, size: 32, splits: () => order, values: (u, ticks) => ticks.map((at) => (order.length < 15 || at % Math.ceil(order.length / 12) === 0 ? `v${versions[at]}` : "")) },
          { ...axis, size: 56, values: (u, ticks) => ticks.map((one) => short(one)) }],
        legend: { show: false }, cursor: { drag: { x: false, y: false } },
        hooks: { draw: [(u) => crosses(u, without)], setCursor: [() => this.say(figure, trend)] },
        series: [{ label: "version" },
          { label: figure.name, stroke: colour("--soft"), width: 1, spanGaps: true, points: { show: false } },
          { label: "limit", stroke: colour("--bad"), width: 1, dash: [4, 3], points: { show: order.length === 1 } },
          dots("PASS", "--good"), dots("BLOCK", "--bad"), dots("INCONCLUSIVE", "--open"), dots("bootstrap", "--new"),
          dots("became champion", "--good", "--good"), dots("made champion by hand", "--hand", "--hand")],
      }, [order, values, limits, said("PASS"), said("BLOCK"), said("INCONCLUSIVE"), said("bootstrap"), only(champions), only(byHand)], figure.plot);
    }
  }
}

// ---- commands ---------------------------------------------------------------------------------------------------

// A page that did not come over https may not write to the clipboard: the command is selected there.
addEventListener("click", async ({ target }) => {
  if (!target.matches?.("[data-copy]")) return;
  const code = target.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    target.textContent = "Copied";
  } catch (error) {
    getSelection().selectAllChildren(code);
    target.textContent = "Selected";
  }
});

// ---- begin ------------------------------------------------------------------------------------------------------

function redraw() {
  for (const one of charts) {
    for (const figure of one.figures) figure.shape = "";
    one.draw();
  }
}

for (const place of document.querySelectorAll("[data-curves]")) charts.push(new Curves(place));
for (const place of document.querySelectorAll("[data-trends]")) charts.push(new Trends(place));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
Promise.all(charts.map((one) => one.start())).catch(() => {
  status.textContent = "The curves could not be read; reload the page to try again.";
}).then(forever);
