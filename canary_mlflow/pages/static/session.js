"use strict";
// All runs of a session, or of what is compared, in one chart each; what is seen stands in the address.

const DASHES = [[], [7, 4], [2, 3]];  // one for each series of a chart; runs differ by colour

class Runs extends Curves {
  constructor(place) {
    super(place);
    this.runs = [];
    this.bands = {};
    this.asked = new Set(seen("series"));
    this.figures = [...place.querySelectorAll("figure")].map((one) => new RunsFigure(one, this));
  }

  async start() {
    await this.refresh();
    for (const name of this.asked) await this.add(name);
    this.search();
  }

  async refresh() {
    const news = await this.read(this.next === null ? "" : `&after=${this.next}`);
    for (const name of this.asked) if (news !== null && this.added(name)) await this.read(`&names=${encodeURIComponent(name)}`, true);
    this.draw();
    this.rank();
    return Boolean(news);
  }

  // Whether there is news for the rest of the page: another run, another warning, or the end. `aside`: one series more.
  async read(which, aside = false) {
    const found = await json(this.place.dataset.session + which);
    const before = JSON.stringify([this.runs.map((one) => [one.id, one.warnings]), this.wasRunning]);
    const old = new Map(this.runs.map((one) => [one.id, one]));
    this.runs = found.runs.map((run) => {
      const kept = old.get(run.id);
      if (!kept) return { ...run, lines: { ...run.series } };
      for (const [name, line] of Object.entries(run.series)) {
        if (found.whole) kept.lines[name] = line; else merge(kept.lines, name, line, ["values"]);
      }
      return { ...kept, warnings: run.warnings, name: run.name, away: found.whole ? { ...kept.away, ...run.away } : farther(kept.away, run.away) };
    });
    if (found.whole) Object.assign(this.bands, found.bands);
    if (aside) return false;
    const ended = this.wasRunning && !found.running && !found.whole;
    this.wasRunning = found.running;
    const full = this.runs.some((run) => Object.values(run.lines).some((one) => one.steps.length > ROOM));
    this.next = found.next;
    if (full || ended) {
      this.next = null;
      await this.read("");
    }
    return before !== JSON.stringify([this.runs.map((one) => [one.id, one.warnings]), this.wasRunning]);
  }

  // The charts that go farthest first; not while somebody is in one of them.
  rank() {
    const order = [...this.figures].sort((one, other) => other.far() - one.far());
    if (this.place.contains(document.activeElement) || order.every((one, at) => one === this.figures[at])) return;
    this.figures = order;
    this.place.append(...order.map((one) => one.figure));
  }

  added(name) {
    return this.figures.some((one) => one.own === name);
  }

  // A chart of a series that has none yet, before the others.
  async add(name) {
    if (this.added(name)) return;
    await this.read(`&names=${encodeURIComponent(name)}`, true);
    if (!this.runs.some((run) => run.lines[name])) return;
    const figure = document.createElement("figure");
    figure.className = "chart";
    Object.assign(figure.dataset, { lines: name, marked: name, unit: "" });
    const title = document.createElement("figcaption"), plot = document.createElement("div"), note = document.createElement("p");
    title.textContent = name;
    plot.className = "plot";
    plot.tabIndex = 0;
    plot.setAttribute("role", "img");
    note.className = "note small";
    figure.append(title, plot, note);
    this.place.prepend(figure);
    const made = new RunsFigure(figure, this);
    made.own = name;
    this.figures.unshift(made);
    this.asked.add(name);
    made.draw();
    remember("series", [...this.asked].join(","));
    pressed();
  }

  search() {
    const word = (box?.value || "").trim().toLowerCase();
    let count = 0;
    for (const one of this.figures) {
      one.sought = !word || `${one.title} ${one.names.join(" ")}`.toLowerCase().includes(word);
      one.draw();
      count += one.figure.hidden ? 0 : 1;
    }
    let more = 0;
    for (const button of document.querySelectorAll("[data-series]")) {
      button.hidden = Boolean(word) && !button.dataset.series.toLowerCase().includes(word);
      more += button.hidden ? 0 : 1;
    }
    const others = document.getElementById("others");
    if (others && word && more) others.open = true;
    document.getElementById("found").textContent = word ? `${count} charts, ${more} more series` : "";
  }
}

// Of a stretch: the farthest so far, and the first step at which it left.
function farther(before, now) {
  const found = { ...before };
  for (const [name, one] of Object.entries(now)) {
    const old = found[name];
    if (!old) { found[name] = one; continue; }
    const first = old.step !== null && (one.step === null || old.step <= one.step) ? old : one;
    found[name] = { far: Math.max(old.far, one.far), step: first.step, up: first.up };
  }
  return found;
}

class RunsFigure extends Figure {
  constructor(figure, curves) {
    super(figure, curves);
    this.sought = true;
    this.left = document.createElement("p");
    this.left.className = "away-note small";
    this.plot.before(this.left);
  }

  far() {
    if (this.own) return Infinity;  // asked for by name
    return Math.max(0, ...this.curves.runs.map((run) => run.away[this.names[0]]?.far || 0));
  }

  draw() {
    const { runs, bands } = this.curves;
    const drawn = runs.flatMap((run, number) => this.names.map((name, at) => ({ run, number, name, at, line: run.lines[name] }))).filter((one) => one.line);
    this.figure.hidden = !drawn.length || this.sought === false;
    if (this.figure.hidden) return;
    this.note.textContent = drawn.filter((one) => one.line.said).map((one) => `${one.run.name}: ${one.line.said}`).join(" ");
    const gone = runs.filter((run) => run.away[this.names[0]] && run.away[this.names[0]].step !== null);
    this.left.textContent = gone.length ? `Left the band: ${gone.map((run) => `${run.name} at step ${run.away[this.names[0]].step}, ${run.away[this.names[0]].up ? "above" : "below"}`).join("; ")}` : "";
    this.figure.classList.toggle("away", gone.length > 0);
    const lines = drawn.filter((one) => one.line.steps.length);
    this.plot.hidden = !lines.length;
    if (!lines.length) return;
    this.last = lines.reduce((most, one) => Math.max(most, one.line.steps.at(-1)), 0);
    const first = lines.reduce((least, one) => Math.min(least, one.line.steps[0]), Infinity);
    const tables = [], series = [{ label: "step", value: (u, step) => String(step ?? this.last) }], areas = [];
    const band = bands[this.names[0]] ? upTo(bands[this.names[0]], this.last) : null;
    if (band && band.steps.length) this.edges(band, "--champion", tables, series, areas, 1.5);
    for (const { run, number, name, at, line } of lines) {
      const now = line.values.at(-1);
      tables.push([line.steps, line.values.map(this.visible, this)]);
      series.push({
        label: this.names.length > 1 ? `${run.name} ${name}` : run.name, stroke: colour(`--run-${number % 8}`), width: 1.4, dash: DASHES[at % 3], spanGaps: true,
        points: { show: line.steps.length < 40, size: 5 }, value: (u, value, n, index) => (value != null ? short(value) : index == null ? short(now) : "–"),
      });
    }
    if (this.target !== null) {
      tables.push([[first, this.last], [this.target, this.target]]);
      series.push({ label: "target", stroke: colour("--good"), width: 1.5, dash: [6, 4], spanGaps: true, points: { show: false }, value: () => short(this.target) });
    }
    const data = uPlot.join(tables);
    this.warnings = runs.flatMap((run) => run.warnings).filter((one) => this.marked.includes(one.stream));
    this.broken = lines.flatMap((one) => one.line.broken || []);
    this.figure.classList.toggle("warned", this.warnings.some((one) => one.level !== "WARN"));
    this.describe(`${lines[0].run.name} ${lines[0].name}`, lines[0].line);
    const log = this.log && lines.some((one) => one.line.values.some((value) => value > 0));
    const shape = JSON.stringify([series.map((one) => [one.label, one.stroke]), lines.map((one) => one.line.steps.length < 40), log]);
    if (this.chart && this.shape === shape) {
      this.chart.setData(data, !zoom);
      if (zoom) this.chart.redraw();
      return;
    }
    if (this.chart) this.chart.destroy();
    this.shape = shape;
    this.chart = new uPlot(this.zoomable(this.options(series, areas, log)), data, this.plot);
    if (zoom) this.chart.setScale("x", { min: zoom[0], max: zoom[1] });
  }

  // Dragging in one zooms all, and the address remembers it.
  zoomable(options) {
    options.hooks.setSelect = [(u) => {
      if (u.select.width > 0) zoomTo([Math.round(u.posToVal(u.select.left, "x")), Math.round(u.posToVal(u.select.left + u.select.width, "x"))], u);
    }];
    options.hooks.ready = [(u) => u.over.addEventListener("dblclick", () => zoomTo(null, u))];
    return options;
  }
}

// ---- what the address keeps -------------------------------------------------------------------------------------

function state() {
  return new URLSearchParams(location.hash.slice(1));
}

function seen(key) {
  return (state().get(key) || "").split(",").filter(Boolean);
}

function remember(key, value) {
  const now = state();
  if (value) now.set(key, value); else now.delete(key);
  history.replaceState(null, "", `${location.pathname}${location.search}${String(now) ? `#${now}` : ""}`);
}

let zoom = seen("zoom").map(Number);
if (zoom.length !== 2 || !zoom.every(Number.isFinite) || zoom[0] >= zoom[1]) zoom = null;

function zoomTo(range, from) {
  zoom = range && range[0] < range[1] ? range : null;
  remember("zoom", zoom ? zoom.join(",") : "");
  for (const figure of all.figures) {
    if (!figure.chart) continue;
    const steps = figure.chart.data[0];
    if (figure.chart !== from || !zoom) figure.chart.setScale("x", zoom ? { min: zoom[0], max: zoom[1] } : { min: steps[0], max: steps.at(-1) });
  }
}

function pressed() {
  for (const button of document.querySelectorAll("[data-series]")) button.setAttribute("aria-pressed", String(all.added(button.dataset.series)));
}

const box = document.getElementById("search");
if (box) box.value = state().get("q") || "";
const all = new Runs(document.querySelector("[data-session]"));
box?.addEventListener("input", () => { remember("q", box.value.trim()); all.search(); });
for (const button of document.querySelectorAll("[data-series]")) button.addEventListener("click", () => all.add(button.dataset.series));
pressed();
all.start().then(() => charts.push(all)).catch(() => {
  status.textContent = "The curves could not be read; reload the page to try again.";
});
