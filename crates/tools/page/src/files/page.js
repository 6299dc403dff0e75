// Keeps the page true while it is looked at. What the server draws is put in place as it comes; the map, the list and
// the matrix, which have thousands of parts, are drawn here. Text of nodes is set as text, never as HTML.
"use strict";

const root = document.documentElement;
root.classList.add("js");
const at = (id) => document.getElementById(id);
const { node: shownNode, network: shownNetwork } = document.body.dataset;
const counted = new Intl.NumberFormat("en");

// --- What is known --------------------------------------------------------------------------

const rows = new Map();
let order = [];
let found = [];
let seen = null; // how one node sees the others: id → number
let seenFrom = null;
let mesh = null;

const SIGN = { "not-ready": "✕", "cut-off": "✕", unreached: "!", silent: "!", but: "~", mute: "?", unasked: "?", whole: "✓" };
const RANK = Object.keys(SIGN);
const WORDS = {};
for (const option of document.querySelectorAll("#state option")) WORDS[option.value] = option.textContent;

const collator = new Intl.Collator("en", { numeric: true });

function takeNodes({ whole, rows: changed, gone }) {
  if (whole) rows.clear();
  for (const [id, name, subnet, address, health, why, backend, ends] of changed) {
    const text = `${name} ${subnet} ${address}`.toLowerCase();
    rows.set(id, { id, name, subnet, address, health, why, backend, ends, text });
  }
  for (const id of gone) rows.delete(id);
  if (whole || changed.length || gone.length) {
    order = [...rows.values()].sort((one, other) => collator.compare(one.id, other.id));
    filter();
  }
}

// --- Filter and list ------------------------------------------------------------------------

const ROW = 36;
const list = at("list");

function filter() {
  const text = at("q").value.trim().toLowerCase();
  const state = at("state").value;
  const isMeant = (row) => (!state || row.health === state) && (!text || row.text.includes(text));
  for (const row of order) row.meant = isMeant(row);
  found = order.filter((row) => row.meant);
  found.sort((one, other) => RANK.indexOf(one.health) - RANK.indexOf(other.health));
  const all = counted.format(order.length);
  at("found").textContent = found.length === order.length ? `${all} nodes, the worst first` : `${counted.format(found.length)} of ${all} nodes`;
  for (const link of document.querySelectorAll("[data-state]")) link.classList.toggle("chosen", Boolean(state) && link.dataset.state === state);
  drawList();
  drawMap();
}

function cell(tag, text, name) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function drawRow(row) {
  const line = document.createElement("tr");
  const mark = cell("span", SIGN[row.health], `mark ${row.health}`);
  mark.setAttribute("aria-hidden", "true");
  const state = cell("td", ` ${WORDS[row.health]}`);
  state.prepend(mark);
  const link = cell("a", row.name);
  link.href = addressOf(row.id);
  const name = cell("th", "");
  name.scope = "row";
  name.append(link);
  const why = cell("td", row.why ?? "", "why");
  if (row.why) why.title = row.why;
  line.append(state, name, cell("td", row.subnet, "mono"), cell("td", row.address, "mono"), why);
  return line;
}

// Only the rows that can be seen are there, however many nodes there are.
function drawList() {
  const body = list.querySelector("tbody");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 10);
  const last = Math.min(found.length, first + Math.ceil(list.clientHeight / ROW) + 20);
  const space = (count) => {
    const line = cell("tr", "", "space");
    line.setAttribute("aria-hidden", "true");
    line.style.height = `${count * ROW}px`;
    return line;
  };
  const focused = document.activeElement?.closest("#list a")?.getAttribute("href");
  const lines = found.slice(first, last).map(drawRow);
  if (first > 0) lines.unshift(space(first));
  if (last < found.length) lines.push(space(found.length - last));
  body.replaceChildren(...lines);
  list.querySelector("table").setAttribute("aria-rowcount", String(found.length + 1));
  if (focused) body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

const network = shownNetwork ? `network=${encodeURIComponent(shownNetwork)}` : "";

function addressOf(id) {
  return `/node/${encodeURIComponent(id)}${network && `?${network}`}`;
}

// --- Colours --------------------------------------------------------------------------------

let colours = {};
function readColours() {
  const style = getComputedStyle(root);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  colours = {
    whole: of("map-whole"), but: of("warn"), silent: of("warn"), unreached: of("warn"), "not-ready": of("bad"), "cut-off": of("bad"),
    mute: of("calm"), unasked: of("free"), free: of("free"), ink: of("ink"), muted: of("muted"), card: of("card"), focus: of("focus"),
    good: of("good"), bad: of("bad"), warn: of("warn"), calm: of("calm"), leased: of("leased"),
    heat: [0, 1, 2, 3, 4].map((step) => of(`heat${step}`)),
  };
}
readColours();

// What is not a round trip in microseconds, as mesh.rs has it.
const CELLS = {
  "-1": ["itself", "free"], "-2": ["programmed", "good"], "-3": ["incomplete", "bad"], "-4": ["vanished", "calm"],
  "-5": ["unusable", "bad"], "-6": ["not known", "unasked"], "-7": ["unreachable", "bad"],
};

function scale(values) {
  const times = values.filter((value) => value >= 0);
  if (!times.length) return null;
  // By steps that an eye can tell apart: each a few times the one before.
  const low = Math.max(1, times.reduce((a, b) => Math.min(a, b)));
  // What differs little looks alike.
  const high = Math.max(times.reduce((a, b) => Math.max(a, b)), low * 12);
  const step = (value) => Math.min(4, Math.max(0, Math.floor((5 * Math.log(Math.max(value, 1) / low)) / Math.log(high / low))));
  return { low, high, step };
}

function colourOf(value, by) {
  return value >= 0 && by ? colours.heat[by.step(value)] : colours[CELLS[value]?.[1] ?? "unasked"];
}

const inMs = (micros) => `${(micros / 1000).toFixed(micros < 10000 ? 2 : 0)} ms`;
const isBroken = (value) => value === -3 || value === -5 || value === -7;
const wordsOf = (value) => (value >= 0 ? inMs(value) : CELLS[value]?.[0] ?? "not known");

// --- The map --------------------------------------------------------------------------------

const map = at("map");
let tiles = { columns: 1, width: 1, height: 1 };
let pointed = -1;

function sizes(count, width) {
  if (count <= 40) {
    const columns = Math.max(1, Math.min(count, Math.floor(width / 165)));
    return { columns, width: width / columns, height: 46, named: true };
  }
  for (const side of [30, 26, 22, 18, 15, 13, 11, 9, 8, 7]) {
    const columns = Math.floor(width / side);
    if (Math.ceil(count / columns) * side <= 460 || side === 7) return { columns, width: side, height: side };
  }
}

function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

let mapDue = 0;
function drawMap() {
  if (mapDue || !map) return;
  mapDue = requestAnimationFrame(() => {
    mapDue = 0;
    drawMapNow();
  });
}

function drawMapNow() {
  const width = map.clientWidth;
  if (!width || !order.length) return;
  tiles = sizes(order.length, width);
  const lines = Math.ceil(order.length / tiles.columns);
  const pen = prepare(map, width, lines * tiles.height);
  const by = seen && scale([...seen.values()]);
  const gap = tiles.named ? 8 : tiles.width > 12 ? 3 : tiles.width > 8 ? 2 : 1;
  order.forEach((row, index) => {
    const x = (index % tiles.columns) * tiles.width;
    const y = Math.floor(index / tiles.columns) * tiles.height;
    const fill = seen ? colourOf(seen.get(row.id) ?? -6, by) : colours[row.health];
    pen.globalAlpha = row.meant ? 1 : 0.16;
    pen.fillStyle = !seen && tiles.named && row.health === "whole" ? colours.good : fill;
    const [wide, high] = [tiles.width - gap, tiles.height - gap];
    if (tiles.named) {
      drawNamed(pen, row, x, y, wide, high);
    } else if (tiles.width > 12) {
      pen.beginPath();
      pen.roundRect(x, y, wide, high, 3);
      pen.fill();
    } else {
      pen.fillRect(x, y, wide, high);
    }
    if (index === pointed) {
      pen.globalAlpha = 1;
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x + 0.5, y + 0.5, wide - 1, high - 1);
    }
  });
  pen.globalAlpha = 1;
  const wrong = order.filter((row) => !["whole", "but", "mute", "unasked"].includes(row.health)).length;
  map.setAttribute("aria-label", `Map of ${counted.format(order.length)} nodes, ${counted.format(wrong)} of them need attention`);
  at("view").replaceChildren(...legend(by));
}

function drawNamed(pen, row, x, y, wide, high) {
  const alpha = pen.globalAlpha;
  pen.globalAlpha = alpha * 0.14;
  pen.beginPath();
  pen.roundRect(x, y, wide, high, 7);
  pen.fill();
  pen.globalAlpha = alpha;
  pen.beginPath();
  pen.roundRect(x, y, 5, high, [7, 0, 0, 7]);
  pen.fill();
  pen.fillStyle = colours.ink;
  pen.font = "600 13px system-ui, 'DejaVu Sans', sans-serif";
  pen.fillText(fit(pen, row.name, wide - 22), x + 14, y + high / 2 - 3);
  pen.fillStyle = colours.muted;
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  const second = seen ? wordsOf(seen.get(row.id) ?? -6) : row.health === "whole" ? row.subnet : WORDS[row.health];
  pen.fillText(fit(pen, second, wide - 22), x + 14, y + high / 2 + 13);
}

function fit(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

function swatch(colour, words) {
  const item = cell("span", words);
  const box = document.createElement("i");
  box.style.background = colour;
  item.prepend(box);
  return item;
}

function legend(by) {
  const box = cell("span", "", "legend");
  if (seen) {
    const from = rows.get(seenFrom);
    box.append(cell("span", `as ${from ? from.name : seenFrom} sees them:`));
    if (by) colours.heat.forEach((colour, step) => box.append(swatch(colour, heatWords(by, step))));
    const present = new Set([...seen.values()].filter((value) => value < -1));
    for (const value of present) box.append(swatch(colourOf(value), CELLS[value][0]));
    const back = cell("a", "by health");
    back.href = `/${network && `?${network}`}`;
    box.append(back);
  } else {
    const present = RANK.filter((health) => order.some((row) => row.health === health));
    for (const health of present) box.append(swatch(colours[health], WORDS[health]));
  }
  return [box];
}

function heatWords({ low, high }, step) {
  const edge = (number) => low * (high / low) ** (number / 5);
  return step === 0 ? `up to ${inMs(edge(1))}` : step === 4 ? `over ${inMs(edge(4))}` : `to ${inMs(edge(step + 1))}`;
}

function point(index) {
  if (index < 0 || index >= order.length) return;
  pointed = index;
  const row = order[index];
  const said = [row.subnet, row.address, WORDS[row.health]];
  if (seen) said.push(wordsOf(seen.get(row.id) ?? -6));
  if (row.why) said.push(row.why);
  at("pointed").replaceChildren(cell("b", row.name), ` · ${said.join(" · ")}`);
  drawMap();
}

function indexAt(event) {
  const box = map.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / tiles.width);
  const index = Math.floor((event.clientY - box.top) / tiles.height) * tiles.columns + column;
  return column < tiles.columns && index < order.length ? index : -1;
}

function watchMap() {
  map.addEventListener("pointermove", (event) => point(indexAt(event)));
  map.addEventListener("click", (event) => {
    const row = order[indexAt(event)];
    if (row) location.href = addressOf(row.id);
  });
  map.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -tiles.columns, ArrowDown: tiles.columns };
    if (event.key in steps) {
      point(pointed < 0 ? 0 : Math.min(order.length - 1, Math.max(0, pointed + steps[event.key])));
    } else if (event.key === "Home" || event.key === "End") {
      point(event.key === "Home" ? 0 : order.length - 1);
    } else if (event.key === "Enter" && order[pointed]) {
      location.href = addressOf(order[pointed].id);
    } else {
      return;
    }
    event.preventDefault();
  });
}

async function seeAs(id) {
  const query = new URLSearchParams({ node: id });
  if (shownNetwork) query.set("network", shownNetwork);
  const answer = await fetch(`/page/seen?${query}`);
  if (!answer.ok) {
    at("pointed").textContent = `How this node sees others is not known: ${await answer.text()}`;
    return;
  }
  seen = new Map(await answer.json());
  seenFrom = id;
  drawMap();
}

// --- The matrix -----------------------------------------------------------------------------

const matrix = at("matrix");
let grid = null;

function drawMatrix() {
  const section = at("mesh");
  section.hidden = !mesh?.cells || mesh.order.length < 2;
  if (section.hidden) return;
  const count = mesh.order.length;
  const names = mesh.order.map((id) => rows.get(id)?.name ?? id);
  const room = section.clientWidth - 40;
  const side = Math.max(6, Math.min(44, Math.floor((room - 130) / count)));
  const isNamed = side >= 11;
  const left = isNamed ? 130 : 0;
  const top = isNamed ? 96 : 0;
  grid = { side, left, top, count, names };
  const width = left + side * count + (isNamed ? 60 : 0);
  matrix.style.width = `${width}px`;
  const pen = prepare(matrix, width, top + side * count);
  const flat = mesh.cells.flat();
  const by = scale(flat);
  const gap = side > 12 ? 2 : 1;
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  mesh.cells.forEach((line, from) => {
    if (isNamed) {
      pen.fillStyle = colours.ink;
      pen.textAlign = "right";
      pen.fillText(fit(pen, names[from], left - 10), left - 8, top + from * side + side / 2 + 4);
      pen.textAlign = "left";
      pen.save();
      pen.translate(left + from * side + side / 2 + 2, top - 8);
      pen.rotate(-Math.PI / 4);
      pen.fillText(fit(pen, names[from], 118), 0, 0);
      pen.restore();
    }
    line.forEach((value, to) => {
      pen.fillStyle = colourOf(value, by);
      pen.beginPath();
      pen.roundRect(left + to * side, top + from * side, side - gap, side - gap, Math.min(4, side / 5));
      pen.fill();
      // What is broken is told without colour, too.
      const text = isBroken(value) ? "✕" : value >= 0 && side >= 40 ? (value / 1000).toFixed(value < 10000 ? 2 : value < 100000 ? 1 : 0) : "";
      if (text && side >= 14) {
        pen.fillStyle = isBroken(value) || by.step(value) > 1 ? "#fff" : "#08121c";
        pen.textAlign = "center";
        pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
        pen.fillText(text, left + to * side + (side - gap) / 2, top + from * side + side / 2 + 3);
        pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
        pen.textAlign = "left";
      }
    });
  });
  const kinds = [...new Set(flat.filter((value) => value < -1))].sort();
  const swatches = kinds.map((value) => swatch(colourOf(value), CELLS[value][0]));
  if (by) swatches.unshift(...colours.heat.map((colour, step) => swatch(colour, heatWords(by, step))));
  at("mesh-legend").replaceChildren(...swatches);
  const broken = flat.filter(isBroken).length;
  const pairs = counted.format(count * (count - 1));
  const longest = by && inMs(flat.reduce((a, b) => Math.max(a, b)));
  const words = by ? `round trips from ${inMs(by.low)} to ${longest}` : "no round trips are known";
  at("mesh-note").textContent = `From each row to each column: ${pairs} ways, ${broken ? counted.format(broken) : "none"} of them broken; ${words}.`;
  matrix.setAttribute("aria-label", at("mesh-note").textContent);
}

matrix?.addEventListener("pointermove", (event) => {
  if (!grid) return;
  const box = matrix.getBoundingClientRect();
  const to = Math.floor((event.clientX - box.left - grid.left) / grid.side);
  const from = Math.floor((event.clientY - box.top - grid.top) / grid.side);
  const value = mesh.cells[from]?.[to];
  at("pair").textContent = value === undefined ? "" : `${grid.names[from]} → ${grid.names[to]}: ${wordsOf(value)}`;
});

// --- The stream -----------------------------------------------------------------------------

function place(parts) {
  for (const [id, html] of Object.entries(parts)) {
    const part = at(id);
    if (!part) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const scrolled = [...part.querySelectorAll("ul, ol, .scroll")].map((element) => element.scrollTop);
    // Drawn by the server, as the document itself: what nodes say is text in it.
    part.innerHTML = html;
    [...part.querySelectorAll("ul, ol, .scroll")].forEach((element, index) => (element.scrollTop = scrolled[index] ?? 0));
    if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    localTimes(part);
  }
}

function localTimes(part) {
  for (const time of part.querySelectorAll("time")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    time.title = time.dateTime;
    time.textContent = moment.toLocaleTimeString("en-GB");
  }
}

let stream = null;
function say(name, words) {
  at("live").className = name;
  at("live").textContent = words;
}

function listen() {
  const query = new URLSearchParams();
  if (shownNode) query.set("node", shownNode);
  if (shownNetwork) query.set("network", shownNetwork);
  stream = new EventSource(`/page/live?${query}`);
  stream.onmessage = (event) => {
    const message = JSON.parse(event.data);
    say("on", "live");
    place(message.parts);
    if (message.nodes) takeNodes(message.nodes);
    if (message.mesh) mesh = message.mesh;
    if (matrix && (message.mesh || message.nodes?.rows.length)) drawMatrix();
    root.dataset.messages = String(Number(root.dataset.messages ?? 0) + 1);
  };
  stream.onerror = () => {
    say("off", "not connected; trying again");
    // It is over when the answer was no: then the page says why.
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
}

// A tab that nobody sees costs nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.close();
    stream = null;
    say("", "paused");
  } else if (!stream) {
    listen();
  }
});

localTimes(document);
if (map) {
  watchMap();
  at("filter").addEventListener("submit", (event) => event.preventDefault());
  at("q").addEventListener("input", filter);
  at("state").addEventListener("change", filter);
  list.addEventListener("scroll", () => requestAnimationFrame(drawList), { passive: true });
  at("verdict").addEventListener("click", (event) => {
    const link = event.target.closest("[data-state]");
    if (!link) return;
    event.preventDefault();
    at("state").value = link.dataset.state;
    filter();
    at("nodes").scrollIntoView({ block: "start" });
  });
  const redraw = () => {
    readColours();
    drawMap();
    drawMatrix();
    drawList();
  };
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const from = new URLSearchParams(location.search).get("from");
  if (from) seeAs(from);
}
listen();
