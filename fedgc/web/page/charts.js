// Charts as SVG: lines, stacked bars, the timeline of a round, the strip of a client. No library, no build.

const NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 138, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 18;

export function draw(name, attributes = {}, ...inside) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const size = Math.abs(count);
  for (const [unit, factor] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (size >= factor) return `${digits(count / factor)} ${unit}`;
  return `${Math.round(count)} B`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 5400) return `${digits(value / 3600)} h`;
  if (value >= 100) return `${Math.floor(value / 60)} min` + (value % 60 < 1 ? "" : ` ${Math.floor(value % 60)} s`);
  return value >= 1 || value === 0 ? `${digits(value)} s` : `${digits(value * 1000)} ms`;
}

export function digits(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 || size === 0 ? 2 : size >= 0.01 ? 3 : 4)
    .replace(/^(-?\d+\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

/** The unit whose round numbers are short as times up to `top`: `16 min 40 s` has no room at an axis. */
function unitOf(top) {
  return top >= 5400 ? 3600 : top >= 100 ? 60 : 1;
}

/** The round numbers between `low` and `high`, about `count` of them. */
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const scale = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * scale).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-6; at++) found.push(at * step);
  return found;
}

/**
 * One chart of the run, drawn again by `show`. `layers` are stacked bars, `lines` are drawn over them,
 * each {name, key, values}; `words` turns a value into text. All charts share `cursor`, an index or null.
 */
export class Chart {
  constructor(figure, title, words, cursor) {
    Object.assign(this, { title, words, cursor, data: null });
    this.caption = document.createElement("figcaption");
    this.svg = draw("svg", {
      height: HEIGHT, tabindex: 0, role: "slider", "aria-label": `${title}, by round`, "aria-valuemin": 0,
    });
    figure.append(this.caption, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.cursor.move(this.nearest(event)));
    this.svg.addEventListener("pointerleave", () => this.cursor.move(null));
    this.svg.addEventListener("click", (event) => this.cursor.pick(this.nearest(event)));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.cursor.move(null));
    new ResizeObserver(() => this.redraw()).observe(figure);
  }

  show(data) {
    this.data = data;
    this.redraw();
  }

  nearest(event) {
    const { first, last } = this.data;
    const inside = (event.clientX - this.svg.getBoundingClientRect().left - LEFT) / this.width();
    const round = first[0] - 0.5 + inside * (last.at(-1) - first[0] + 1);
    const found = last.findIndex((each) => round <= each + 0.5);
    return found < 0 ? last.length - 1 : found;
  }

  key(event) {
    const length = this.data?.last.length ?? 0;
    const at = this.cursor.at ?? length - 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: length - 1 }[event.key];
    if (to !== undefined && length) this.cursor.move(Math.max(0, Math.min(length - 1, to)));
    else if (event.key === "Enter" && length) this.cursor.pick(at);
    else return;
    event.preventDefault();
  }

  width() {
    return Math.max(60, this.svg.parentElement.clientWidth - 24 - LEFT - RIGHT);
  }

  redraw() {
    if (!this.data) return;
    const { first, last, layers = [], lines = [], bands = [], marks = [], zero = layers.length > 0 } = this.data;
    const height = HEIGHT - TOP - BOTTOM, width = this.width();
    this.svg.setAttribute("viewBox", `0 0 ${width + LEFT + RIGHT} ${HEIGHT}`);
    const low = first[0] - 0.5, span = (last.at(-1) ?? 0) + 0.5 - low || 1;
    const x = (round) => LEFT + ((round - low) / span) * width;
    const tops = last.map((_, at) => layers.reduce((sum, layer) => sum + (layer.values[at] ?? 0), 0));
    const seen = [...(layers.length ? tops : []), ...lines.flatMap((line) => line.values)]
      .concat(bands.map((band) => band.high)).filter((value) => value !== null && value !== undefined);
    if (!seen.length) {
      this.svg.replaceChildren(draw("text", { x: LEFT, y: TOP + height / 2 }, "nothing measured yet"));
      return this.say();
    }
    let [bottom, top] = [zero ? 0 : Math.min(...seen), Math.max(...seen)];
    if (top === bottom) [bottom, top] = top < 0 ? [top, 0] : [0, top || 1];
    if (!zero) bottom = Math.max(bottom - (top - bottom) * 0.06, bottom >= 0 ? 0 : -Infinity);
    top += (top - bottom) * 0.06;
    const y = (value) => TOP + height - ((value - bottom) / (top - bottom)) * height;
    const parts = [];
    const unit = this.words === seconds ? unitOf(top) : 1;
    for (const at of ticks(bottom / unit, top / unit, 4).map((each) => each * unit)) {
      parts.push(draw("path", { class: "grid", d: `M${LEFT} ${Math.round(y(at)) + 0.5}h${width}` }));
      parts.push(draw("text", { x: LEFT - 6, y: y(at) + 3.5, "text-anchor": "end" }, this.words(at)));
    }
    for (const at of ticks(first[0], last.at(-1), Math.max(2, Math.min(6, width / 70))).filter(Number.isInteger))
      parts.push(draw("text", { x: x(at), y: HEIGHT - 4, "text-anchor": "middle" }, `${at}`));
    for (const band of bands) {
      const from = Math.max(x(band.from - 0.5), LEFT), to = Math.min(x(band.to + 0.5), LEFT + width);
      if (to > from)
        parts.push(draw("rect", {
          class: "band", x: from, width: to - from, y: y(band.high), height: Math.max(1, y(band.low) - y(band.high)),
        }));
    }
    const base = last.map(() => 0);
    const gap = width / last.length > 5 ? 1 : 0;
    for (const layer of layers) {
      let path = "";
      layer.values.forEach((value, at) => {
        if (!value) return;
        const from = x(first[at] - 0.5), to = x(last[at] + 0.5), under = y(base[at]);
        base[at] += value;
        path += `M${from.toFixed(1)} ${under.toFixed(1)}H${(to - gap).toFixed(1)}V${y(base[at]).toFixed(1)}H${from.toFixed(1)}z`;
      });
      parts.push(draw("path", { class: `f-${layer.key}`, d: path }));
    }
    for (const line of lines) {
      let path = "", end = null;
      line.values.forEach((value, at) => {
        if (value === null || value === undefined) return;
        end = [x(last[at]), y(value)];
        path += `${path ? "L" : "M"}${end[0].toFixed(1)} ${end[1].toFixed(1)}`;
      });
      if (!end) continue;
      parts.push(draw("path", { class: `l-${line.key}`, d: path }));
      if (line.key !== "plain") parts.push(draw("circle", { class: `f-${line.key}`, cx: end[0], cy: end[1], r: 2.6 }));
    }
    for (const mark of marks)
      if (mark >= first[0]) parts.push(draw("path", { class: "plans", d: `M${x(mark - 0.5)} ${TOP}v${height}` }));
    parts.push(draw("path", { class: "axis", d: `M${LEFT} ${TOP + height + 0.5}h${width}` }));
    this.lines = draw("g");
    this.svg.replaceChildren(...parts, this.lines);
    this.place = { x, height };
    this.point();
  }

  /** Show the cursor, and announce the values there. */
  point() {
    this.say();
    if (!this.place || !this.lines) return;
    const { x, height } = this.place, { first, last } = this.data, parts = [];
    const rule = (at, kind) => draw("path", { class: kind, d: `M${x((first[at] + last[at]) / 2)} ${TOP}v${height}` });
    const picked = last.findIndex((each, at) => first[at] <= this.cursor.picked && this.cursor.picked <= each);
    if (picked >= 0) parts.push(rule(picked, "pick"));
    if (this.cursor.at !== null && this.cursor.at < last.length) {
      const at = this.cursor.at, said = first[at] === last[at] ? `${last[at]}` : `${first[at]}–${last[at]}`;
      const middle = x((first[at] + last[at]) / 2), wide = 7 * said.length + 8;
      parts.push(rule(at, "cursor"), draw("rect", { class: "f-muted", x: middle - wide / 2, y: HEIGHT - 15, width: wide, height: 15, rx: 3 }));
      parts.push(draw("text", { class: "label", x: middle, y: HEIGHT - 3.5, "text-anchor": "middle" }, said));
    }
    this.lines.replaceChildren(...parts);
  }

  say() {
    const { first, last, layers = [], lines = [] } = this.data;
    const at = Math.min(this.cursor.at ?? last.length - 1, last.length - 1);
    const all = [...layers, ...lines];
    const value = (one) => {
      let from = at;
      while (this.cursor.at === null && from > 0 && (one.values[from] ?? null) === null) from--;
      return one.values[from] ?? null;
    };
    const rounds = at < 0 ? "no round yet" : first[at] === last[at] ? `round ${last[at]}` : `rounds ${first[at]}–${last[at]}`;
    const said = all.map((one) => `${one.name} ${value(one) === null ? "–" : this.words(value(one))}`).join(", ");
    const keys = all.map((one) => Object.assign(document.createElement("span"), {
      className: `key ${one.key}`, textContent: `${one.name} ${value(one) === null ? "–" : this.words(value(one))}`,
    }));
    const title = Object.assign(document.createElement("b"), { textContent: this.title });
    this.caption.replaceChildren(title, ...keys);
    this.svg.setAttribute("aria-valuemax", Math.max(0, last.length - 1));
    this.svg.setAttribute("aria-valuenow", Math.max(0, at));
    this.svg.setAttribute("aria-valuetext", `${rounds}: ${said}`);
  }
}

/** The timeline of one round: each client's work, in `unit`, as it was done, counted and sent; a narrow one has labels above. */
export function timeline(shown, width, unit) {
  const row = shown.round.row, head = 18, narrow = width < 560, thick = 11;
  const later = row.outcome === "skipped"; // its work can still be in the sum of a later round
  const [high, name, facts, below] = narrow ? [32, 0, 16, 16] : [17, 132, 170, 3];
  const end = Math.max(row.working_s + row.collecting_s,
    ...shown.bars.map(({ row: own }) => Math.max(own.download_s + own.busy_s, row.working_s + own.upload_s))) || 1;
  const room = Math.max(80, width - name - facts), x = (at) => name + (at / end) * room;
  const height = head + shown.bars.length * high + 6;
  const parts = [];
  for (const at of ticks(0, end, Math.max(2, Math.min(8, room / 90)))) {
    parts.push(draw("path", { class: "grid", d: `M${Math.round(x(at)) + 0.5} ${head - 4}V${height}` }));
    parts.push(draw("text", { x: x(at), y: 10, "text-anchor": at ? "middle" : "start" }, seconds(at)));
  }
  shown.bars.forEach(({ name: called, client, row: own }, at) => {
    const y = head + at * high, said = called || client.slice(0, 12);
    const bar = (from, long, kind) => {
      if (long > 0) parts.push(draw("rect", { class: `f-${kind}`, x: x(from), y: y + below, width: Math.max(0.75, (long / end) * room), height: thick, rx: 1 }));
    };
    parts.push(draw("text", { class: "label", x: 0, y: y + 12.5 }, said.length > 20 ? `${said.slice(0, 19)}…` : said));
    bar(0, own.download_s, "down");
    const good = later ? own.busy_s : own.finished ? (own.busy_s * own.counted) / own.finished : 0;
    bar(own.download_s, good, "counted");
    bar(own.download_s + good, own.busy_s - good, "discarded");
    bar(Math.max(row.working_s, own.download_s + good), own.upload_s, "up"); // a client may train while it sends
    if (own.failure) {
      const cross = x(own.download_s + own.busy_s) + 8, middle = y + below + thick / 2;
      parts.push(draw("path", { class: "l-fault", d: `M${cross - 3.5} ${middle - 3.5}l7 7m0 -7l-7 7` }));
    }
    const work = later ? "counts in a later sum" : `${own.counted} of ${own.finished} counted`;
    const words = work + (own.failure ? `, ${own.failure}` : `, ${bytes(own.up_bytes)} up`);
    const place = narrow ? { x: width, "text-anchor": "end" } : { x: name + room + 12 };
    parts.push(draw("text", { ...place, y: y + 12.5 }, words.length > 32 ? `${words.slice(0, 31)}…` : words));
  });
  parts.push(draw("path", { class: "cursor", d: `M${x(row.working_s)} ${head - 4}V${height}` }));
  const label = shown.bars.map(({ name: called, client, row: own }) =>
    `${called || client}: ${own.counted} of ${own.finished} ${unit} counted in ${seconds(own.busy_s)}${own.failure ? `, failed: ${own.failure}` : ""}`).join("; ");
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...parts);
}

/** The newest rounds of a client: one bar per round, its height is the number of finished chunks. */
export function strip(cells, most) {
  const high = 22, wide = 6, paths = { counted: "", discarded: "", muted: "", fault: "" };
  cells.forEach((cell, at) => {
    const x = at * wide;
    if (!cell) {
      paths.muted += `M${x + 1} ${high - 2}h${wide - 2}v1h-${wide - 2}z`;
      return;
    }
    const good = ((cell.later ? cell.finished : cell.counted) / most) * (high - 3), all = Math.max((cell.finished / most) * (high - 3), good);
    if (good > 0) paths.counted += `M${x} ${high}h${wide - 1}v-${good.toFixed(1)}h-${wide - 1}z`;
    if (all > good) paths.discarded += `M${x} ${(high - good).toFixed(1)}h${wide - 1}v-${(all - good).toFixed(1)}h-${wide - 1}z`;
    if (cell.failure) paths.fault += `M${x} 0h${wide - 1}v${wide - 2}h-${wide - 1}z`;
  });
  const seen = cells.filter(Boolean), failed = seen.filter((cell) => cell.failure).length;
  const label = `worked in ${seen.length} of the newest ${cells.length} rounds` + (failed ? `, failed in ${failed}` : "");
  const parts = Object.entries(paths).filter(([, path]) => path).map(([key, d]) => draw("path", { class: `f-${key}`, d }));
  return draw("svg", { viewBox: `0 0 ${Math.max(1, cells.length) * wide} ${high}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...parts);
}

/** The predicted and the measured time of a plan, on one axis. */
export function expectation(plan, width) {
  const [low, high] = plan.band_s, took = plan.took_s, top = Math.max(high, took ?? 0) * 1.1 || 1;
  const x = (at) => (at / top) * (width - 2), parts = [
    draw("rect", { class: "f-muted", x: 0, y: 11, width, height: 2 }),
    draw("rect", { class: "f-discarded", x: x(low), y: 7, width: Math.max(2, x(high) - x(low)), height: 10, rx: 2 }),
    draw("rect", { class: "f-counted", x: x(plan.predicted_s) - 1, y: 4, width: 2, height: 16 }),
  ];
  if (took !== null) parts.push(draw("circle", { class: low <= took && took <= high ? "f-up" : "f-fault", cx: x(took), cy: 12, r: 4 }));
  const label = `expected ${seconds(plan.predicted_s)}, between ${seconds(low)} and ${seconds(high)}; took ${seconds(took)}`;
  return draw("svg", { viewBox: `0 0 ${width} 24`, height: 24, role: "img", "aria-label": label }, ...parts);
}
