"use strict";
// The page's own script: reads the JSON beside it, draws the timeline on a canvas and keeps one page
// of the table in the document. What spans say is only ever put into text nodes and attributes that
// are shown as text. Times are nanoseconds after the first span.
//
// A canvas, because 10,000 marks as SVG took 70 to 110 ms for each step of a zoom (Chromium 150, two
// cores), and here a frame takes 2 to 5 ms, of 100,000 spans as well: it draws what is in view.
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);

  // --- The spans: a typed array for each number, places in `strings` for each text.

  const strings = data.strings;
  const columns = data.columns;
  const count = columns.lane.length;
  const start = new Float64Array(count);
  for (let at = 0, sum = 0; at < count; at++) start[at] = sum += columns.delta[at];
  const duration = Float64Array.from(columns.duration);
  const laneOf = Int32Array.from(columns.lane);
  const marks = data.marks.map(([kind, path]) => ({ kind, path: path, shape: new Path2D(path) }));
  const OTHER = marks.length - 1;
  const markByKind = new Map(marks.map(({ kind }, at) => [kind, at]));
  const markOf = Uint8Array.from(columns.kind, (at) => markByKind.get(strings[at]) ?? OTHER);
  const BAR = markByKind.get("generation");
  const FAILURE = markByKind.get("explained");
  const text = (name, at) => strings[columns[name][at]];
  const failed = (at) => columns.error[at] !== 0;

  const generations = new Map();
  for (const [at, operation, model, input, output, first, speed, finish, end] of data.generations) {
    generations.set(at, {
      operation: strings[operation], model: strings[model], input, output, first, speed,
      finish: strings[finish], end: strings[end],
    });
  }
  let total = 0;
  for (let at = 0; at < count; at++) total = Math.max(total, start[at] + duration[at]);
  total = Math.max(total, 1e3);

  const lanes = data.lanes.map(([process, id, name]) => ({
    process, id, name,
    sought: `${name}\n${id}\n${process}`.toLowerCase(),
    spans: [],
  }));
  // Generations that one thread steps in turn overlap: each gets the first free line of the lane.
  const MOST_LINES = 8;
  const lineOf = new Uint8Array(count);
  const ends = lanes.map(() => []);
  for (let at = 0; at < count; at++) {
    lanes[laneOf[at]].spans.push(at);
    if (markOf[at] !== BAR) continue;
    const taken = ends[laneOf[at]];
    let line = taken.findIndex((end) => end <= start[at]);
    if (line < 0) line = Math.min(taken.length, MOST_LINES - 1);
    taken[line] = Math.max(taken[line] ?? 0, start[at] + duration[at]);
    lineOf[at] = line;
  }

  // --- Words.

  const UNITS = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
  const whole = new Intl.NumberFormat("en");

  function threeDigits(value) {
    if (Number.isInteger(value)) return String(value);
    return value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
  }

  function length(ns) {
    if (ns >= 120e9) {
      const pad = (number) => String(number).padStart(2, "0");
      const seconds = Math.round(ns / 1e9);
      const [minutes, hours] = [Math.floor(seconds / 60), Math.floor(seconds / 3600)];
      if (hours < 1) return `${minutes} min ${pad(seconds % 60)} s`;
      if (hours < 48) return `${hours} h ${pad(minutes % 60)} min`;
      return `${whole.format(Math.floor(hours / 24))} d ${pad(hours % 24)} h`;
    }
    const [unit, size] = UNITS.find(([, size]) => ns < size * 999.5) ?? UNITS[3];
    return `${threeDigits(ns / size)} ${unit}`;
  }

  function clock(ns, decimals) {
    const scale = 10 ** decimals;
    const ticks = Math.round((ns / 1e9) * scale);
    const seconds = Math.floor(ticks / scale);
    const pad = (number) => String(number).padStart(2, "0");
    const fraction = decimals ? `.${String(ticks % scale).padStart(decimals, "0")}` : "";
    const tail = `${pad(Math.floor(seconds / 60) % 60)}:${pad(seconds % 60)}${fraction}`;
    const hours = Math.floor(seconds / 3600);
    if (hours < 24) return `${hours}:${tail}`;
    return `${whole.format(Math.floor(hours / 24))} d ${pad(hours % 24)}:${tail}`;
  }

  const after = (ns) => (ns < 3600e9 ? `${(ns / 1e9).toFixed(6)} s` : clock(ns, 6));

  function wallClock(ns) {
    const micros = (BigInt(data.origin) + BigInt(Math.round(ns))) / 1000n;
    const date = new Date(Number(micros / 1000n));
    const pad = (number, size = 2) => String(number).padStart(size, "0");
    const offset = -date.getTimezoneOffset();
    const zone = `${offset < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(offset) / 60))}:${pad(Math.abs(offset) % 60)}`;
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
      `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}` +
      `.${pad(Number(micros % 1000000n), 6)} ${zone}`;
  }

  const cut = (words, most) => (words.length > most ? `${words.slice(0, most)}…` : words);
  const processName = (lane) => (lane.process === "0" ? "unknown" : lane.process);
  const threadName = (lane) => lane.name || "(no name)";
  const tokens = (number) => `${whole.format(number)} ${number === 1 ? "token" : "tokens"}`;

  function element(tag, content = "", attributes = {}) {
    const made = document.createElement(tag);
    if (content) made.textContent = content;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function icon(at) {
    const space = "http://www.w3.org/2000/svg";
    const { kind, path } = marks[markOf[at]];
    const picture = document.createElementNS(space, "svg");
    const attributes = {
      class: `mark ${kind}`, viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": "true",
    };
    for (const [name, value] of Object.entries(attributes)) picture.setAttribute(name, value);
    const shape = picture.appendChild(document.createElementNS(space, "path"));
    shape.setAttribute("d", path);
    shape.setAttribute("fill-rule", "evenodd");
    return picture;
  }

  function terms(pairs, most) {
    const list = element("dl");
    for (const [title, content, style] of pairs) {
      if (content === "" || content === null || content === undefined) continue;
      list.append(
        element("dt", title),
        element("dd", cut(String(content), most), { dir: "auto", ...(style && { class: style }) }),
      );
    }
    return list;
  }

  /** What is worth saying of a span in few words, for tooltip and table. */
  function gist(at) {
    if (failed(at)) return text("error", at);
    const generation = generations.get(at);
    if (generation) {
      const said = [tokens(generation.output)];
      if (generation.first !== null) said.push(`first after ${length(generation.first)}`);
      if (generation.speed !== null) said.push(`${threeDigits(generation.speed)} tokens/s`);
      said.push(generation.finish || generation.end);
      return said.filter(Boolean).join(", ");
    }
    return text("handles", at).replaceAll("\n", ", ");
  }

  // --- What is shown, by the filters.

  const shown = new Uint8Array(count);
  let shownCount = 0;

  function filter() {
    const kinds = new Set();
    for (const box of document.querySelectorAll("#filters [name=kind]")) {
      if (box.checked) kinds.add(box.value);
    }
    const wanted = marks.map(({ kind }) => kinds.has(kind));
    const sought = byId("thread").value.trim().toLowerCase();
    const errors = byId("errors").checked;
    const found = lanes.map((lane) => lane.sought.includes(sought));
    shownCount = 0;
    for (let at = 0; at < count; at++) {
      shown[at] = wanted[markOf[at]] && found[laneOf[at]] && (!errors || failed(at)) ? 1 : 0;
      shownCount += shown[at];
    }
    byId("shown").textContent = shownCount === count
      ? `all ${whole.format(count)} spans`
      : `${whole.format(shownCount)} of ${whole.format(count)} spans`;
    byId("none").hidden = shownCount > 0;
    byId("lanes").hidden = shownCount === 0;
    if (focused >= 0 && !shown[focused]) focused = -1;
    hover(-1);
    layOut();
    order();
    turnTo(0);
    draw();
  }

  // --- Where everything is. `rows` are process titles and lanes, from top to bottom.

  const MARKS_HEIGHT = 18;
  const LINE_HEIGHT = 17;
  const TITLE_HEIGHT = 26;
  const NAME_HEIGHT = 17;
  const MARGIN = 5;
  const EDGE = 10;
  const REACH = 8;
  const lanesBox = byId("lanes");
  const canvas = byId("canvas");
  const overview = byId("overview");
  const axis = byId("axis");
  const names = byId("names");
  const view = { from: 0, to: total };
  const size = { width: 0, height: 0, gutter: 0, named: 0 };
  let rows = [];
  let rowOfLane = [];
  let contentHeight = 0;

  function layOut() {
    rows = [];
    rowOfLane = new Array(lanes.length).fill(-1);
    let y = 0;
    let process = null;
    const threads = new Map();
    lanes.forEach((lane, at) => {
      const spans = lane.spans.filter((span) => shown[span]);
      if (!spans.length) return;
      if (lane.process !== process) {
        process = lane.process;
        rows.push({ y, height: TITLE_HEIGHT, title: lane });
        y += TITLE_HEIGHT;
      }
      threads.set(process, (threads.get(process) ?? 0) + 1);
      const points = spans.filter((span) => markOf[span] !== BAR);
      const bars = spans.filter((span) => markOf[span] === BAR);
      const lines = bars.reduce((most, span) => Math.max(most, lineOf[span] + 1), 0);
      const top = MARGIN + size.named;
      const inner = (points.length ? MARKS_HEIGHT : 0) + lines * LINE_HEIGHT;
      const height = Math.max(top + inner + MARGIN, 28);
      rowOfLane[at] = rows.length;
      rows.push({
        y, height, lane, spans, points, bars,
        longest: points.reduce((most, span) => Math.max(most, duration[span]), 0),
        marks: top + MARKS_HEIGHT / 2 + (bars.length ? 0 : (height - top - inner - MARGIN) / 2),
        lines: top + (points.length ? MARKS_HEIGHT : 0),
        // With lines to spare none of them overlap, and what is left of the view can be skipped.
        crowded: lines === MOST_LINES,
      });
      y += height;
    });
    for (const row of rows) if (row.title) row.threads = threads.get(row.title.process);
    contentHeight = y;
    byId("height").style.height = `${y}px`;
    lanesBox.style.height = `${Math.min(Math.max(y, 120), innerWidth <= 640 ? 340 : 420)}px`;
  }

  function measure() {
    const width = lanesBox.parentElement.clientWidth;
    const narrow = width < 640;
    size.gutter = narrow ? 0 : Math.min(270, Math.round(width * 0.3));
    const named = narrow ? NAME_HEIGHT : 0;
    if (named !== size.named || !rows.length) {
      size.named = named;
      layOut();
    }
    size.width = lanesBox.clientWidth;
    size.height = lanesBox.clientHeight;
    draw();
  }

  const plotWidth = () => Math.max(size.width - size.gutter - 2 * EDGE, 10);
  const xOf = (ns) =>
    size.gutter + EDGE + ((ns - view.from) / (view.to - view.from)) * plotWidth();
  const timeOf = (x) =>
    view.from + ((x - size.gutter - EDGE) / plotWidth()) * (view.to - view.from);

  /** Place of the first of `spans`, which are by start, that starts at `ns` or later. */
  function firstFrom(spans, ns) {
    let low = 0;
    let high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[spans[middle]] < ns) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function rowAt(y) {
    let low = 0;
    let high = rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (rows[middle].y <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Where the mark of a shown span is: its middle for a point, its box for a bar. */
  function placeOf(at, row = rows[rowOfLane[laneOf[at]]]) {
    const x = xOf(start[at]);
    if (markOf[at] !== BAR) return { x, y: row.y + row.marks };
    const y = row.y + row.lines + lineOf[at] * LINE_HEIGHT + 2;
    return { x, y, width: Math.max(xOf(start[at] + duration[at]) - x, 3), height: LINE_HEIGHT - 4 };
  }

  /** The span under a point of the canvas, and how many more marks are there; or null. */
  function hit(x, y) {
    if (x < size.gutter || !rows.length) return null;
    const inside = y + lanesBox.scrollTop;
    const row = rows[rowAt(inside)];
    if (!row.lane || inside > row.y + row.height) return null;
    const near = [];
    if (Math.abs(inside - row.y - row.marks) <= MARKS_HEIGHT / 2) {
      const until = timeOf(x + REACH);
      for (let k = firstFrom(row.points, timeOf(x - REACH)); k < row.points.length; k++) {
        if (start[row.points[k]] > until) break;
        near.push(row.points[k]);
      }
    }
    if (near.length) {
      // Of two that are about as near it is the one that lies on top.
      const distance = (at) => Math.abs(xOf(start[at]) - x) - markOf[at];
      return { at: near.reduce((a, b) => (distance(b) < distance(a) ? b : a)), more: near.length - 1 };
    }
    const line = Math.floor((inside - row.y - row.lines) / LINE_HEIGHT);
    for (let k = firstFrom(row.bars, timeOf(x + 3)) - 1; k >= 0; k--) {
      const at = row.bars[k];
      if (lineOf[at] !== line) continue;
      const { x: left, width } = placeOf(at, row);
      if (x >= left - 3 && x <= left + width + 3) return { at, more: 0 };
      if (!row.crowded) break;
    }
    return null;
  }

  // --- Drawing, at most once a frame.

  let colours = {};
  let drawing = false;
  let hovered = -1;
  let focused = -1;
  let selected = -1;
  let crosshair = -1;

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["ground", "surface", "line", "text", "muted", "accent", "selected",
      "pale", "on-bar", ...marks.map(({ kind }) => kind)];
    colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    colours.font = getComputedStyle(document.body).fontFamily;
  }

  function draw() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      drawLanes();
      drawAxis();
      drawOverview();
      nameLanes();
    });
  }

  function surface(target, width, height) {
    const scale = devicePixelRatio || 1;
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (target.width !== w || target.height !== h) {
      target.width = w;
      target.height = h;
      target.style.width = `${width}px`;
      target.style.height = `${height}px`;
    }
    const pen = target.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  function visible() {
    const found = [];
    const top = lanesBox.scrollTop;
    for (let k = rows.length ? rowAt(top) : 0; k < rows.length; k++) {
      if (rows[k].y > top + size.height) break;
      found.push(rows[k]);
    }
    return found;
  }

  function drawLanes() {
    const pen = surface(canvas, size.width, size.height);
    const top = lanesBox.scrollTop;
    const ticks = ticksOf(view);
    pen.textBaseline = "middle";
    pen.font = `11px ${colours.font}`;
    pen.translate(0, -top);
    for (const row of visible()) {
      if (row.title) {
        pen.fillStyle = colours.surface;
        pen.fillRect(0, row.y, size.width, row.height);
      }
      pen.fillStyle = colours.line;
      pen.fillRect(0, row.y + row.height - 1, size.width, 1);
      if (row.title) continue;
      for (const { x } of ticks) pen.fillRect(Math.round(x), row.y, 1, row.height);
    }
    pen.save();
    pen.beginPath();
    pen.rect(size.gutter, top, size.width - size.gutter, size.height);
    pen.clip();
    for (const row of visible()) {
      if (!row.lane) continue;
      drawBars(pen, row);
      drawPoints(pen, row);
    }
    if (hovered >= 0) ring(pen, hovered, colours.text, 1, []);
    if (selected >= 0 && shown[selected]) ring(pen, selected, colours.text, 2, []);
    if (focused >= 0 && document.activeElement === lanesBox) ring(pen, focused, colours.accent, 2, [3, 2]);
    pen.restore();
    if (size.gutter) {
      pen.fillStyle = colours.line;
      pen.fillRect(size.gutter - 1, top, 1, size.height);
    }
    if (crosshair >= size.gutter) {
      pen.fillStyle = colours.muted;
      pen.globalAlpha = 0.5;
      pen.fillRect(Math.round(crosshair), top, 1, size.height);
      pen.globalAlpha = 1;
    }
  }

  function drawPoints(pen, row) {
    const until = timeOf(size.width + REACH);
    const y = row.y + row.marks;
    const drawnTo = new Float64Array(marks.length).fill(-1);
    const found = marks.map(() => []);
    // What began before the view may reach into it.
    const from = firstFrom(row.points, timeOf(size.gutter - REACH) - row.longest);
    for (let k = from; k < row.points.length; k++) {
      const at = row.points[k];
      if (start[at] > until) break;
      const x = xOf(start[at]);
      const mark = markOf[at];
      const width = xOf(start[at] + duration[at]) - x;
      // Of those of a kind at one pixel one is drawn: 10,000 there look the same.
      if (x - drawnTo[mark] < 1 && width < REACH) continue;
      drawnTo[mark] = x;
      found[mark].push([x, width]);
    }
    // Binds lie under drifts, and those under failures: what is rare is not hidden by what is not.
    found.forEach((places, mark) => {
      for (const [x, width] of places) drawPoint(pen, mark, x, y, width);
    });
  }

  function drawPoint(pen, mark, x, y, width) {
    pen.fillStyle = colours[marks[mark].kind];
    if (width >= REACH) {
      pen.fillRect(x, y - 1, width, 2);
      pen.fillRect(x + width - 1, y - 4, 1, 8);
    }
    pen.translate(x, y);
    // An edge of the ground's colour keeps marks apart that lie on one another.
    pen.strokeStyle = colours.ground;
    pen.lineWidth = 2;
    pen.stroke(marks[mark].shape);
    pen.fill(marks[mark].shape, "evenodd");
    pen.translate(-x, -y);
  }

  function drawBars(pen, row) {
    const until = timeOf(size.width);
    const drawnTo = new Float64Array(MOST_LINES).fill(-1e9);
    for (const at of row.bars) {
      if (start[at] > until) break;
      const { x, y, width: full, height } = placeOf(at, row);
      const width = full > 6 ? full - 1 : full;  // a gap before the next one
      const right = x + width;
      if (right < size.gutter || right - drawnTo[lineOf[at]] < 0.5) continue;
      drawnTo[lineOf[at]] = right;
      const generation = generations.get(at);
      const left = Math.max(x, size.gutter - 4);
      const first = generation && generation.first !== null ? xOf(start[at] + generation.first) : right;
      const solid = Math.min(Math.max(first, left), right);
      pen.fillStyle = colours.pale;
      pen.fillRect(left, y, Math.min(right, size.width + 4) - left, height);
      pen.fillStyle = colours.generation;
      pen.fillRect(solid, y, Math.max(Math.min(right, size.width + 4) - solid, 0), height);
      if (width >= 6) {
        pen.strokeStyle = colours.generation;
        pen.lineWidth = 1;
        pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
        // The moment of the first token stands out of the bar, on both sides.
        if (first < right) pen.fillRect(solid - 1, y - 2, 2, height + 4);
      }
      if (failed(at)) drawPoint(pen, FAILURE, Math.max(right - 8, x), y + height / 2, 0);
      if (!generation || width < 40) continue;
      const room = Math.min(right, size.width) - Math.max(solid, size.gutter) - (failed(at) ? 16 : 0);
      const words = tokens(generation.output);
      if (pen.measureText(words).width + 12 > room) continue;
      pen.fillStyle = colours["on-bar"];
      pen.fillText(words, Math.max(solid, size.gutter) + 6, y + height / 2 + 0.5);
    }
  }

  function ring(pen, at, colour, width, dashes) {
    const place = placeOf(at);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.setLineDash(dashes);
    pen.beginPath();
    if (place.width === undefined) pen.arc(place.x, place.y, 8.5, 0, 2 * Math.PI);
    else pen.rect(place.x - 1.5, place.y - 1.5, place.width + 3, place.height + 3);
    pen.stroke();
    pen.setLineDash([]);
  }

  // Steps of the axis: powers of ten up to 10 s, and then what a clock has.
  const CLOCK_STEPS = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200]
    .map((seconds) => seconds * 1e9);

  function stepOf(least) {
    const clockStep = CLOCK_STEPS.find((step) => step >= least);
    if (least > 5e9 && clockStep) return clockStep;
    const unit = least > 5e9 ? 86400e9 : 1;
    const power = 10 ** Math.floor(Math.log10(least / unit));
    return unit * power * [1, 2, 5, 10].find((step) => step * power >= (least / unit) * 0.9999);
  }

  function ticksOf({ from, to }) {
    const step = stepOf(Math.max(((to - from) * 96) / plotWidth(), 1));
    const [unit, per] = UNITS.find(([, per]) => to < per * 1000) ?? UNITS[3];
    const asClock = to >= 120e9;
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / (asClock ? 1e9 : per)) - 1e-9));
    const found = [];
    for (let k = Math.ceil(from / step); k * step <= to; k++) {
      const ns = k * step;
      const label = ns === 0 ? "0" : asClock ? clock(ns, decimals) : `${(ns / per).toFixed(decimals)} ${unit}`;
      found.push({ x: xOf(ns), label });
    }
    return found;
  }

  function drawAxis() {
    const pen = surface(axis, lanesBox.parentElement.clientWidth, 24);
    pen.textBaseline = "middle";
    pen.font = `11px ${colours.font}`;
    pen.textAlign = "left";
    let free = size.gutter;
    for (const { x, label } of ticksOf(view)) {
      pen.fillStyle = colours.line;
      pen.fillRect(Math.round(x), 15, 1, 9);
      const width = pen.measureText(label).width;
      const left = Math.min(Math.max(x - width / 2, size.gutter + 4), size.width - width - 4);
      if (left < free) continue;
      pen.fillStyle = colours.muted;
      pen.fillText(label, left, 10);
      free = left + width + 8;
    }
    if (size.gutter) {
      pen.fillStyle = colours.muted;
      const there = crosshair >= size.gutter;
      pen.fillText(there ? `at ${after(Math.max(timeOf(crosshair), 0))}` : "after the first span", EDGE, 12);
      pen.fillStyle = colours.line;
      pen.fillRect(size.gutter - 1, 0, 1, 24);
    }
    byId("across").textContent = view.from === 0 && view.to === total
      ? length(total)
      : `${length(view.to - view.from)} of ${length(total)}`;
    byId("in").disabled = view.to - view.from <= LEAST * 1.001;
    byId("out").disabled = byId("all").disabled = view.from === 0 && view.to === total;
  }

  const overviewX = (ns) => size.gutter + EDGE + (ns / total) * plotWidth();

  function drawOverview() {
    const height = 30;
    const pen = surface(overview, lanesBox.parentElement.clientWidth, height);
    const bins = Math.max(Math.floor(plotWidth() / 3), 1);
    const heights = new Float64Array(bins);
    const failures = new Set();
    for (let at = 0; at < count; at++) {
      if (!shown[at]) continue;
      const bin = Math.min(Math.floor((start[at] / total) * bins), bins - 1);
      heights[bin]++;
      if (failed(at)) failures.add(bin);
    }
    const most = Math.log1p(Math.max(...heights, 1));
    const [left, right] = [overviewX(view.from), overviewX(view.to)];
    if (view.from > 0 || view.to < total) {
      pen.fillStyle = colours.selected;
      pen.fillRect(left, 0, Math.max(right - left, 2), height);
    }
    heights.forEach((number, bin) => {
      if (!number) return;
      const x = size.gutter + EDGE + bin * 3;
      const tall = Math.max((Math.log1p(number) / most) * (height - 9), 3);
      pen.globalAlpha = x + 2 < left || x > right ? 0.45 : 1;
      pen.fillStyle = colours.muted;
      pen.fillRect(x, height - 1 - tall, 2, tall);
      // Where failures are, a notch above says so.
      pen.fillStyle = colours.explained;
      if (failures.has(bin)) pen.fillRect(x, 2, 2, 4);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = colours.accent;
    if (view.from > 0 || view.to < total) {
      pen.fillRect(left - 1, 0, 2, height);
      pen.fillRect(Math.max(right, left + 2) - 1, 0, 2, height);
    }
    pen.fillStyle = colours.muted;
    pen.font = `11px ${colours.font}`;
    pen.textBaseline = "middle";
    if (size.gutter) {
      pen.fillText("spans over time", EDGE, height / 2);
      pen.fillStyle = colours.line;
      pen.fillRect(size.gutter - 1, 0, 1, height);
    }
  }

  /** Write the names of the lanes in view, into as many elements as there are. */
  function nameLanes() {
    const found = visible();
    while (names.children.length < found.length) {
      const box = element("div");
      box.append(element("bdi"), element("small"));
      names.append(box);
    }
    while (names.children.length > found.length) names.lastChild.remove();
    found.forEach((row, k) => {
      const box = names.children[k];
      const [name, side] = box.children;
      const lane = row.lane ?? row.title;
      box.className = row.title ? "process" : "";
      name.textContent = row.title ? `process ${processName(lane)}` : cut(threadName(lane), 200);
      side.textContent = row.title ? `${whole.format(row.threads)} ${row.threads === 1 ? "thread" : "threads"}` : lane.id;
      box.style.top = `${row.y - lanesBox.scrollTop}px`;
      const height = row.title || !size.named ? Math.min(row.height, 28) - 1 : size.named + MARGIN;
      box.style.height = `${height}px`;
      box.style.lineHeight = `${height}px`;
      box.style.width = `${size.gutter ? size.gutter - 1 : size.width}px`;
    });
  }

  // --- Moving about.

  const LEAST = 200;

  function look(from, to) {
    const across = Math.min(Math.max(to - from, LEAST), total);
    const middle = (from + to) / 2;
    view.from = Math.min(Math.max(middle - across / 2, 0), total - across);
    view.to = across === total ? total : view.from + across;
    draw();
  }

  function zoom(factor, about = (view.from + view.to) / 2) {
    look(about - (about - view.from) * factor, about + (view.to - about) * factor);
  }

  const pan = (part) => {
    const by = (view.to - view.from) * part;
    look(view.from + by, view.to + by);
  };

  /** Bring a shown span into view. */
  function reveal(at) {
    const across = view.to - view.from;
    const end = start[at] + duration[at];
    if (end < view.from || start[at] > view.to || (start[at] < view.from && markOf[at] !== BAR)) {
      const middle = Math.min(end - start[at], across * 0.8) / 2 + start[at];
      look(middle - across / 2, middle + across / 2);
    }
    const row = rows[rowOfLane[laneOf[at]]];
    const top = lanesBox.scrollTop;
    if (row.y < top) lanesBox.scrollTop = row.y;
    else if (row.y + row.height > top + size.height) {
      lanesBox.scrollTop = row.y + row.height - size.height;
    }
    draw();
  }

  // --- The tooltip, and what is said to those who cannot see the canvas.

  const tip = byId("tip");

  function hover(at, more = 0, x = 0, y = 0) {
    if (at < 0) {
      tip.hidden = true;
      if (hovered >= 0) draw();
      hovered = -1;
      return;
    }
    if (hovered !== at) {
      hovered = at;
      const lane = lanes[laneOf[at]];
      const title = element("strong");
      title.append(icon(at), element("bdi", cut(text("kind", at), 40)));
      tip.replaceChildren(title, terms([
        ["thread", threadName(lane)],
        ["at", after(start[at])],
        ["took", length(duration[at])],
        ["stream", text("stream", at)],
        ["entry point", text("entry", at)],
        [failed(at) ? "error" : generations.has(at) ? "outcome" : "handles", gist(at)],
      ], 240));
      if (more) tip.append(element("p", `and ${whole.format(more)} more here: zoom in to tell them apart`));
      draw();
    }
    tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = tip;
    const room = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(Math.min(x + 14, room - width - 8), 8)}px`;
    tip.style.top = `${y + 18 + height > innerHeight ? Math.max(y - height - 12, 4) : y + 18}px`;
  }

  function say(at) {
    const lane = lanes[laneOf[at]];
    const row = rows[rowOfLane[laneOf[at]]];
    byId("said").textContent =
      `${cut(text("kind", at), 40)}, thread ${cut(threadName(lane), 80)}, at ${after(start[at])}, ` +
      `took ${length(duration[at])}, ${cut(gist(at), 200)}; ` +
      `${row.spans.indexOf(at) + 1} of ${row.spans.length} on this thread`;
  }

  function focus(at) {
    focused = at;
    reveal(at);
    say(at);
    const { x, y, height = 0 } = placeOf(at);
    const box = canvas.getBoundingClientRect();
    hover(at, 0, box.left + Math.max(x, size.gutter), box.top + y + height - lanesBox.scrollTop);
  }

  function select(at) {
    selected = at;
    const details = byId("details");
    if (at < 0) {
      details.replaceChildren(element("p", "Select a mark of the timeline or a row of the table.", { class: "muted" }));
      byId("said").textContent = "";
    } else {
      const lane = lanes[laneOf[at]];
      const generation = generations.get(at) ?? {};
      const title = element("h3");
      title.append(icon(at), element("bdi", cut(text("kind", at), 80)));
      details.replaceChildren(title, terms([
        ["error", text("error", at), "error"],
        ["began", wallClock(start[at])],
        ["at", after(start[at])],
        ["took", length(duration[at])],
        ["first token", generation.first == null ? "" : `after ${length(generation.first)}`],
        ["speed", generation.speed == null ? "" : `${threeDigits(generation.speed)} tokens/s`],
        ["generated", generation.output == null ? "" : tokens(generation.output)],
        ["prompt", generation.input == null ? "" : tokens(generation.input)],
        ["finish", generation.finish],
        ["end", generation.end],
        ["operation", generation.operation],
        ["model", generation.model],
        ["thread", threadName(lane)],
        ["thread id", lane.id, "mono"],
        ["process", processName(lane), "mono"],
        ["mode", text("mode", at)],
        ["stream", text("stream", at), "mono"],
        ["entry point", text("entry", at), "mono"],
        ["handles", text("handles", at), "mono"],
        ["trace", text("trace", at), "mono"],
        ["span", text("span", at), "mono"],
        ["parent", text("parent", at), "mono"],
      ], 20000));
      details.scrollTop = 0;
    }
    draw();
    markRows();
  }

  // --- The table: one page of it.

  const PAGE = 50;
  const numbers = (a, b) => a - b;
  const words = new Intl.Collator("en", { numeric: true }).compare;
  const COLUMNS = [
    { title: "Time", key: (at) => start[at], by: numbers, right: true, show: (at) => after(start[at]) },
    { title: "Kind", key: (at) => text("kind", at), by: words, marked: true },
    { title: "Thread", key: (at) => threadName(lanes[laneOf[at]]), by: words },
    { title: "Process", key: (at) => processName(lanes[laneOf[at]]), by: words },
    { title: "Mode", key: (at) => text("mode", at), by: words },
    { title: "Stream", key: (at) => text("stream", at), by: words },
    { title: "Took", key: (at) => duration[at], by: numbers, right: true, show: (at) => length(duration[at]) },
    { title: "Entry point", key: (at) => text("entry", at), by: words },
    { title: "Error, tokens or handles", key: gist, by: words, rest: true },
  ];
  const sorting = { column: 0, down: false };
  let ordered = [];
  let page = 0;

  function order() {
    ordered = [];
    for (let at = 0; at < count; at++) if (shown[at]) ordered.push(at);
    const { key, by } = COLUMNS[sorting.column];
    if (sorting.column > 0) {
      const keys = new Map(ordered.map((at) => [at, key(at)]));
      ordered.sort((a, b) => by(keys.get(a), keys.get(b)) || a - b);
    }
    if (sorting.down) ordered.reverse();
    [...byId("columns").children].forEach((cell, column) => {
      if (column !== sorting.column) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    });
  }

  function rowOf(at) {
    const row = element("tr", "", { "data-at": at });
    COLUMNS.forEach((column, k) => {
      const content = cut(column.show ? column.show(at) : String(column.key(at)), 300);
      const cell = element("td");
      if (k === 0) cell.append(element("button", content, { type: "button", tabindex: -1 }));
      else if (column.marked) cell.append(icon(at), element("bdi", content));
      else cell.append(element("bdi", content));
      if (column.right) cell.className = "right";
      if (column.rest) {
        cell.className = failed(at) ? "rest failed" : "rest";
        cell.title = content;
      }
      row.append(cell);
    });
    return row;
  }

  function turnTo(wanted) {
    const pages = Math.max(Math.ceil(ordered.length / PAGE), 1);
    page = Math.min(Math.max(wanted, 0), pages - 1);
    const from = page * PAGE;
    const here = ordered.slice(from, from + PAGE);
    byId("rows").replaceChildren(...here.map(rowOf));
    byId("place").textContent = here.length
      ? `${whole.format(from + 1)}–${whole.format(from + here.length)} of ${whole.format(ordered.length)}`
      : "none";
    byId("first").disabled = byId("previous").disabled = page === 0;
    byId("next").disabled = byId("last").disabled = page === pages - 1;
    markRows();
  }

  /** Mark the row that is selected; the Tab key reaches it, or the first one if there is none. */
  function markRows() {
    const found = [...byId("rows").children];
    let reached = found[0];
    for (const row of found) {
      const current = Number(row.dataset.at) === selected;
      if (current) reached = row;
      if (current) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
      row.querySelector("button").tabIndex = -1;
    }
    if (reached) reached.querySelector("button").tabIndex = 0;
  }

  /** Turn the table to the span that was selected in the timeline. */
  function turnToSpan(at) {
    const place = ordered.indexOf(at);
    if (place >= 0 && Math.floor(place / PAGE) !== page) turnTo(Math.floor(place / PAGE));
  }

  // --- Hands: keys, pointer, wheel.

  /** The spans of the lane above or below, and the one of them that is nearest in time. */
  function nextLane(at, by) {
    for (let k = rowOfLane[laneOf[at]] + by; k >= 0 && k < rows.length; k += by) {
      const { spans } = rows[k];
      if (!spans) continue;
      const right = Math.min(firstFrom(spans, start[at]), spans.length - 1);
      const left = Math.max(right - 1, 0);
      const distance = (k) => Math.abs(start[spans[k]] - start[at]);
      return spans[distance(left) < distance(right) ? left : right];
    }
    return at;
  }

  function along(at, by) {
    const { spans } = rows[rowOfLane[laneOf[at]]];
    return spans[Math.min(Math.max(spans.indexOf(at) + by, 0), spans.length - 1)];
  }

  function several(at, by) {
    for (let k = 0; k < 8; k++) at = nextLane(at, by);
    return at;
  }

  const MOVES = {
    ArrowLeft: (at) => along(at, -1),
    ArrowRight: (at) => along(at, 1),
    ArrowUp: (at) => nextLane(at, -1),
    ArrowDown: (at) => nextLane(at, 1),
    PageUp: (at) => several(at, -1),
    PageDown: (at) => several(at, 1),
    Home: (at) => along(at, -Infinity),
    End: (at) => along(at, Infinity),
  };
  const SHIFTED = {
    ArrowLeft: () => pan(-0.2),
    ArrowRight: () => pan(0.2),
    ArrowUp: () => lanesBox.scrollBy(0, -60),
    ArrowDown: () => lanesBox.scrollBy(0, 60),
  };
  const aboutFocus = () =>
    focused >= 0 && start[focused] >= view.from && start[focused] <= view.to ? start[focused] : undefined;
  const ACTIONS = {
    "+": () => zoom(0.5, aboutFocus()),
    "=": () => zoom(0.5, aboutFocus()),
    "-": () => zoom(2, aboutFocus()),
    "0": () => look(0, total),
    Enter: () => { if (focused >= 0) { select(focused); turnToSpan(focused); } },
    " ": () => ACTIONS.Enter(),
    Escape: () => { if (tip.hidden) select(-1); else hover(-1); },
  };

  function firstFocus() {
    if (selected >= 0 && shown[selected]) return selected;
    const row = visible().find(({ spans }) => spans);
    return row ? row.spans[Math.min(firstFrom(row.spans, view.from), row.spans.length - 1)] : -1;
  }

  lanesBox.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = MOVES[event.key];
    const act = event.shiftKey && SHIFTED[event.key] ? SHIFTED[event.key] : ACTIONS[event.key];
    if (act) {
      if (event.key !== "Escape") hover(-1);
      act();
    } else if (move) {
      const next = focused < 0 ? firstFocus() : move(focused);
      if (next >= 0) focus(next);
    } else return;
    event.preventDefault();
  });
  lanesBox.addEventListener("focus", () => {
    if (focused < 0 && lanesBox.matches(":focus-visible")) {
      const at = firstFocus();
      if (at >= 0) focus(at);
    }
    draw();
  });
  lanesBox.addEventListener("blur", () => { hover(-1); draw(); });
  lanesBox.addEventListener("scroll", draw, { passive: true });
  lanesBox.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      zoom(Math.exp(Math.min(Math.max(event.deltaY, -200), 200) * 0.003), timeOf(event.offsetX));
    } else if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) {
      pan(sideways / plotWidth());
    } else return;
    hover(-1);
    event.preventDefault();
  }, { passive: false });

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (drag) {
      const by = event.clientX - drag.x;
      drag.moved ||= Math.abs(by) > 4;
      if (drag.moved) {
        hover(-1);
        canvas.classList.add("dragged");
        const ns = (by / plotWidth()) * (drag.to - drag.from);
        look(drag.from - ns, drag.to - ns);
      }
      return;
    }
    const found = hit(x, y);
    canvas.classList.toggle("on-mark", found !== null);
    hover(found ? found.at : -1, found?.more, event.clientX, event.clientY);
    crosshair = x;
    draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag?.moved;
    drag = null;
    canvas.classList.remove("dragged");
    if (moved) return;
    const box = canvas.getBoundingClientRect();
    const found = hit(event.clientX - box.left, event.clientY - box.top);
    focused = found ? found.at : -1;
    select(focused);
    if (found) turnToSpan(found.at);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { hover(-1); crosshair = -1; draw(); });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeOf(event.offsetX)));

  function centreOverview(event) {
    if (!(event.buttons & 1)) return;
    const x = event.clientX - overview.getBoundingClientRect().left;
    const middle = ((x - size.gutter - EDGE) / plotWidth()) * total;
    const across = view.to - view.from;
    look(middle - across / 2, middle + across / 2);
  }
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    // Of a view of everything there is nothing to move: look closer at where the pointer is.
    if (view.from === 0 && view.to === total) look(0, total / 5);
    centreOverview(event);
  });
  overview.addEventListener("pointermove", centreOverview);

  byId("in").addEventListener("click", () => zoom(0.5, aboutFocus()));
  byId("out").addEventListener("click", () => zoom(2, aboutFocus()));
  byId("all").addEventListener("click", () => look(0, total));
  byId("filters").addEventListener("input", filter);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hover(-1); });
  document.addEventListener("click", (event) => {
    const keys = document.querySelector(".keys");
    if (!keys.contains(event.target)) keys.open = false;
  });

  byId("first").addEventListener("click", () => turnTo(0));
  byId("previous").addEventListener("click", () => turnTo(page - 1));
  byId("next").addEventListener("click", () => turnTo(page + 1));
  byId("last").addEventListener("click", () => turnTo(Infinity));
  byId("rows").addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (!row || String(getSelection())) return;  // somebody copies text
    const at = Number(row.dataset.at);
    select(at);
    focused = at;
    reveal(at);
  });
  byId("rows").addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const to = { ArrowUp: row.previousElementSibling, ArrowDown: row.nextElementSibling }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (!to) return;
    event.target.tabIndex = -1;
    const button = to.querySelector("button");
    button.tabIndex = 0;
    button.focus();
  });

  // --- Start.

  COLUMNS.forEach((column, k) => {
    const cell = element("th", "", { scope: "col" });
    if (column.right) cell.className = "right";
    const button = element("button", column.title, { type: "button" });
    button.addEventListener("click", () => {
      sorting.down = sorting.column === k && !sorting.down;
      sorting.column = k;
      order();
      turnTo(0);
    });
    cell.append(button);
    byId("columns").append(cell);
  });
  byId("began").textContent = wallClock(0);
  byId("lasted").textContent = `, ${length(total)}`;
  readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    draw();
  });
  select(-1);
  filter();
  new ResizeObserver(measure).observe(lanesBox.parentElement);
  new ResizeObserver(measure).observe(lanesBox);
  measure();
  requestAnimationFrame(() => {
    performance.mark("ready");
    document.documentElement.dataset.ready = "true";
  });
})();
