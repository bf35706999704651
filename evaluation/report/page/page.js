"use strict";
// Draws the report from the JSON in #data. Numbers are those of metrics.jsonl; only the smoothed line is computed here.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// What the reader chose, kept when the page reloads.
const state = { axis: "step", smoothing: 0.6, log: false, hidden: [] };
try {
  Object.assign(state, JSON.parse(sessionStorage.getItem("furlong-report")));
} catch { /* a private window has no storage */ }
function remember() {
  try {
    sessionStorage.setItem("furlong-report", JSON.stringify(state));
  } catch { /* as above */ }
}

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function shape(name, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
}

// --- numbers as text
function short(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit && size >= 1e5) return +(value / unit).toPrecision(4) + letter;
  if (size !== 0 && size < 1e-3) return +value.toPrecision(3) + "";
  return String(+value.toPrecision(5));
}
// One unit of memory for tables and charts.
const peaks = data.runs.flatMap((run) => run.splits.train?.values.memory_bytes || []);
const memoryUnit = peaks.some((value) => value >= 2 ** 30) ? [2 ** 30, "GiB"] : [2 ** 20, "MiB"];
const bytes = (value) => (value === null ? "–" : `${short(+(value / memoryUnit[0]).toPrecision(3))} ${memoryUnit[1]}`);
function duration(seconds) {
  if (!isFinite(seconds)) return "–";
  const s = Math.round(seconds);
  if (s < 60) return s + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + String(s % 60).padStart(2, "0") + "s";
  return Math.floor(s / 3600) + "h" + String(Math.floor((s % 3600) / 60)).padStart(2, "0") + "m";
}
const axisText = (value) => (state.axis === "seconds" ? duration(value) : short(value));
const color = (index) => `var(--c${index % 7})`;
const dash = (index) => ["", "7 3", "2 3", "9 3 2 3"][Math.floor(index / 7) % 4];

// --- tables
function table(target, columns, rows) {
  const cell = (tag, { text, node, kind }) => {
    const made = element(tag, kind ? { class: kind } : {});
    if (tag === "th") made.setAttribute("scope", "col");
    made.append(node || (text ?? "–"));
    return made;
  };
  target.replaceChildren(
    element("thead", {}, element("tr", {}, ...columns.map((column) => cell("th", column)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((entry) => cell("td", entry))))));
}
const number = (value, kind = "number") => ({ text: short(value), kind });

function last(run, split, key) {
  const values = run.splits[split]?.values[key] || [];
  for (let i = values.length; i-- > 0;) if (values[i] !== null) return values[i];
  return null;
}
// What the losses of a run are: the stages of furlong finetune minimize different quantities.
const distinct = (values) => new Set(values).size > 1;
function goalOf(run) {
  const teacher = run.config["teacher.loss"];
  return teacher && teacher !== "none" ? teacher : run.config["objective.name"] || "–";
}
function drawRuns() {
  const goals = distinct(data.runs.map(goalOf));
  const rows = data.runs.map((run, index) => {
    const box = element("input", { type: "checkbox", "aria-label": `show ${run.name}` });
    box.checked = !state.hidden.includes(run.path);
    box.addEventListener("change", () => {
      state.hidden = state.hidden.filter((path) => path !== run.path);
      if (!box.checked) state.hidden.push(run.path);
      remember();
      drawCharts();
    });
    const line = element("span", { class: "key", style: `background:${color(index)}` });
    const name = element("label", {}, box, line, run.name);
    return [{ node: name, kind: "text" }, { text: run.state, kind: "state-" + run.state },
      { text: short(run.step) + (run.max_steps ? " of " + short(run.max_steps) : ""), kind: "number" },
      number(run.tokens), { text: duration(run.seconds), kind: "number" },
      ...(goals ? [{ text: goalOf(run) }] : []), number(last(run, "train", "loss")),
      number(last(run, "validation", "loss")),
      { text: run.best_loss === null ? "–" : `${short(run.best_loss)} at ${short(run.best_step)}`, kind: "number" },
      number(run.seconds > 0 ? run.tokens / run.seconds : null),
      { text: bytes(run.peak_bytes), kind: "number" }];
  });
  const title = (text) => ({ text, kind: "number" });
  table($("runs"), [{ text: "run" }, { text: "state" }, title("step"), title("tokens"), title("training time"),
    ...(goals ? [{ text: "loss of" }] : []), title("loss"), title("validation"), title("best validation"),
    title("tokens/s"), title("peak memory")], rows);
  $("problems").replaceChildren(...data.runs.flatMap((run) => run.problems.map((text) => element("li", {}, text))));
}

// --- charts
const titles = { loss: "Loss, nats", squared_error: "Loss, mean squared error",
  distillation_loss: "Distillation loss, nats", attention_error: "Squared attention error",
  divergence: "Divergence from the teacher, nats", accuracy: "Accuracy", learning_rate: "Learning rate",
  gradient_norm: "Gradient norm before clipping", tokens_per_second: "Tokens per second",
  memory_bytes: `Peak memory, ${memoryUnit[1]}`, least_denominator: "Least denominator of attention",
  guarded_rows: "Fraction of guarded attention rows", skipped: "Skipped steps" };
const titleOf = (key) => titles[key] || (/^layer_\d+$/.test(key) ? `Attention error of layer ${key.slice(6)}` : key);
const losses = ["loss", "squared_error", "distillation_loss", "attention_error"];
const order = [...losses, "divergence", "accuracy", "learning_rate", "gradient_norm", "tokens_per_second",
  "memory_bytes"];
// The chart of a key: losses that measure different quantities do not share an axis.
function chartOf(run, split, key) {
  if (key !== "loss") return key;
  const teacher = run.config["teacher.loss"];
  if (teacher === "attention_transfer") return "attention_error";
  if (teacher === "distillation" && split === "train") return "distillation_loss";
  return run.config["objective.name"] === "regression" ? "squared_error" : "loss";
}
const smoothedFrom = 50;  // lines

// An exponential moving average, corrected for its start; gaps stay gaps.
function smoothed(values, weight) {
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}
// Tokens and seconds of a validation are those of the training until its step, between two of its lines in proportion.
function abscissae(run, split) {
  const columns = run.splits[split];
  if (state.axis === "step" || split === "train") return columns[state.axis];
  const train = run.splits.train;
  if (!train) return columns.step.map(() => null);
  const { step: steps, [state.axis]: values } = train;
  let row = 0;
  return columns.step.map((step) => {
    while (row + 1 < steps.length && steps[row + 1] <= step) ++row;
    if (row + 1 === steps.length || step <= steps[row]) return values[row];
    return values[row] + ((values[row + 1] - values[row]) * (step - steps[row])) / (steps[row + 1] - steps[row]);
  });
}
function linesOf(key) {
  const lines = [];
  data.runs.forEach((run, index) => {
    if (state.hidden.includes(run.path)) return;
    for (const split of Object.keys(run.splits)) {
      // Speed and memory of an evaluation are not those of training.
      if (split !== "train" && (key === "tokens_per_second" || key === "memory_bytes")) continue;
      for (const [name, column] of Object.entries(run.splits[split].values)) {
        if (chartOf(run, split, name) !== key) continue;
        const values = name === "memory_bytes" ? column.map((value) => value && value / memoryUnit[0]) : column;
        lines.push({ run, index, split, values, x: abscissae(run, split) });
      }
    }
  });
  return lines;
}
function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) found.push(i * step);
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power)
    for (const m of [1, 2, 5]) if (m * 10 ** power >= low && m * 10 ** power <= high) found.push(m * 10 ** power);
  return found.length > 1 ? found : [low, high];
}

function drawChart(figure, key) {
  const lines = linesOf(key), log = losses.includes(key) && state.log;
  const usable = (x, y) => x !== null && y !== null && isFinite(x) && isFinite(y) && (!log || y > 0);
  const width = Math.max(280, figure.clientWidth - 26), height = figure.classList.contains("wide") ? 340 : 220;
  const left = 58, right = width - 10, top = 10, bottom = height - 26;
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const line of lines) line.x.forEach((x, i) => {
    const y = line.values[i];
    if (!usable(x, y)) return;
    x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
  });
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0,
    "aria-label": `${titleOf(key)}: ${lines.length} curves. Arrow keys move the cursor.` });
  const readout = figure.querySelector(".readout");
  readout.textContent = "";
  figure.querySelector("svg")?.remove();
  figure.insertBefore(svg, readout);
  if (x0 > x1) {
    svg.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no values"));
    return;
  }
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  if (y0 === y1) {
    const margin = Math.abs(y0) * 0.05 || 0.5;
    [y0, y1] = log ? [y0 / 1.05, y1 * 1.05] : [y0 - margin, y1 + margin];
  }
  const atX = (x) => left + (x - x0) / (x1 - x0) * (right - left);
  const f = log ? Math.log : (y) => y;
  const atY = (y) => bottom - (f(y) - f(y0)) / (f(y1) - f(y0)) * (bottom - top);
  for (const y of log ? logTicks(y0, y1) : ticks(y0, y1, 5)) {
    svg.append(shape("line", { class: "grid", x1: left, x2: right, y1: atY(y), y2: atY(y) }),
      shape("text", { x: left - 6, y: atY(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
    svg.append(shape("line", { class: "grid", x1: atX(x), x2: atX(x), y1: bottom, y2: bottom + 4 }),
      shape("text", { x: atX(x), y: height - 8, "text-anchor": atX(x) > right - 25 ? "end" : "middle" }, axisText(x)));
  }
  const path = (line, values) => {
    let d = "", pen = false;
    line.x.forEach((x, i) => {
      if (!usable(x, values[i])) { pen = false; return; }
      d += `${pen ? "L" : "M"}${atX(x).toFixed(1)} ${atY(values[i]).toFixed(1)}`;
      pen = true;
    });
    return d;
  };
  for (const line of lines) {
    const style = { fill: "none", stroke: color(line.index), "stroke-dasharray": dash(line.index) };
    const smooth = line.split === "train" && (losses.includes(key) || key === "gradient_norm") &&
      state.smoothing > 0 && line.x.length >= smoothedFrom;
    if (line.split === "train") {
      const width = smooth ? { "stroke-width": 1, class: "raw" } : { "stroke-width": 2 };
      svg.append(shape("path", { ...style, ...width, d: path(line, line.values) }));
      if (smooth) {
        const d = path(line, smoothed(line.values, state.smoothing));
        svg.append(shape("path", { ...style, d, "stroke-width": 2 }));
      }
    } else {
      const dots = { "stroke-width": 1.5, "stroke-dasharray": "3 3" };
      svg.append(shape("path", { ...style, ...dots, d: path(line, line.values) }));
      line.x.forEach((x, i) => {
        if (usable(x, line.values[i]))
          svg.append(shape("circle", { cx: atX(x), cy: atY(line.values[i]), r: 3, fill: color(line.index) }));
      });
    }
  }
  attachCursor(svg, readout, lines, usable, { atX, x0, x1, left, right, top, bottom });
}

// Shows the values nearest to the pointer, or to the position that the arrow keys choose.
function attachCursor(svg, readout, lines, usable, area) {
  const cursor = shape("line", { class: "cursor", y1: area.top, y2: area.bottom, visibility: "hidden" });
  svg.append(cursor);
  const all = lines.flatMap((line) => line.x.filter((x, i) => usable(x, line.values[i])));
  const places = [...new Set(all)].sort((a, b) => a - b);
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    const x = places[at];
    cursor.setAttribute("x1", area.atX(x));
    cursor.setAttribute("x2", area.atX(x));
    cursor.setAttribute("visibility", "visible");
    const parts = lines.map((line) => {
      let best = -1;
      line.x.forEach((other, i) => {
        if (usable(other, line.values[i]) && (best < 0 || Math.abs(other - x) < Math.abs(line.x[best] - x))) best = i;
      });
      const several = data.runs.length > 1 ? line.run.name + " " : "";
      return best < 0 ? "" : `${several}${line.split} ${short(line.values[best])}` +
        (line.x[best] === x ? "" : ` (at ${axisText(line.x[best])})`);
    });
    const place = `${state.axis === "seconds" ? "" : state.axis + " "}${axisText(x)}`;
    readout.textContent = `${place}: ${parts.filter(Boolean).join("; ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const pixel = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const x = area.x0 + (pixel - area.left) / (area.right - area.left) * (area.x1 - area.x0);
    let nearest = 0;
    places.forEach((place, i) => { if (Math.abs(place - x) < Math.abs(places[nearest] - x)) nearest = i; });
    show(nearest);
  });
  svg.addEventListener("keydown", (event) => {
    const end = places.length;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -end, End: end };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(at < 0 ? (move > 0 ? 0 : places.length - 1) : at + move);
  });
}

function drawCharts() {
  const keys = new Set();
  for (const run of data.runs)
    for (const [split, { values }] of Object.entries(run.splits))
      for (const key of Object.keys(values)) keys.add(chartOf(run, split, key));
  const sorted = [...order.filter((key) => keys.delete(key)), ...[...keys].sort()];
  for (const key of sorted) {
    let figure = document.querySelector(`figure[data-key="${CSS.escape(key)}"]`);
    if (!figure) {
      figure = element("figure", { "data-key": key, class: losses.includes(key) ? "wide" : "" },
        element("h3", {}, titleOf(key)), element("p", { class: "readout", role: "status" }));
      if (losses.includes(key))
        figure.append(element("figcaption", {}, `Solid: training, smoothed from ${smoothedFrom} lines on; faint: as ` +
          "recorded. Dots: validation."));
      $("charts").append(figure);
    }
    drawChart(figure, key);
  }
  if (sorted.length === 0) $("charts-section").hidden = true;
  const smooths = data.runs.some((run) => (run.splits.train?.step.length || 0) >= smoothedFrom);
  $("smoothing").disabled = !smooths;
  $("smoothing-value").textContent = smooths ? (+state.smoothing).toFixed(2) : `needs ${smoothedFrom} lines`;
}

// --- recovery, attention, samples, configuration
const known = (value) => value !== null && value !== undefined;
const fixed = (value, digits) => ({ text: known(value) ? value.toFixed(digits) : "–", kind: "number" });
function percent(value, error = null) {
  if (!known(value)) return { text: "–", kind: "number" };
  const interval = known(error) ? ` ± ${(100 * error).toFixed(1)}` : "";
  return { text: `${(100 * value).toFixed(1)}${interval} %`, kind: "number" };
}
function mean(values) {
  const measured = values.filter(known);
  return measured.length ? measured.reduce((sum, value) => sum + value, 0) / measured.length : null;
}
function drawRecoveries() {
  $("recovery-section").hidden = data.recoveries.length === 0;
  for (const found of data.recoveries) {
    const made = element("table");
    const measures = ["loss", "perplexity", "accuracy", "recovery of accuracy", "recovery of loss",
      "recovery, windows off", "squared attention error", "tokens", "minutes"];
    const rows = (found.models || []).map((model) => [{ text: model.name }, number(model.loss),
      number(model.perplexity), percent(model.accuracy),
      percent(model.recovery?.accuracy, model.recovery?.accuracy_standard_error), percent(model.recovery?.loss),
      percent(model.window_off?.recovery?.accuracy),
      number(mean(Object.values(model.squared_attention_error || model.relative_error_of_attention || {}))),
      number(model.tokens),
      fixed(model.minutes, 1)]);
    if (found.baseline)
      rows.unshift([{ text: "unigram baseline" }, number(found.baseline.loss), number(null),
        percent(found.baseline.accuracy), ...measures.slice(3).map(() => number(null))]);
    table(made, [{ text: "model" }, ...measures.map((text) => ({ text, kind: "number" }))], rows);
    const source = `${found.source || ""}: ${found.data || ""}, ${found.split || ""} split`;
    $("recovery").append(element("p", { class: "hint" }, source),
      element("div", { class: "scroll" }, made));
    if (found.recovery_undefined)
      $("recovery").append(element("p", { class: "hint" }, `Recovery is undefined: ${found.recovery_undefined}.`));
  }
}
// Table of furlong bench lra; shares of samples in percent.
function drawLra() {
  $("lra-section").hidden = data.lra.length === 0;
  for (const found of data.lra) {
    const made = element("table");
    const rows = found.results.map((result) => {
      const { value, low, high } = result.accuracy || {};
      const share = (part) => (known(part) ? (100 * part).toFixed(1) : "–");
      const interval = known(low) && known(high) ? ` (${share(low)} – ${share(high)})` : "";
      // A dataset that stands in for the official one is named, as on the terminal.
      const task = result.task + (result.stand_in ? ` (${result.stand_in})` : "");
      return [{ text: task }, { text: result.mechanism }, { text: share(value) + interval, kind: "number" },
        { text: share(result.baseline_accuracy), kind: "number" },
        { text: share(result.published_accuracy), kind: "number" }, fixed(result.seconds, 0),
        fixed(known(result.peak_bytes) ? result.peak_bytes / 2 ** 20 : null, 1)];
    });
    const measures = ["accuracy, % (95% interval)", "baseline, %", "published, %", "seconds", "peak MiB"];
    table(made,
      [{ text: "task" }, { text: "mechanism" }, ...measures.map((text) => ({ text, kind: "number" }))], rows);
    const machine = found.machine || {};
    const source = `Size ${found.size ?? "–"}, commit ${found.furlong?.commit ?? "–"}, ${machine.cpu ?? "–"}, ` +
      `${machine.threads ?? "–"} thread${machine.threads === 1 ? "" : "s"}`;
    $("lra").append(element("p", { class: "hint" }, source), element("div", { class: "scroll" }, made));
  }
}
function drawAttention() {
  const analyzed = data.runs.filter((run) => run.attention && run.attention.length);
  $("attention-section").hidden = analyzed.length === 0;
  for (const run of analyzed) {
    const rows = run.attention.flatMap((layer) => layer.heads.map((head) => {
      const own = head.attention.find((attention) => attention.own) || head.attention[0] || {};
      const worse = own.error !== undefined && own.error >= head.uniform_error;
      return [{ text: layer.layer }, number(head.head), { text: own.name },
        number(own.error, worse ? "cell bad" : "cell"),
        number(head.uniform_error), number(head.query_norm?.mean), number(head.key_norm?.mean)];
    }));
    const made = element("table");
    const measures = ["error", "error of uniform", "mean query norm", "mean key norm"];
    table(made, [{ text: "layer" }, { text: "head", kind: "number" }, { text: "attention" },
      ...measures.map((text) => ({ text, kind: "number" }))], rows);
    $("attention").append(element("h3", {}, run.name), element("div", { class: "scroll" }, made));
  }
}
function drawSamples() {
  const sampled = data.runs.filter((run) => run.samples.length);
  $("samples-section").hidden = sampled.length === 0;
  for (const run of sampled) {
    $("samples").append(element("h3", {}, `${run.name}, step ${run.sampled_at}`));
    for (const sample of run.samples)
      $("samples").append(
        element("pre", { class: "sample" }, element("span", { class: "prompt" }, sample.prompt), sample.text));
  }
}
function drawConfigs() {
  const runs = data.runs.filter((run) => Object.keys(run.config).length);
  if (runs.length > 1) {
    const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
    const differing = keys.filter((key) => new Set(runs.map((run) => run.config[key])).size > 1);
    if (differing.length === 0) {
      $("differences").append(element("p", {}, "All runs have the same configuration."));
    } else {
      const made = element("table");
      table(made, [{ text: "key" }, ...runs.map((run) => ({ text: run.name }))],
        differing.map((key) => [{ text: key }, ...runs.map((run) => ({ text: run.config[key], kind: "text" }))]));
      $("differences").append(element("p", {}, "Keys that differ:"), element("div", { class: "scroll" }, made));
    }
  }
  for (const run of data.runs.filter((run) => run.config_text)) {
    const block = element("details", {}, element("summary", {}, `config.yaml of ${run.name}`),
      element("pre", {}, run.config_text));
    $("configs").append(block);
  }
}

// --- the page
const only = data.runs.length === 1 ? data.runs[0].name : `${data.runs.length} runs`;
document.title = $("title").textContent = `Furlong report: ${only}`;
$("written").textContent = `Written ${data.written} by Furlong ${data.version} (${data.commit}).` +
  (data.reload_seconds ? ` Reloads every ${data.reload_seconds} s.` : "");
$("axis").value = state.axis;
$("smoothing").value = state.smoothing;
$("log").checked = state.log;
$("controls").addEventListener("input", () => {
  Object.assign(state, { axis: $("axis").value, smoothing: +$("smoothing").value, log: $("log").checked });
  remember();
  drawCharts();
});
$("controls").addEventListener("submit", (event) => event.preventDefault());
drawRuns();
drawCharts();
drawRecoveries();
drawLra();
drawAttention();
drawSamples();
drawConfigs();
let drawnWidth = innerWidth;
addEventListener("resize", () => { if (innerWidth !== drawnWidth) { drawnWidth = innerWidth; drawCharts(); } });
if (state.scroll) { scrollTo(0, state.scroll); state.scroll = 0; remember(); }
if (data.reload_seconds)
  setTimeout(() => { state.scroll = scrollY; remember(); location.reload(); }, 1000 * data.reload_seconds);
