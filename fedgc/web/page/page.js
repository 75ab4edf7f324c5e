// The page: draws one stream of events from the server; it makes no request to another machine.

import { Chart, bytes, digits, expectation, seconds, strip, timeline } from "./charts.js";

const at = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const wanted = { // the request to the server, also in the page's address
  run: asked.get("run") ?? "", sort: asked.get("sort") ?? "name", find: asked.get("find") ?? "",
  page: Number(asked.get("page") ?? 0),
};
let shown = null, stream = null, round = null, asking = null;
let instead = ""; // why the next picture is not of the run that was asked for

const cursor = {
  at: null, picked: null,
  move(to) {
    if (to === this.at) return;
    this.at = to;
    for (const chart of allCharts()) if (chart.data) chart.point();
  },
  pick(index) {
    at("follow").checked = false;
    openRound(shown?.series.last[index]);
  },
};
const measures = new Map(); // a chart for each measure of the evaluation, by its name
const charts = {
  loss: new Chart(at("loss"), "Loss", digits, cursor),
  time: new Chart(at("time"), "Time of a round", seconds, cursor),
  work: new Chart(at("work"), "Work a round", digits, cursor),
  bytes: new Chart(at("bytes"), "Bytes", bytes, cursor),
};

function allCharts() {
  return [...measures.values(), ...Object.values(charts)];
}

// ---- small helpers

function unit() {
  return shown?.task === "stock" ? "answers" : shown?.work === "local" ? "steps" : "chunks";
}

function text(id, words, kind) {
  at(id).textContent = words;
  if (kind !== undefined) at(id).className = kind;
}

function row(cells) {
  const made = document.createElement("tr");
  for (const cell of cells) {
    const td = document.createElement("td");
    if (cell instanceof Node) td.append(cell);
    else td.textContent = cell;
    made.append(td);
  }
  return made;
}

function span(words, kind) {
  return Object.assign(document.createElement("span"), { textContent: words, className: kind });
}

function percent(part, whole) {
  return whole ? `${digits((100 * part) / whole)} %` : "–";
}

function ago(moment) {
  if (!moment) return "–";
  const gone = Math.max(0, Date.now() / 1000 - moment);
  if (gone < 2) return "now";
  if (gone < 90) return `${Math.round(gone)} s ago`;
  if (gone < 5400) return `${Math.round(gone / 60)} min ago`;
  return gone < 129600 ? `${Math.round(gone / 3600)} h ago` : `${Math.round(gone / 86400)} d ago`;
}

function roundLink(number) {
  const link = Object.assign(document.createElement("button"), { type: "button", className: "link", textContent: number });
  link.addEventListener("click", () => {
    at("follow").checked = false;
    openRound(number);
    at("round").scrollIntoView({ block: "nearest" });
  });
  return link;
}

function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// ---- the snapshot

function showPicture(picture) {
  const newer = shown === null || shown.now.run !== picture.now.run;
  shown = picture;
  const held = document.activeElement, table = held.closest("tbody"), words = held.textContent;
  cursor.at = cursor.at === null ? null : Math.min(cursor.at, picture.series.last.length - 1);
  text("trouble", instead);
  at("trouble").hidden = !instead;
  instead = "";
  document.title = `${picture.now.run} – fedgc`;
  showRuns();
  showNow(picture.now);
  showFigures();
  showCharts();
  showPlan();
  showFleet();
  showFaults();
  showRecord();
  showQueue();
  showTable();
  showSettings();
  if (table && !held.isConnected) // a link of a table that was drawn again
    [...table.querySelectorAll("button")].find((each) => each.textContent === words)?.focus({ preventScroll: true });
  const last = picture.series.last.at(-1) ?? null;
  if (last === null) showNoRound();
  else if (newer || at("follow").checked || round === null) openRound(last);
  else showSteps();
}

function showRuns() {
  const options = shown.runs.map(({ run, state }) =>
    new Option(`${run}${state === "running" ? " (running)" : ""}`, run, false, run === shown.now.run));
  if (!shown.runs.some(({ run }) => run === shown.now.run)) options.unshift(new Option(shown.now.run, shown.now.run, false, true));
  if (document.activeElement !== at("run")) at("run").replaceChildren(...options);
  text("about", `${shown.task}, begun ${new Date(shown.now.started * 1000).toLocaleString()}`);
}

function showNow(now) {
  if (shown) shown.now = now;
  const kinds = { running: "good", completed: "good", failed: "bad", stopped: "warn", crashed: "bad" };
  const dead = now.state === "running" && now.silent_s > 0;
  text("state", dead ? `silent for ${seconds(now.silent_s)}` : now.state, `badge ${dead ? "bad" : (kinds[now.state] ?? "warn")}`);
  const running = now.state === "running";
  const number = Math.min(now.round, now.rounds || now.round);
  const over = shown?.series.last.at(-1) ?? number; // a resumed run has rounds before the server tells its state
  text("now-round", over === 0 && now.round === 0 ? "No round yet"
    : !running ? `${capital(now.state)} after round ${over}`
    : now.round === 0 ? `Goes on after round ${over}` : `Round ${now.round} of ${now.rounds}, ${now.phase}`);
  const bar = at("cover");
  bar.setAttribute("aria-valuemax", running ? now.chunks : now.rounds);
  const done = running ? now.covered : (shown?.totals.rounds ?? 0), all = running ? now.chunks : (shown?.totals.wanted ?? 0);
  bar.setAttribute("aria-valuenow", done);
  bar.firstElementChild.style.width = `${all ? Math.min(100, (100 * done) / all) : 0}%`;
  const words = running
    ? [`${now.covered} of ${now.chunks} ${shown?.work === "local" ? "clients are done" : "chunks have a replica"}`, now.replicas ? `${now.replicas} aimed for` : "", `${now.present} of ${now.clients} clients here`]
    : [`${shown?.totals.rounds ?? 0} of ${shown?.totals.wanted ?? "–"} rounds`, now.ended > now.started ? `took ${seconds(now.ended - now.started)}` : "", now.reason];
  text("now-words", words.filter(Boolean).join(" · "));
  at("why").replaceChildren(...(now.why ?? []).map((line) => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  }));
  for (const [client, finished] of Object.entries(now.finished ?? {})) {
    const cell = document.querySelector(`[data-now="${CSS.escape(client)}"]`);
    if (cell) cell.textContent = running ? finished : "–";
  }
}

function showFigures() {
  const { totals, series, faults } = shown;
  const metrics = totals.measure ? series.metrics[totals.measure] : [];
  const last = (values) => values.findLast((value) => value !== null) ?? null;
  const scored = shown.fleet.measures.includes(totals.measure);
  const { saved } = totals, refused = faults.filter((each) => each.refused).length;
  const facts = [
    [capital(totals.measure ?? "accuracy"), digits(last(metrics)), scored ? "mean of the clients, newest" : "on the server, newest"],
    ["Loss", digits(last(series.loss)), "of the clients, newest"],
    ["Time of a round", seconds(totals.median_s), "median of the newest"],
    ["Work that counted", percent(totals.counted, totals.finished), `${totals.counted} of ${totals.finished} ${unit()}`],
    ["Sent", bytes(saved ? saved.sent : series.up_bytes.reduce((sum, each, i) => sum + (each + series.down_bytes[i] + series.control_bytes[i]) * (series.last[i] - series.first[i] + 1), 0)),
      totals.model_bytes ? `a model is ${bytes(totals.model_bytes)}` : "all that crossed the line"],
    savedOrCost(saved),
    ["Rounds", `${totals.rounds}${totals.wanted ? ` of ${totals.wanted}` : ""}`,
      [`${totals.synced} synced`, totals.skipped && `${totals.skipped} skipped`, totals.approximate && `${totals.approximate} approximate`].filter(Boolean).join(", ")],
    ["Samples counted", totals.coverage === null ? "–" : `${Math.floor(100 * totals.coverage)}%`, totals.left_out || "of all that clients have, newest round"],
    ["Faults", faults.length >= 30 ? "30 or more" : `${faults.length}`,
      [`in ${shown.fault_rounds} rounds`, refused && `${refused} refused`, `${totals.repairs} ${totals.repairs === 1 ? "upload" : "uploads"} repaired`].filter(Boolean).join("; ")],
  ];
  if (totals.best) facts.push(["Best model", `version ${totals.best.version}`, `round ${totals.best.round}, ${totals.best.figure} ${digits(totals.best.value)}`]);
  if (totals.left_s !== null) facts.push(["Time left", `about ${seconds(totals.left_s)}`, "at the median of the newest rounds"]);
  at("figures").replaceChildren(...facts.map(([name, value, says]) => {
    const group = document.createElement("div");
    group.append(
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value }),
      Object.assign(document.createElement("dd"), { textContent: says }),
    );
    return group;
  }));
}

function savedOrCost(saved) {
  if (!saved) return ["Saved", "–", "the model's size is not known"];
  const less = saved.plain - saved.sent;
  const parts = `plain averaging sends ${bytes(saved.plain)}; ${part(shown.work === "coded" ? "code" : "rest", saved.by_code)}, ${part("gate", saved.by_gate)}`;
  return less >= 0 ? ["Bytes saved", percent(less, saved.plain), parts] : ["Bytes added", percent(-less, saved.plain), `more than by plain averaging: ${parts}`];
}

function part(name, saves) {
  return saves >= 0 ? `the ${name} saves ${bytes(saves)}` : `the ${name} costs ${bytes(-saves)}`;
}

function measureChart(name) {
  if (!measures.has(name)) {
    const figure = Object.assign(document.createElement("figure"), { id: `measure-${name}` });
    at("loss").before(figure);
    measures.set(name, new Chart(figure, capital(name), digits, cursor));
  }
  return measures.get(name);
}

function showMeasures(series, main) {
  const { first, last } = series;
  const names = Object.keys(series.metrics).filter((name) => name !== "loss");
  const order = [...new Set([main ?? "accuracy", ...names])];
  for (const [name, chart] of measures) {
    if (order.includes(name)) continue;
    chart.svg.parentElement.remove();
    measures.delete(name);
  }
  for (const name of order) {
    const values = series.metrics[name];
    measureChart(name).show({ first, last, lines: values ? [{ name: "model", key: "counted", values }] : [] });
  }
}

function showSettings() {
  const place = at("settings").querySelector(".scroll");
  if (!at("settings").open) return place.replaceChildren();
  const table = document.createElement("table"), head = table.createTHead().insertRow();
  for (const name of ["Setting", "Value", ""]) head.append(Object.assign(document.createElement("th"), { scope: "col", textContent: name }));
  const body = table.createTBody();
  for (const { name, value, usual } of shown.settings)
    body.append(row([name, value === "" ? "–" : String(value), usual ? span("the default", "muted") : span("set", "")]));
  place.replaceChildren(table);
}

function showCharts() {
  const { series, totals, plans } = shown, { first, last } = series;
  charts.work.title = `${capital(unit())} a round`;
  showMeasures(series, totals.measure);
  const marks = plans.map((plan) => plan.round).filter((number) => number > (first[0] ?? 0));
  const measured = Object.keys(series.metrics);
  const losses = [{ name: "clients", key: "counted", values: series.loss }];
  if (measured.includes("loss")) losses.push({ name: "model", key: "up", values: series.metrics.loss });
  charts.loss.show({ first, last, lines: losses });
  const bands = plans.map((plan, index) => plan.band_s && {
    from: plan.round, to: (plans[index - 1]?.round ?? (last.at(-1) ?? 0) + 1) - 1, low: plan.band_s[0], high: plan.band_s[1],
  }).filter(Boolean);
  charts.time.show({ first, last, bands, marks, layers: [
    { name: "working", key: "counted", values: series.working_s }, { name: "collecting", key: "up", values: series.collecting_s },
  ] });
  charts.work.show({ first, last, layers: [
    { name: "counted", key: "counted", values: series.counted }, { name: "discarded", key: "discarded", values: series.discarded },
  ] });
  charts.bytes.show({ first, last, layers: [
    { name: "up", key: "up", values: series.up_bytes }, { name: "down", key: "down", values: series.down_bytes },
    { name: "control", key: "control", values: series.control_bytes },
  ], lines: series.plain_bytes ? [{ name: "plain", key: "plain", values: series.plain_bytes }] : [] });
}

function showPlan() {
  const plan = shown.plans[0];
  for (const id of ["plan-band", "plans"]) at(id).replaceChildren();
  if (!plan) return text("plan-choice", "No plan yet"), text("plan-reason", "");
  text("plan-choice", `${plan.replicas ?? "–"} ${plan.replicas === 1 ? "replica" : "replicas"}, ${plan.most_blocks > 1 ? `up to ${plan.most_blocks} blocks` : "no code"}, deadline ${seconds(plan.deadline_s)}`);
  text("plan-reason", `${plan.reason}. Holds from round ${plan.round}; made from ${plan.measured ? "measured speeds" : "assumed speeds: nothing was measured yet"}.`);
  if (plan.band_s) at("plan-band").append(expectation(plan, Math.max(120, at("plan-band").clientWidth)));
  const times = plan.predicted_s === null ? `Its rounds took ${seconds(plan.took_s)} (median).`
    : `Expected ${seconds(plan.predicted_s)} (${seconds(plan.band_s[0])} to ${seconds(plan.band_s[1])}); took ${seconds(plan.took_s)} (median).`;
  at("plan-band").append(Object.assign(document.createElement("p"), { className: "muted", textContent: times }));
  at("plans").replaceChildren(...shown.plans.map((each) => {
    const expected = each.band_s ? `${seconds(each.band_s[0])} to ${seconds(each.band_s[1])}` : "–";
    const made = row([roundLink(each.round), each.replicas ?? "–", each.most_blocks ?? "–", expected, seconds(each.took_s), each.reason]);
    made.lastElementChild.className = "wrap";
    return made;
  }));
}

function showFaults() {
  at("faults").replaceChildren(...(shown.faults.length ? shown.faults.map((each) => {
    const fault = [each.refused ? (each.refused > 1 ? `${each.refused} times refused` : "refused") : "", each.failure].filter(Boolean).join(": ");
    const when = each.round === null ? span("–", "muted") : roundLink(each.round);
    return row([when, each.name || each.client.slice(0, 12), span(fault, "bad")]);
  }) : [row([span(`None in the newest ${shown.fault_rounds} rounds.`, "muted"), "", ""])]));
}

function showRecord() {
  at("record").replaceChildren(...(shown.record.length ? shown.record.map((each) => {
    const made = row([new Date(each.at * 1000).toLocaleTimeString(), span(each.kind, each.kind === "refused" ? "warn" : ""), each.name || each.who.slice(0, 12), each.what]);
    made.lastElementChild.className = "wrap";
    return made;
  }) : [row([span("Nothing.", "muted"), "", "", ""])]));
}

function showQueue() {
  const kinds = { running: "good", failed: "bad", stopped: "warn" };
  at("queue").hidden = !shown.queue.length;
  at("queued").replaceChildren(...shown.queue.map((each) => {
    const made = row([each.entry, each.priority, each.run, span(each.state, kinds[each.state] ?? ""), new Date(each.added * 1000).toLocaleString(), each.reason]);
    made.lastElementChild.className = "wrap";
    return made;
  }));
}

function showTable() {
  const { series } = shown, place = at("as-table").querySelector(".scroll");
  if (!at("as-table").open) return place.replaceChildren();
  const names = Object.keys(series.metrics);
  const table = document.createElement("table"), head = table.createTHead().insertRow();
  for (const name of ["Rounds", ...names, "loss of clients", "working", "collecting", "counted", "discarded", "up", "down", "control", "plain averaging"])
    head.append(Object.assign(document.createElement("th"), { scope: "col", textContent: name }));
  const body = table.createTBody();
  series.last.forEach((last, i) => body.append(row([
    series.first[i] === last ? `${last}` : `${series.first[i]}–${last}`, ...names.map((name) => digits(series.metrics[name][i])),
    digits(series.loss[i]), seconds(series.working_s[i]), seconds(series.collecting_s[i]), digits(series.counted[i]), digits(series.discarded[i]),
    bytes(series.up_bytes[i]), bytes(series.down_bytes[i]), bytes(series.control_bytes[i]), bytes(series.plain_bytes?.[i]),
  ])));
  place.replaceChildren(table);
}

// ---- clients

function showFleet() {
  const { fleet } = shown, running = shown.now.state === "running";
  const most = Math.max(1, ...fleet.lines.flatMap((line) => line.strip.map((cell) => cell?.finished ?? 0)));
  document.documentElement.style.setProperty("--strip", `${Math.max(60, fleet.columns.length * 6)}px`);
  const [first, last] = [fleet.columns[0], fleet.columns.at(-1)];
  text("strip-title", fleet.columns.length ? `Rounds ${first} to ${last}` : "Newest rounds");
  text("fleet-count", `${fleet.clients} known, ${fleet.present} ${running ? "here" : "to its end"}` + (fleet.found < fleet.clients ? `, ${fleet.found} found` : ""));
  const pages = Math.max(1, Math.ceil(fleet.found / fleet.screen));
  text("page", `${fleet.page + 1} of ${pages}`);
  at("fewer").disabled = fleet.page === 0;
  at("more").disabled = fleet.page + 1 >= pages;
  wanted.page = fleet.page;
  at("clients").replaceChildren(...fleet.lines.map((line) => clientRow(line, most, running)));
}

function clientRow(line, most, running) {
  const name = document.createElement("span");
  name.append(line.name || line.client.slice(0, 12));
  if (line.name) name.append(" ", Object.assign(document.createElement("small"), { textContent: line.client.slice(0, 8) }));
  if (line.site) name.append(" ", Object.assign(document.createElement("small"), { textContent: line.site }));
  const here = line.present === true ? (running ? "here" : "to its end") : line.present === false ? "gone" : "–";
  const state = span(line.link ? `${here}, ${line.link}` : here, line.present === false ? "dot gone bad" : line.present && running ? "dot good" : "muted");
  const faults = line.failures + line.refused;
  const made = row([
    name, state, strip(line.strip, most), running ? (shown.now.finished[line.client] ?? 0) : "–", seconds(line.step_s), line.load ?? "–",
    line.counted, line.finished - line.counted, bytes(line.sent_bytes), faults ? span(faults, "bad") : "0", ago(line.last_seen),
    Object.entries(line.metrics).map(([measure, value]) => `${measure} ${digits(value)}`).join(", ") || "–",
  ]);
  made.cells[3].dataset.now = line.client;
  made.cells[10].dataset.seen = line.last_seen ?? "";
  return made;
}

// ---- one round

function showNoRound() {
  round = null;
  text("round-title", "No round yet");
  text("round-words", "");
  at("bars").replaceChildren();
  at("earlier").disabled = at("later").disabled = true;
}

async function openRound(number) {
  if (number === undefined) return; // of a run without rounds
  asking?.abort();
  asking = new AbortController();
  try {
    const answer = await fetch(`/round?${new URLSearchParams({ run: shown.now.run, round: number })}`, { signal: asking.signal });
    const value = await answer.json();
    if (!answer.ok) throw new Error(value.error);
    round = value;
    showRound();
  } catch (error) {
    if (error.name !== "AbortError") complain(error.message);
  }
}

function newestRound(value) {
  if (!at("follow").checked) return;
  asking?.abort();
  round = value;
  showRound();
}

function showSteps() {
  const number = round?.round.row.round, { first, last } = shown.series;
  at("earlier").disabled = !round || number <= first[0];
  at("later").disabled = !round || number >= last.at(-1);
}

function showRound() {
  const { row: own, clients, finished, counted, up_bytes: up, down_bytes: down, control_bytes: control } = round.round;
  cursor.picked = own.round;
  for (const chart of allCharts()) if (chart.data) chart.point();
  showSteps();
  const kinds = { synced: "good", skipped: "muted" };
  at("round-title").replaceChildren(`Round ${own.round} `, span(own.outcome, kinds[own.outcome] ?? "warn"));
  const facts = [
    own.reason, `${seconds(own.working_s)} of work, ${seconds(own.collecting_s)} to collect`,
    shown.work === "local" ? "" : `${own.covered} of ${own.chunks} chunks covered`, own.short.length ? `short of ${own.short.length} chunks` : "",
    `${counted} of ${finished} ${shown.work === "local" ? unit() : "finished replicas"} counted`, own.blocks ? `${own.replicas} replicas, ${own.blocks} ${own.blocks === 1 ? "block" : "blocks"}` : "",
    own.amplification !== null ? `noise ×${digits(own.amplification)}` : "", own.error !== null ? `error ${digits(own.error)}` : "",
    shown.work === "local" ? "" : `${own.skips} skipped, ${own.takes} taken, ${own.pruned} pruned, ${own.repairs} repaired`,
    `${bytes(up)} up, ${bytes(down)} down, ${bytes(control)} of control`,
    ...Object.entries(own.metrics).map(([name, value]) => `${name} ${digits(value)}`),
  ];
  text("round-words", facts.filter(Boolean).join(" · "), "muted");
  drawBars();
  text("round-more", round.folded ? "Its client rows exist only as sums."
    : round.bars.length < clients ? `${round.bars.length} of ${clients} clients: those that failed, and others taken evenly by their time at work.` : "");
}

function drawBars() {
  if (round) at("bars").replaceChildren(...(round.bars.length ? [timeline(round, Math.max(320, at("bars").clientWidth), unit())] : []));
}

function step(by) {
  at("follow").checked = false;
  if (round) openRound(round.round.row.round + by);
}

// ---- the stream, and user input

function complain(words) {
  text("trouble", words);
  at("trouble").hidden = false;
}

function connect() {
  stream?.close();
  const words = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value && value !== "name"));
  history.replaceState(null, "", words.size ? `?${words}` : location.pathname);
  stream = new EventSource(`/stream?${words}`);
  stream.addEventListener("open", () => text("line", "live", "good"));
  stream.addEventListener("picture", (event) => showPicture(JSON.parse(event.data)));
  stream.addEventListener("round", (event) => newestRound(JSON.parse(event.data)));
  stream.addEventListener("now", (event) => showNow(JSON.parse(event.data)));
  stream.addEventListener("trouble", (event) => complain(JSON.parse(event.data)));
  stream.addEventListener("error", () => {
    text("line", stream.readyState === EventSource.CLOSED ? "refused" : "connecting again", "warn");
    if (stream.readyState === EventSource.CLOSED) explain(words);
  });
}

async function explain(words) {
  const answer = await fetch(`/picture?${words}`).catch(() => null);
  if (!answer || answer.ok) return;
  const error = (await answer.json().catch(() => ({}))).error ?? `status ${answer.status}`;
  complain(error);
  if (answer.status !== 404 || !wanted.run) return;
  instead = `${error}; this is the newest run`;
  ask({ run: "", page: 0 });
}

function ask(changes) {
  Object.assign(wanted, changes);
  connect();
}

const THEMES = ["auto", "light", "dark"];
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("fedgc-theme", name);
  text("theme", `Theme: ${name}`);
}

let typing = null;
at("run").addEventListener("change", (event) => { round = null; at("follow").checked = true; ask({ run: event.target.value, page: 0 }); });
at("sort").addEventListener("change", (event) => ask({ sort: event.target.value, page: 0 }));
at("find").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => ask({ find: event.target.value, page: 0 }), 250);
});
at("fewer").addEventListener("click", () => ask({ page: wanted.page - 1 }));
at("more").addEventListener("click", () => ask({ page: wanted.page + 1 }));
at("earlier").addEventListener("click", () => step(-1));
at("later").addEventListener("click", () => step(1));
at("follow").addEventListener("change", (event) => { if (event.target.checked && shown) openRound(shown.series.last.at(-1)); });
at("settings").addEventListener("toggle", () => { if (shown) showSettings(); });
at("as-table").addEventListener("toggle", () => { if (shown) showTable(); });
at("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("fedgc-theme") ?? "auto") + 1) % 3]));
new ResizeObserver(drawBars).observe(at("bars"));
setInterval(() => {
  for (const cell of document.querySelectorAll("[data-seen]")) cell.textContent = ago(Number(cell.dataset.seen));
}, 1000);
theme(localStorage.getItem("fedgc-theme") ?? "auto");
at("sort").value = wanted.sort;
at("find").value = wanted.find;
connect();
