"use strict";
// A row of colour for each run, from its first step to its last: shares of its time stacked, or the shade of a value.

const COLUMNS = 160;  // stretches of steps in a row
const AGAIN = 10_000;  // ms between two looks at runs that go on

class Strip {
  constructor(figure) {
    this.figure = figure;
    this.names = figure.dataset.names.split(",");
    this.labels = figure.dataset.labels.split(",");
    this.inside = figure.dataset.inside?.split(",").map((name) => this.names.indexOf(name));
    this.shares = figure.dataset.shares !== undefined;
  }

  draw(runs) {
    this.runs = runs;
    const parts = this.shares ? [this.names] : this.names.map((name) => [name]);
    const named = (run, at) => (parts.length > 1 ? `${run.name}, ${this.labels[at]}` : run.name);
    const every = runs.flatMap((run) => parts.map((names, at) => ({ name: named(run, at), series: names.map((name) => run.series[name]) })));
    const rows = every.filter((row) => row.series.some((one) => one?.steps.length));
    this.figure.hidden = !rows.length;
    if (!rows.length) return;
    const steps = rows.flatMap((row) => row.series.flatMap((one) => (one ? [one.steps[0], one.steps.at(-1)] : [])));
    const ends = [Math.min(...steps.filter(Number.isFinite)), Math.max(...steps.filter(Number.isFinite))];
    for (const row of rows) row.columns = columns(row.series, ends, this.inside);
    const values = rows.flatMap((row) => row.columns.map((one) => one[0])).filter((one) => one !== null);
    const range = [Math.min(...values), Math.max(...values)];
    this.shade = this.figure.dataset.log !== undefined && range[0] > 0 ? Math.log : Number;
    if (!this.shares) this.figure.querySelector(".note").textContent = `pale ${short(range[0])}, dark ${[short(range[1]), this.figure.dataset.unit].join(" ").trim()}; steps ${ends[0]} to ${ends[1]}`;
    this.figure.querySelector(".rows").replaceChildren(...rows.map((row) => this.row(row, range)));
    for (const [at, canvas] of [...this.figure.querySelectorAll("canvas")].entries()) this.paint(canvas, rows[at].columns, range);
  }

  row({ name: title, columns: found }, range) {
    const line = document.createElement("div"), name = document.createElement("span"), canvas = document.createElement("canvas"), said = document.createElement("span");
    line.className = "strip";
    name.textContent = title;
    said.className = "small quiet";
    said.textContent = this.shares ? this.wholes(found) : `at the end ${short(found.findLast((one) => one[0] !== null)?.[0] ?? NaN)}`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${this.figure.querySelector("figcaption").textContent} of ${title}: ${said.textContent}${this.shares ? "" : `, between ${short(range[0])} and ${short(range[1])} in all runs`}`);
    line.append(name, canvas, said);
    return line;
  }

  // Each part's share of all that was timed.
  wholes(found) {
    const sums = this.labels.map((label, at) => found.reduce((sum, one) => sum + (one[at] || 0), 0));
    const all = sums.reduce((sum, one) => sum + one, 0) || 1;
    return this.labels.map((label, at) => [label, (100 * sums[at]) / all]).filter((one) => one[1] >= 0.5).map(([label, share]) => `${label} ${share.toFixed(0)} %`).join(", ");
  }

  paint(canvas, found, range) {
    const [low, high] = range.map(this.shade);
    const ratio = devicePixelRatio, wide = canvas.clientWidth || 300;
    canvas.width = wide * ratio;
    canvas.height = (canvas.clientHeight || 22) * ratio;
    const draw = canvas.getContext("2d");
    const ink = this.labels.map((label, at) => colour(this.shares ? `--run-${at % 8}` : "--curve"));
    for (const [at, values] of found.entries()) {
      const [left, right] = [at, at + 1].map((edge) => Math.round((edge * canvas.width) / found.length));
      const all = values.reduce((sum, one) => sum + (one || 0), 0);
      let top = 0;
      for (const [part, value] of values.entries()) {
        if (value === null || (this.shares && !all)) continue;
        const tall = this.shares ? (value / all) * canvas.height : canvas.height;
        draw.globalAlpha = this.shares ? 1 : 0.08 + (0.92 * (this.shade(value) - low)) / (high - low || 1);
        draw.fillStyle = ink[part];
        draw.fillRect(left, top, right - left, tall);
        top += tall;
      }
    }
  }
}

// The mean of each series in each stretch of steps; a stretch without a row has what the one before it had.
function columns(series, [first, last], inside) {
  const count = Math.min(COLUMNS, last - first + 1), width = (last - first + 1) / count;
  const sums = Array.from({ length: count }, () => series.map(() => [0, 0]));
  for (const [part, one] of series.entries()) {
    for (const [at, step] of (one?.steps || []).entries()) {
      const cell = sums[Math.min(count - 1, Math.floor((step - first) / width))][part];
      cell[0] += one.values[at];
      cell[1] += 1;
    }
  }
  const end = Math.max(...series.map((one) => one?.steps.at(-1) ?? first));
  const found = [];
  for (const [at, cells] of sums.entries()) {
    const before = found.at(-1), over = first + at * width > end;
    found.push(cells.map(([sum, rows], part) => (over ? null : rows ? sum / rows : before?.[part] ?? null)));
  }
  if (!inside) return found;
  return found.map((values) => values.map((value, part) => (part === inside[1] && value !== null ? Math.max(0, value - (values[inside[0]] || 0)) : value)));
}

class Strips {
  constructor(place) {
    this.place = place;
    this.all = [...place.querySelectorAll("figure")].map((one) => new Strip(one));
    this.found = [];
    this.next = null;
  }

  async refresh() {
    const names = [...new Set(this.all.flatMap((one) => one.names))].map(encodeURIComponent).join(",");
    const { whole, next, runs } = await json(`${this.place.dataset.strips}&names=${names}${this.next === null ? "" : `&after=${this.next}`}`);
    const only = this.place.dataset.only, old = new Map(whole ? [] : this.found.map((run) => [run.id, run]));
    this.found = runs.filter((run) => !only || run.id === only).map((run) => {
      const kept = old.get(run.id) || run;
      if (kept !== run) for (const [name, line] of Object.entries(run.series)) merge(kept.series, name, line, ["values"]);
      return kept;
    });
    const full = this.found.some((run) => Object.values(run.series).some((one) => one.steps.length > ROOM));
    this.next = full ? null : next;
    this.draw();
  }

  draw() {
    for (const one of this.all) one.draw(this.found);
  }
}

for (const place of document.querySelectorAll("[data-strips]")) {
  const made = new Strips(place);
  made.refresh().catch(() => {});  // the curves say that the server is silent
  setInterval(() => { if (going() && !document.hidden) made.refresh().catch(() => {}); }, AGAIN);
  addEventListener("resize", () => made.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => made.draw());
}
