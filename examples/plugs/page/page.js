"use strict";
const KEYS = { gateway: "g", server: "s", superlink: "l" };
const keyOf = (name) => KEYS[name] || String(Number(name.split("-").pop()) + 1);
const firstOf = (each) => Object.keys(each.buttons)[0];
const stateOf = (each) => each.faults.join(", ") || (each.running ? "runs" : "is not there");
let processes = [];

async function press(name, button) {
  await fetch("/press", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ name, button }),
  });
  await look();
}

function row(...cells) {
  const line = document.createElement("tr");
  for (const content of cells) {
    const cell = document.createElement("td");
    cell.append(content);
    line.append(cell);
  }
  return line;
}

function buttonsOf(each) {
  const all = document.createElement("span");
  for (const [name, label] of Object.entries(each.buttons)) {
    const made = document.createElement("button");
    const key = keyOf(each.name);
    const keys = { [firstOf(each)]: ` [${key}]`, stop: ` [Shift ${key}]` };
    made.textContent = label + (keys[name] || "");
    made.addEventListener("click", () => press(each.name, name));
    all.append(made);
  }
  return all;
}

async function look() {
  const answer = await fetch("/state");
  if (!answer.ok) return;
  const state = await answer.json();
  const before = JSON.stringify(processes);
  processes = state.processes;
  const accuracy = state.accuracy === null ? "not measured yet" : state.accuracy.toFixed(3);
  document.getElementById("run").textContent = state.serves
    ? `${state.phase}; ${state.exchanges} exchanges, ${state.counted} steps counted, accuracy ${accuracy}`
    : "fedgc serve has ended: the run is lost";
  document.getElementById("rounds").textContent = state.rounds.map(([at, outcome]) => `${at} ${outcome}`).join("  ");
  if (JSON.stringify(processes) !== before) { // keeps the focus of a button
    document.getElementById("processes").replaceChildren(
      ...processes.map((each) =>
        row(each.name, stateOf(each), buttonsOf(each))),
    );
  }
  document.getElementById("presses").replaceChildren(
    ...state.presses.reverse().map((each) =>
      row(new Date(1000 * each.at).toLocaleTimeString(), each.name, each.button, String(each.round), each.outcome || "…")),
  );
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  const key = event.code.replace(/^(Digit|Key)/, "").toLowerCase();
  const found = processes.find((each) => keyOf(each.name) === key);
  if (found) press(found.name, event.shiftKey ? "stop" : firstOf(found));
});
look();
setInterval(look, 1000);
