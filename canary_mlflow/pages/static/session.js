"use strict";
// All runs of a session, or of what is compared, in one chart each; what is seen stands in the address.

const ASKED = 20;  // series that one request may name
const DASHES = [[], [7, 4], [2, 3]];  // one for each series of a chart; runs differ by colour

class Runs extends Curves {
  constructor(place) {
    super(place);
    this.runs = [];
    this.bands = {};
    this.charts = place.querySelector(".charts");
    this.clocks = null;  // until another axis than steps asks for them
    this.detail = null;  // of the stretch that is zoomed to, where the whole is thinned out
    this.asked = new Set(seen("series"));
    this.figures = [...place.querySelectorAll("figure")].map((one) => new RunsFigure(one, this));
  }

  // As for one run; here the reference, too, comes with what is read after that.
  async start() {
    status.textContent = await this.read("&rough=1", true) ? FEW : "";
    if (!view.across) this.draw();  // another axis than steps needs the clocks
    await this.refresh();
    status.textContent = "";
    for (const name of this.asked) await this.add(name);
    await this.fetchDetail();
    this.search();
    this.goTo(state().get("step"));
  }

  line(run, name) {
    return this.detail?.runs[run.id]?.[name] || run.lines[name];
  }

  clockOf(run) {
    return this.clocks?.runs[run.id];
  }

  // Again when a run has gone a tenth beyond its clock; up to there the clock is prolonged.
  async fetchClocks() {
    if (!view.across) return;
    const late = (run) => this.clockOf(run) === undefined || Object.values(run.lines).some((one) => one.steps.at(-1) > 1.1 * this.clockOf(run).steps.at(-1));
    if (this.clocks && !this.runs.some(late)) return;
    this.clocks = await json(this.place.dataset.clock);
  }

  // Every row of what is zoomed to, or as many as a screen has room for.
  async fetchDetail() {
    const clocks = this.runs.map((run) => this.clockOf(run)).filter(Boolean);
    const steps = view.zoom && stepsBetween(clocks, view.zoom);
    const thinned = this.runs.flatMap((run) => Object.entries(run.lines).filter(([, line]) => line.low).map(([name]) => name));
    this.detail = null;
    if (steps && thinned.length) {
      const asked = view.zoom, names = [...new Set(thinned)];
      const parts = [];
      for (let at = 0; at < names.length; at += ASKED) {
        const some = names.slice(at, at + ASKED).map(encodeURIComponent).join(",");
        parts.push(await json(`${this.place.dataset.session}&from=${Math.max(0, Math.floor(steps[0]))}&to=${Math.ceil(steps[1])}&names=${some}`));
      }
      if (asked !== view.zoom) return;  // somebody has zoomed on
      this.detail = { runs: {}, bands: Object.assign({}, ...parts.map((one) => one.bands)) };
      for (const run of parts.flatMap((one) => one.runs)) this.detail.runs[run.id] = { ...this.detail.runs[run.id], ...run.series };
    }
    this.draw();
  }

  async refresh() {
    const since = this.next === null ? "" : `&after=${this.next}`;
    const news = await this.read(since);
    for (const name of this.asked) if (this.added(name)) await this.read(`${since}&names=${encodeURIComponent(name)}`, true);
    await this.fetchClocks();
    this.draw();
    for (const run of this.runs) if (run.running) tick(run.id, run.lines);
    this.rank();
    this.sayFirst();
    return news;
  }

  // Whether there is news for the rest of the page: another run, another warning, or the end. `aside`: one
  // series more, or a first look; then whether there are only few points.
  async read(which, aside = false) {
    const found = await json(this.place.dataset.session + which);
    const before = this.state();
    const old = new Map(this.runs.map((one) => [one.id, one]));
    this.runs = found.runs.map((run) => {
      const kept = old.get(run.id);
      if (!kept) return { ...run, lines: { ...run.series } };
      for (const [name, line] of Object.entries(run.series)) {
        if (found.whole) kept.lines[name] = line; else join(kept.lines, name, line);
      }
      return { ...kept, warnings: run.warnings, name: run.name, running: run.running, away: found.whole ? { ...kept.away, ...run.away } : farther(kept.away, run.away) };
    });
    if (found.whole) Object.assign(this.bands, found.bands);
    if (aside) return found.rough;
    const changed = !found.whole && this.runs.some((run) => run.running !== old.get(run.id)?.running);  // one began or ended
    this.wasRunning = found.running;
    const full = this.runs.some((run) => Object.values(run.lines).some((one) => one.steps.length > ROOM));
    this.next = found.next;
    if (full || changed) {
      this.next = null;
      await this.read("");
    }
    return before !== this.state();
  }

  state() {
    return JSON.stringify([this.runs.map((one) => [one.id, one.running, one.warnings]), this.wasRunning]);
  }

  // The charts that go farthest first; not while somebody is in one of them.
  rank() {
    const order = [...this.figures].sort((one, other) => (other.far() - one.far()) || 0);
    if (this.place.contains(document.activeElement) || order.every((one, at) => one === this.figures[at])) return;
    this.figures = order;
    this.charts.append(...order.filter((one) => !one.large).map((one) => one.figure));
  }

  // Which run left first, and in what; the charts say the rest.
  sayFirst() {
    const gone = this.figures.filter((one) => !one.given).flatMap((one) => this.runs.map((run) => ({ title: one.title, large: one.large, run, ...run.away[one.names[0]] }))).filter((one) => Number.isInteger(one.step));
    gone.sort((one, other) => Number(other.large) - Number(one.large) || byHarm(one, other));
    const said = gone.slice(0, 3).map((one) => `${one.run.name} at step ${one.step} (${one.title}, ${now(one)})`);
    const text = said.length ? `First out of the band: ${said.join("; ")}${gone.length > 3 ? `; ${gone.length - 3} more in the charts` : ""}.` : "";
    say(text);
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
    plot.setAttribute("aria-label", name);
    note.className = "note small";
    const get = document.createElement("p"), link = document.createElement("a"), what = document.createElement("span");
    get.className = "small get";
    link.href = `${this.place.dataset.csv}&names=${encodeURIComponent(name)}`;
    what.className = "hidden";
    what.textContent = ` of ${name}`;
    link.append("CSV", what);
    get.append(link);
    figure.append(title, plot, note, get);
    this.charts.prepend(figure);
    const made = new RunsFigure(figure, this);
    made.own = name;
    this.figures.unshift(made);
    this.asked.add(name);
    made.draw();
    remember("series", [...this.asked].join(","));
    pressed();
  }

  // To the step that the address names; all charts follow one another.
  stepped(x) {
    remember("step", String(x));
    this.showAnswers(x).catch(silent);
  }

  // What the model answered near there, at the foot of the window.
  async showAnswers(x) {
    const place = document.getElementById("answers"), steps = stepsBetween(this.runs.map((run) => this.clockOf(run)).filter(Boolean), [x, x]);
    this.wanted = steps && Math.round(steps[0]);
    if (!place || !steps) return;
    await new Promise((done) => setTimeout(done, 80));  // not for every step of a key that is held
    const step = this.wanted, answer = step === Math.round(steps[0]) && await fetch(`${place.dataset.answers}&step=${step}`);
    if (!answer || !answer.ok || step !== this.wanted) return;
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").body;
    place.querySelector("span").textContent = step;
    place.querySelector("div").replaceChildren(...found.childNodes);
    place.hidden = false;
  }

  goTo(x) {
    const u = this.figures.find((one) => one.chart)?.chart;
    if (!u || !Number.isFinite(Number(x || NaN))) return;
    u.setCursor({ left: u.valToPos(Number(x), "x"), top: 10 });
    this.showAnswers(Number(x)).catch(silent);
  }

  search() {
    const word = box.value.trim().toLowerCase();
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

// New rows behind a line; one with a range beside it keeps it.
function join(lines, name, fresh) {
  const old = lines[name];
  if (old?.low || fresh.low) for (const one of [old, fresh]) if (one && !one.low) Object.assign(one, { low: one.values, high: one.values });
  merge(lines, name, fresh, fresh.low ? ["values", "low", "high"] : ["values"]);
}

class RunsFigure extends Figure {
  constructor(figure, curves) {
    super(figure, curves);
    this.sought = true;
    this.usual = this.log;
    this.large = figure.classList.contains("large");
    this.decides = figure.dataset.decides !== undefined;
    this.given = figure.dataset.given !== undefined;  // a setting: no surprise, and no reason
    this.title = this.plot.getAttribute("aria-label");
    this.plot.addEventListener("keydown", (event) => this.zoomByKey(event));
    this.logged = document.createElement("small");
    this.logged.textContent = "log scale";
    figure.querySelector("figcaption").append(" ", this.logged);
    this.left = document.createElement("p");
    this.left.className = "away-note small";
    this.plot.before(this.left);
  }

  far() {
    if (this.large || this.own || this.decides) return Infinity;  // asked for by name, or by the verdict
    return (this.given ? -1e9 : 0) + Math.max(0, ...this.curves.runs.map((run) => run.away[this.names[0]]?.far || 0));
  }

  draw() {
    const { runs } = this.curves;
    const drawn = runs.flatMap((run, number) => this.names.map((name, at) => ({ run, number, name, at, line: this.curves.line(run, name) }))).filter((one) => one.line);
    this.figure.hidden = !drawn.length || (this.sought === false && !this.large);
    if (this.figure.hidden) return;
    for (const one of drawn) one.x = along(this.curves.clockOf(one.run), one.line.steps);
    const unplaced = drawn.filter((one) => !one.x).map((one) => `${one.run.name}: no ${view.across} recorded.`);
    this.note.textContent = [...drawn.filter((one) => one.line.said).map((one) => `${one.run.name}: ${one.line.said}`), ...unplaced].join(" ");
    const away = runs.map((run) => ({ name: run.name, step: null, ahead: null, ...run.away[this.names[0]] }));
    const gone = away.filter((one) => one.step !== null), ahead = away.filter((one) => one.step === null && one.ahead !== null);
    const said = (what, some, at) => (some.length ? [`${what}: ${some.map((one) => `${one.name} ${at(one)}, ${now(one)}`).join("; ")}`] : []);
    this.left.textContent = [...said("Left the band", gone, (one) => `at step ${one.step}`), ...said("Better than the band", ahead, (one) => `from step ${one.ahead}`)].join(". ");
    this.left.classList.toggle("quiet", !gone.length);
    this.figure.classList.toggle("away", gone.some((one) => !over(one)));
    const lines = drawn.filter((one) => one.x && one.x.length);
    this.plot.hidden = !lines.length;
    if (!lines.length) return;
    const last = lines.reduce((most, one) => Math.max(most, one.x.at(-1), ...(along(this.curves.clockOf(one.run), one.line.broken || []) || [])), 0);
    const first = lines.reduce((least, one) => Math.min(least, one.x[0]), Infinity);
    const log = (view.scale ? view.scale === "log" : this.usual) && lines.some((one) => one.line.values.some((value) => value > 0));
    this.log = log;
    this.logged.hidden = !log;
    const tables = [], series = [{ label: view.across || "step", value: (u, x) => spelled(x ?? last) }], areas = [];
    const band = this.band(last);
    if (band && band.steps.length) this.edges(band, "--champion", tables, series, areas, 1.5, "champion");
    for (const one of lines) this.line(one, tables, series, areas, lines.some((other) => other.name !== one.name));
    const place = (run, steps) => along(this.curves.clockOf(run), steps) || [];
    const warnings = runs.flatMap((run) => run.warnings.flatMap((one) => place(run, [one.step]).map((x) => ({ ...one, step: x, at: one.step }))));
    const broken = lines.flatMap((one) => place(one.run, one.line.broken || []));
    const described = [`${lines[0].run.name} ${lines[0].name}`, lines[0].line];
    this.show({ tables, series, bands: areas, ends: [first, last], log, warnings, broken, described, zoomed: Boolean(view.zoom) });
    if (view.zoom) this.chart.setScale("x", { min: view.zoom[0], max: view.zoom[1] });  // new data undo it otherwise
  }

  // One run's series: the mean over a pale range where the server sent both, the smoothed line over the pale rows.
  line({ run, number, name, at, line, x }, tables, series, areas, named) {
    const stroke = colour(`--run-${number % 8}`), shown = latest(line), few = line.steps.length < 40;
    if (line.low) {
      areas.push({ series: [series.length, series.length + 1], fill: `${stroke}30` });
      tables.push([x, line.high.map(this.visible, this), line.low.map(this.visible, this)]);
      for (const label of ["high", "low"]) series.push({ label, class: "edge", width: 0, points: { show: false }, spanGaps: true });
    }
    if (view.smooth) {
      tables.push([x, line.values.map(this.visible, this)]);
      series.push({ label: "rows", class: "edge", stroke: `${stroke}50`, width: 1, points: { show: false }, spanGaps: true });
    }
    tables.push([x, (view.smooth ? smoothed(line.values, view.smooth) : line.values).map(this.visible, this)]);
    series.push({
      label: named ? `${run.name} ${name}` : run.name, stroke, width: view.smooth ? 2 : 1.4, dash: DASHES[at % 3], spanGaps: true,
      points: { show: few, size: 5 }, value: (u, value, n, index) => (value != null ? short(value) : index == null ? short(shown) : "–"),
    });
  }

  // Of the curve that decided, where the first run left the band.
  mark(u) {
    super.mark(u);
    const gone = this.curves.runs.map((run) => ({ run, step: run.away[this.names[0]]?.step })).filter((one) => Number.isInteger(one.step));
    if (!this.large || !gone.length) return;
    const { run, step } = gone.reduce((one, other) => (other.step < one.step ? other : one));
    const [at] = along(this.curves.clockOf(run), [step]) || [];
    const { ctx, bbox } = u, ratio = devicePixelRatio, x = Math.round(u.valToPos(at ?? NaN, "x", true));
    if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
    ctx.save();
    ctx.setLineDash([]);
    ctx.strokeStyle = ctx.fillStyle = colour("--open");
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    const right = x > bbox.left + bbox.width / 2;
    ctx.textAlign = right ? "right" : "left";
    ctx.fillText(`${run.name} leaves, step ${step}`, x + (right ? -6 : 6) * ratio, bbox.top + 14 * ratio);
    ctx.restore();
  }

  // The reference's band on the same axis, no farther than the runs are.
  band(last) {
    const found = this.curves.detail?.bands[this.names[0]] || this.curves.bands[this.names[0]];
    const x = found && along(this.curves.clocks?.reference, found.steps);
    return x ? upTo({ ...found, steps: x }, last) : null;
  }

  // "+" halves what is seen around the cursor, "-" shows all again.
  zoomByKey(event) {
    if (!this.chart || !["+", "-"].includes(event.key) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (event.key === "-") { zoomTo(null, this.chart); return; }
    const { min, max } = this.chart.scales.x, x = this.chart.data[0][this.chart.cursor.idx ?? -1] ?? (min + max) / 2;
    const exact = (at) => (view.across ? Number(at.toPrecision(6)) : Math.round(at));
    zoomTo([Math.max(min, x - (max - min) / 4), Math.min(max, x + (max - min) / 4)].map(exact));
  }

  options(series, bands, log) {
    const options = super.options(series, bands, log);
    options.across = view.across;
    if (this.large) options.height = 320;
    if (view.across) options.axes[0].values = (u, ticks) => ticks.map(spelled);
    // Dragging in one zooms all, and the address remembers it.
    const exact = (x) => (view.across ? Number(x.toPrecision(6)) : Math.round(x));
    options.hooks.setSelect = [(u) => {
      if (u.select.width > 0) zoomTo([exact(u.posToVal(u.select.left, "x")), exact(u.posToVal(u.select.left + u.select.width, "x"))], u);
    }];
    options.hooks.init = [(u) => {
      let from = 0;
      u.over.addEventListener("mousedown", (event) => { from = event.clientX; });
      u.over.addEventListener("click", (event) => { if (Math.abs(event.clientX - from) < 3 && u.cursor.idx != null) this.curves.stepped(u.data[0][u.cursor.idx]); });
    }];
    options.hooks.ready = [(u) => u.over.addEventListener("dblclick", () => zoomTo(null, u))];
    return options;
  }
}

// ---- what somebody chooses to see ---------------------------------------------------------------------------------

function zoomTo(range, from) {
  view.zoom = range && range[0] < range[1] ? range : null;
  remember("zoom", view.zoom ? view.zoom.join(",") : "");
  for (const figure of all.figures) {
    if (!figure.chart) continue;
    const x = figure.chart.data[0];
    if (figure.chart !== from || !view.zoom) figure.chart.setScale("x", view.zoom ? { min: view.zoom[0], max: view.zoom[1] } : { min: x[0], max: x.at(-1) });
  }
  all.fetchDetail().catch(silent);
}

function pressed() {
  for (const button of document.querySelectorAll("[data-series]")) button.setAttribute("aria-pressed", String(all.added(button.dataset.series)));
}

function silent() {
  status.textContent = "The server does not answer; what stands here is what it said last.";
}

const box = document.getElementById("search");
const smooth = document.getElementById("smooth"), scale = document.getElementById("scale"), across = document.getElementById("across");
box.value = state().get("q") || "";
[smooth.value, scale.value, across.value] = [view.smooth, view.scale, view.across];
const all = new Runs(document.querySelector("[data-session]"));
box.addEventListener("input", () => { remember("q", box.value.trim()); all.search(); });
smooth.addEventListener("input", () => { view.smooth = Number(smooth.value); remember("smooth", view.smooth ? smooth.value : ""); all.draw(); });
scale.addEventListener("change", () => { view.scale = scale.value; remember("scale", scale.value); all.draw(); });
across.addEventListener("change", () => {
  view.across = across.value;
  remember("across", across.value);
  zoomTo(null);  // it was of another axis
  all.fetchClocks().then(() => all.draw()).catch(silent);
});
for (const button of document.querySelectorAll("[data-series]")) button.addEventListener("click", () => all.add(button.dataset.series));
document.querySelector("#answers button")?.addEventListener("click", () => { document.getElementById("answers").hidden = true; remember("step", ""); });
pressed();
all.start().then(() => charts.push(all)).catch(() => {
  status.textContent = "The curves could not be read; reload the page to try again.";
});
