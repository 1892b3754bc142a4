// Draws the steps and the table; `html.py` and `heatmap.py` worked out what each cell is and says.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en-US").format;
const written = (value) => (typeof value === "number" ? number(value) : value ?? "");
const some = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
const ROWS = 25; // of the heat map at a time
const PAGE = 25; // rows of the table at first
const state = { of: 0, view: 0, fold: false, row: 0, from: 1, to: 1, sort: "", down: true, kept: PAGE };
const where = Object.fromEntries(data.fields.map((field, place) => [field, place])); // in the row of a variable
const shift = data.first - 1; // from the numbers of steps in here to those of the run
let rows = []; // the cells of each row that is drawn
let cursor = null; // the cell that the keyboard is at, as [row, index]

const optimizer = () => data.optimizers[state.of];
const view = () => optimizer().views[state.view];
const length = () => state.to - state.from + 1;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Those of one size in the steps that are shown, as [first, last, number]; null if they are too many.
function unfold([size, ...cycles], most) {
  const found = [];
  for (const [first, turns, period, ...cycle] of cycles) {
    let at = first + Math.floor(Math.max(0, state.from - first) / period) * period;
    for (let i = 0; at < first + turns * period && at <= state.to; i = (i + 2) % cycle.length) {
      const each = size || cycle[i], end = at + cycle[i] * (size || 1);
      for (at = at + Math.floor(Math.max(0, Math.min(state.from, end) - at) / each) * each; at < end && at <= state.to; at += each) {
        if (found.push([at, Math.min(at + each - 1, view().steps), cycle[i + 1]]) > most) return null;
      }
      at = end;
    }
  }
  return found;
}

function cellsOf(members, row) {
  const { tracks, cells } = optimizer(), { sizes, since } = tracks[view().lanes[members[0][where.pattern]]];
  let found = null, size = 0;
  for (const each of sizes) [found, size] = found ? [found, size] : [unfold(each, each === sizes.at(-1) ? Infinity : data.most), each[0]];
  const variable = members[0][where.variable] + (members.length > 1 ? ` and ${number(members.length - 1)} more alike` : "");
  return found.map(([first, last, cell], index) => {
    const [color, mark, updates, weights] = cells[cell], begins = first <= since && since <= last ? since : 0;
    const steps = first === last ? ` ${number(first + shift)}` : `s ${number(first + shift)}-${number(last + shift)}`;
    const text = `${variable}, step${steps}, ${view().name}: ${updates}${weights && `. Weights: ${weights}`}`
      + (begins ? `; ${data.first_not_finite} after step ${number(begins + shift)}` : "");
    return { row, index, first, last, size, color, mark, begins, text, odd: optimizer().odd.includes(color) };
  });
}

function groups() { // the rows of the heat map: lists of variables
  const { variables } = optimizer(), lane = (each) => view().lanes[each[where.pattern]];
  return state.fold ? [...Map.groupBy(variables, lane).values()] : variables.map((each) => [each]);
}

// The names without the folders that all share, and without their middles where they are longer than
// `most`. All are cut in one way, so that no two become equal; if that cannot be, they are left whole.
function short(names, most) {
  let shared = names.length > 1 && names.some((name) => name.length > most) ? names[0].lastIndexOf("/") + 1 : 0;
  while (shared && !names.every((name) => name.startsWith(names[0].slice(0, shared))))
    shared = names[0].lastIndexOf("/", shared - 2) + 1;
  const rest = names.map((name) => (shared ? "…" : "") + name.slice(shared));
  for (const tail of [0.5, 0.75, 0.9, 0.25].map((part) => Math.round(part * most))) {
    const cut = rest.map((name) => (name.length <= most ? name
      : `${name.slice(0, most - 1 - tail)}…${name.slice(name.length - tail)}`));
    if (new Set(cut).size === new Set(names).size) return cut;
  }
  return names;
}

function drawHeat() {
  const all = groups(), { from, to } = state;
  state.row = Math.max(0, Math.min(state.row, Math.floor((all.length - 1) / ROWS) * ROWS));
  const shown = all.slice(state.row, state.row + ROWS);
  rows = shown.map(cellsOf);
  cursor = null;
  $("cell").textContent = "Hover over a cell, tap it, or use the arrow keys, to see its counts.";
  const names = short(shown.map(([first]) => first[where.variable]), $("heat").clientWidth < 500 ? 14 : 36);
  $("plot").replaceChildren(...rows.map((cells, row) => make("div", { class: "row" },
    make("div", { class: "name", title: shown[row][0][where.variable] },
      names[row] + (shown[row].length > 1 ? ` +${number(shown[row].length - 1)}` : "")),
    make("div", { class: "track" }, ...cells.flatMap(boxes)))), axis());
  for (const each of document.querySelectorAll(".per")) each.textContent = view().per;
  for (const [id, step] of [["from", from], ["to", to]])
    Object.assign($(id), { value: step + shift, min: data.first, max: view().steps + shift });
  $("rows-shown").textContent = `rows ${number(state.row + 1)}-${number(state.row + shown.length)} of ${number(all.length)}`;
  $("pager").hidden = all.length <= ROWS;
  $("rows-before").disabled = state.row === 0;
  $("rows-after").disabled = state.row + ROWS >= all.length;
  $("in").disabled = length() <= optimizer().grain;
  $("earlier").disabled = from === 1;
  $("later").disabled = to === view().steps;
  $("out").disabled = $("all").disabled = length() === view().steps;
  $("sums").hidden = rows.flat().every((each) => !each.size);
}

const percent = (step) => 100 * (step - state.from + 0.5) / length();

function boxes(cell) { // the cell, its mark, and where the variable began to be not finite
  const left = Math.max(0, percent(cell.first - 0.5)), right = Math.min(100, percent(cell.last + 0.5));
  const place = `left: ${left}%; width: ${right - left}%`;
  cell.drawn = make("i", { class: `cell ${cell.color} ${cell.odd ? "odd" : ""}`, style: place, "data-tip": cell.text });
  cell.drawn.addEventListener("click", () => point(cell.row, cell.index));
  return [cell.drawn, ...(cell.mark ? [make("i", { class: `mark ${cell.mark}`, style: place })] : []),
    ...(cell.begins ? [make("i", { class: "cross", style: `left: ${percent(cell.begins)}%` }, "✕")] : [])];
}

function axis() {
  const line = make("div", { class: "track" }), least = length() / Math.max(3, $("heat").clientWidth / 90);
  const power = 10 ** Math.floor(Math.log10(least));
  const every = Math.max(1, [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least));
  for (let step = Math.ceil((state.from + shift) / every) * every; step <= state.to + shift; step += every)
    line.append(make("span", { style: `left: ${percent(step - shift)}%` }, number(step)));
  return make("div", { class: "row axis" }, make("div", { class: "name" }, "step"), line);
}

function zoom(from, to) {
  const { steps } = view(), { grain } = optimizer(), now = Math.max(grain, Math.min(steps, to - from + 1));
  state.from = Math.floor((Math.max(1, Math.min(from, steps - now + 1)) - 1) / grain) * grain + 1;
  state.to = Math.min(steps, state.from + now - 1);
  drawHeat();
}

function scale(factor) {
  const now = Math.max(1, Math.round(length() * factor));
  const from = Math.round((cursor ? rows[cursor[0]][cursor[1]].first : state.from + length() / 2) - now / 2);
  zoom(from, from + now - 1);
}

function move(part) {
  const by = Math.max(1, Math.round(length() / 2)) * part;
  zoom(state.from + by, state.to + by);
}

function point(row, index) { // show which cell the keyboard or a finger is at
  cursor = [row, index];
  $("plot").querySelector(".at")?.classList.remove("at");
  rows[row][index].drawn.classList.add("at");
  $("cell").textContent = rows[row][index].text;
}

function key(event) {
  const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (by && rows.length) {
    const [row, index] = cursor ?? [0, -1], to = Math.max(0, Math.min(rows.length - 1, row + (cursor ? by[0] : 0)));
    const below = rows[to].findIndex((each) => each.last >= (rows[row][index]?.first ?? 1));
    point(to, Math.max(0, Math.min(rows[to].length - 1, by[0] ? below : index + by[1])));
  } else if (event.key === "+" || event.key === "=") scale(1 / 4);
  else if (event.key === "-") scale(4);
  else if (event.key === "Home") zoom(1, view().steps);
  else return;
  event.preventDefault();
}

function tip({ type, target, clientX, clientY }) { // what is under the mouse, next to it
  const box = $("tip"), text = type === "pointerleave" ? "" : target.closest?.("[data-tip]")?.dataset.tip;
  box.hidden = !text;
  box.textContent = text ?? "";
  box.style.left = `${Math.max(4, Math.min(clientX + 12, innerWidth - box.offsetWidth - 4))}px`;
  box.style.top = `${clientY + 16 + box.offsetHeight > innerHeight ? clientY - box.offsetHeight - 8 : clientY + 16}px`;
}

function matching() {
  const text = $("search").value.trim().toLowerCase(), { down } = state, sort = where[state.sort];
  const found = optimizer().variables.filter((each) => each[where.variable].toLowerCase().includes(text));
  return sort === undefined ? found : found.sort(({ [sort]: a }, { [sort]: b }) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return (down ? -1 : 1) * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  });
}

function line(row) {
  const kinds = ["dense", "sparse"].map((kind) => (
    make("i", { class: kind, style: `width: ${100 * row[where[kind]] / optimizer().most}%` })));
  const updates = row[where.updates], bar = updates ? make("span", { class: "bar" }, ...kinds) : make("span", { class: "tag" }, data.never);
  return make("tr", updates && !row[where.not_finite] ? {} : { class: "odd" },
    make("th", { scope: "row" }, make("bdi", {}, row[where.variable]), " ", bar),
    ...data.columns.slice(1).map(({ field, figures }) => (
      make("td", figures ? { class: "n" } : {}, written(row[where[field]])))));
}

function drawTable() {
  const found = matching(), kept = found.slice(0, state.kept);
  $("table").tBodies[0].replaceChildren(...kept.map(line));
  $("matches").textContent = `${number(found.length)} of ${some(optimizer().variables.length, data.variable)}`;
  Object.assign($("more"), { hidden: kept.length === found.length, textContent: `Show ${number(Math.min(10 * PAGE, found.length - kept.length))} more` });
  [...$("table").tHead.rows[0].cells].forEach((cell, column) => (
    cell.setAttribute("aria-sort", data.columns[column].field !== state.sort ? "none" : state.down ? "descending" : "ascending")));
}

function choose(of) {
  Object.assign(state, { of, view: 0, row: 0, kept: PAGE, fold: data.optimizers[of].variables.length > ROWS });
  for (const part of document.querySelectorAll(".of")) part.hidden = Number(part.dataset.of) !== of;
  const { views, variables } = optimizer();
  $("view").replaceChildren(...views.map((each, at) => new Option(each.name, at)));
  $("fold").checked = state.fold;
  $("fold").parentElement.hidden = variables.length < 2;
  $("heat-all").hidden = !views[0]?.steps || !variables.length;
  drawTable();
  if (!$("heat-all").hidden) zoom(1, view().steps);
}

function drag(plot) { // over steps, to zoom
  let begin = null;
  const step = ({ clientX }) => {
    const { left, width } = plot.querySelector(".track").getBoundingClientRect();
    return state.from - 0.5 + (clientX - left) / width * length();
  };
  plot.addEventListener("pointerdown", (event) => { begin = event.pointerType !== "touch" && event; });
  plot.addEventListener("pointerup", (event) => {
    if (begin && Math.abs(event.clientX - begin.clientX) > 5)
      zoom(...[step(begin), step(event)].sort((a, b) => a - b).map(Math.round));
    begin = null;
  });
  plot.addEventListener("dblclick", (event) => zoom(Math.ceil(step(event) - length() / 8), Math.floor(step(event) + length() / 8)));
}

function start() {
  const on = (id, event, act) => $(id)?.addEventListener(event, act), page = (by) => { state.row += by; drawHeat(); };
  const clicks = { in: () => scale(1 / 4), out: () => scale(4), all: () => zoom(1, view().steps), earlier: () => move(-1),
    later: () => move(1), "rows-before": () => page(-ROWS), "rows-after": () => page(ROWS),
    more: () => { state.kept += 10 * PAGE; drawTable(); } };
  for (const [id, act] of Object.entries(clicks)) on(id, "click", act);
  for (const id of ["from", "to"]) on(id, "change", () => {
    const [from, to] = ["from", "to"].map((each) => Math.round(Number($(each).value)) - shift);
    if (from >= 1 && to >= from) zoom(from, to); else drawHeat();
  });
  on("view", "change", ({ target }) => { state.view = Number(target.value); zoom(state.from, state.to); });
  on("fold", "change", ({ target }) => { state.fold = target.checked; page(-state.row); });
  on("optimizer", "change", ({ target }) => choose(Number(target.value)));
  on("heat", "keydown", key);
  on("search", "input", drawTable);
  drag($("plot"));
  for (const each of ["pointermove", "pointerleave"]) document.documentElement.addEventListener(each, tip);
  [...$("table").tHead.rows[0].cells].forEach((cell, column) => cell.addEventListener("click", () => {
    const { field: sort, figures } = data.columns[column];
    Object.assign(state, { sort, down: state.sort === sort ? !state.down : figures });
    drawTable();
  }));
  for (const each of document.querySelectorAll(".wide"))
    new ResizeObserver(() => { each.classList.toggle("scrolls", each.scrollWidth > each.clientWidth); }).observe(each);
  choose(0);
}

if (data.optimizers.length) start();
