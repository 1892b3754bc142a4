// What the page does: it turns the folded steps into cells for the window that is shown, hands them
// to Vega, and searches and sorts the table. It draws nothing itself.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en-US").format;
const some = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
const dark = matchMedia("(prefers-color-scheme: dark)");
const COLUMNS = 240; // at most so many cells in a row
const ROWS = 25; // of the heat map at a time
const PAGE = 50; // rows of the table at first
const MORE = 500;
const BARS = 15;
const COUNTS = ["variable", "shape", "dtype", "updates", "dense", "sparse", "least per step", "most per step",
  "without gradient", "unchanged", "not finite"];
const PATTERN = COUNTS.length; // where a row has the number of its pattern
const SHOWN = data.effects ? COUNTS : COUNTS.slice(0, -2); // the last two are there if they were asked for

const state = { of: 0, view: 0, fold: false, row: 0, from: 1, to: 1, sort: -1, down: true, kept: PAGE };
const drawn = new Map(); // the view in each element
let cursor = null; // the cell that the keyboard is at, as [row, index]
let rowsOfCells = [];

// Lanes: the updates in each step, as stretches of steps that repeat a cycle, or as coarse cells. Where
// effects were asked for: also on how many replicas the variable was compared, unchanged, not finite.

const nothing = () => ({ steps: 0, without: 0, dense: 0, sparse: 0, least: Infinity, most: 0,
  compared: 0, unchanged: 0, ineffective: 0, notFinite: 0 });

function add(cell, steps, dense, sparse, compared = 0, unchanged = 0, notFinite = 0) {
  cell.steps += steps;
  cell.without += dense + sparse ? 0 : steps;
  cell.dense += steps * dense;
  cell.sparse += steps * sparse;
  cell.least = Math.min(cell.least, dense + sparse);
  cell.most = Math.max(cell.most, dense + sparse);
  cell.compared += compared ? steps : 0;
  cell.unchanged += unchanged ? steps : 0;
  cell.ineffective += unchanged && dense + sparse ? steps : 0;
  cell.notFinite += notFinite ? steps : 0;
}

function* cycle(stretch) {
  const size = optimizer().firsts ? 6 : 3;
  for (let i = 2; i < stretch.length; i += size) yield stretch.slice(i, i + size);
}

function period(stretch) {
  if (stretch.period === undefined) {
    let sum = 0;
    for (const [length] of cycle(stretch)) sum += length;
    stretch.period = sum;
    stretch.last = stretch[0] + sum * stretch[1] - 1;
  }
  return stretch.period;
}

function find(lane, step) { // the index of the stretch that holds the step
  let low = 0, high = lane.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (lane[middle][0] <= step) low = middle; else high = middle - 1;
  }
  return low;
}

function within(lane, first, last) {
  const cell = nothing();
  if (lane.cells) {
    const grain = data.optimizers[state.of].grain, steps = view().steps;
    for (let i = Math.floor((first - 1) / grain); i * grain < last && i < lane.cells.length; i++) {
      const [without, dense, sparse, least, most, compared = 0, unchanged = 0, ineffective = 0, notFinite = 0] = lane.cells[i];
      cell.steps += Math.min(grain, steps - i * grain);
      cell.without += without;
      cell.dense += dense;
      cell.sparse += sparse;
      cell.least = Math.min(cell.least, least);
      cell.most = Math.max(cell.most, most);
      cell.compared += compared;
      cell.unchanged += unchanged;
      cell.ineffective += ineffective;
      cell.notFinite += notFinite;
    }
    return cell;
  }
  for (let i = find(lane, first); i < lane.length && lane[i][0] <= last; i++) {
    const stretch = lane[i], length = period(stretch);
    const low = Math.max(first, stretch[0]), high = Math.min(last, stretch.last);
    if (low > high) continue;
    const turns = Math.floor((high - low + 1) / length);
    if (turns) for (const [n, ...values] of cycle(stretch)) add(cell, n * turns, ...values);
    let rest = (high - low + 1) % length, start = (low - stretch[0]) % length;
    for (let turn = 0; turn < 2 && rest; turn++) {
      for (const [n, ...values] of cycle(stretch)) {
        const taken = Math.min(Math.max(0, n - start), rest);
        if (taken) add(cell, taken, ...values);
        start = Math.max(0, start - n);
        rest -= taken;
      }
    }
  }
  return cell;
}

// The runs of equal steps from first to last, or null if there are more than `most`.
function segments(lane, first, last, most) {
  const found = [];
  for (let i = lane.cells ? lane.length : find(lane, first); i < lane.length && lane[i][0] <= last; i++) {
    const stretch = lane[i], length = period(stretch);
    let begin = stretch[0] + Math.max(0, Math.floor((first - stretch[0]) / length)) * length;
    while (begin <= Math.min(last, stretch.last)) {
      for (const [n, ...values] of cycle(stretch)) {
        const low = Math.max(begin, first), high = Math.min(begin + n - 1, last), before = found.at(-1);
        begin += n;
        if (low > high) continue;
        if (before && values.every((each, at) => each === before[at + 2])) before[1] = high;
        else if (found.push([low, high, ...values]) > most) return null;
      }
    }
  }
  return lane.cells ? null : found;
}

// Cells.

const optimizer = () => data.optimizers[state.of];
const view = () => optimizer().views[state.view];
const laneOf = (pattern) => optimizer().lanes[view().lanes[pattern]];
const totalLane = () => optimizer().lanes[view().total];

function groups() { // the rows of the heat map: lists of variables
  const { variables } = optimizer();
  if (!state.fold) return variables.map((each) => [each]);
  const alike = new Map();
  for (const each of variables) {
    const lane = view().lanes[each[PATTERN]];
    if (!alike.has(lane)) alike.set(lane, []);
    alike.get(lane).push(each);
  }
  return [...alike.values()];
}

const never = (lane) => (lane.never ??= within(lane, 1, view().steps).most === 0);

function classify(lane, cell, first, last) {
  if (never(lane)) return data.words.never;
  if (cell.without) {
    const all = within(totalLane(), first, last), { calm } = optimizer();
    if (cell.without < cell.steps) return calm && cell.without === all.without ? data.words.part : data.words.some;
    return all.without === all.steps ? calm || data.words.skipped : data.words.others;
  }
  const mean = Math.ceil((cell.dense + cell.sparse) / cell.steps);
  const levels = optimizer().levels, at = levels.findIndex(([, high]) => mean <= high);
  return optimizer().states[at];
}

function say(cell, kind) {
  const all = cell.dense + cell.sparse;
  const { cause, updated } = optimizer();
  if (kind === data.words.never) return `none: the ${data.variable} was never updated` + (cause && !updated ? `, ${cause}` : "");
  if (kind === data.words.skipped) return cause ? `none: ${cause}` : cell.steps === 1 ? "none: the step updated nothing"
    : "none: these steps updated nothing";
  if (kind === optimizer().calm) return `none: ${kind}`;
  if (!all) return `none, while other ${data.variable}s were updated`;
  const kinds = cell.sparse === 0 ? "dense" : cell.dense === 0 ? "sparse"
    : `${number(cell.dense)} dense, ${number(cell.sparse)} sparse`;
  const total = `${number(all)} in all, ${kinds}`;
  if (cell.least === cell.most) return `${number(cell.most)} in each step: ${total}`;
  if (cell.without) return `in ${number(cell.steps - cell.without)} of the ${number(cell.steps)} steps: ${total}`;
  return `${number(cell.least)} to ${number(cell.most)} in a step: ${total}`;
}

// What updates did to the weights: the mark of a cell, empty if they changed and were finite.

function markOf(cell) {
  const [unchanged, hardly, notFinite] = data.words.marks;
  if (cell.notFinite) return notFinite;
  if (!cell.ineffective) return "";
  return cell.ineffective === cell.steps - cell.without ? unchanged : hardly;
}

function sayWeights(cell, first) {
  const { compared, unchanged, ineffective, notFinite, steps } = cell;
  if (!compared) return "not compared";
  const among = (n) => (compared === 1 ? "" : n === compared ? " in each step" : ` in ${number(n)} of the ${some(compared, "step")}`);
  const parts = [unchanged ? `unchanged${among(unchanged)}` : `changed${among(compared)}`];
  if (unchanged && !ineffective) parts[0] += compared === 1 ? ", as nothing updated it" : ", none of which updated it";
  if (notFinite) parts.push(`not finite${among(notFinite)}`);
  if (first) parts.push(`not finite for the first time after step ${number(first + data.first - 1)}`);
  if (compared < steps) parts.push(`${some(steps - compared, "step")} not compared`);
  return parts.join("; ");
}

function cellsOf(members, row, from, to) {
  const lane = laneOf(members[0][PATTERN]), total = totalLane(), shift = data.first - 1;
  const all = total.all ??= within(total, 1, view().steps), rare = all.without * 2 < all.steps;
  const least = thinnest(from, to);
  const size = grid(from, to), exact = segments(lane, from, to, COLUMNS);
  let pieces = [];
  if (exact) {
    for (const [first, last, dense, sparse] of exact) { // none: by whether the step was skipped
      const parts = dense + sparse || never(lane) ? null : segments(total, first, last, COLUMNS);
      if (parts) pieces.push(...parts.map(([low, high]) => [low, high])); else pieces.push([first, last]);
    }
    if (pieces.length > COLUMNS) pieces = exact.map(([low, high]) => [low, high]);
  } else {
    for (let low = Math.floor((from - 1) / size) * size + 1; low <= to; low += size)
      pieces.push([low, Math.min(low + size - 1, view().steps)]);
  }
  const name = (members[0][0] || "(no name)") + (members.length > 1 ? ` and ${number(members.length - 1)} more alike` : "");
  const cells = [], notFinite = optimizer().firsts?.[view().lanes[members[0][PATTERN]]];
  for (const [first, last] of pieces) {
    const cell = within(lane, first, last), kind = classify(lane, cell, first, last), before = cells.at(-1);
    const wide = Math.max(0, least - (last - first + 1)) / 2; // what is odd must not be too thin to see
    const odd = [data.words.skipped, data.words.others].includes(kind) || (rare && kind === optimizer().calm);
    cells.push({
      row, first, last, state: kind, odd, widened: odd && wide > 0, summed: !exact && last > first, a: first - 0.5 + shift - odd * wide, b: last + 0.5 + shift + odd * wide,
      variable: name, on: view().name, updates: say(cell, kind),
      steps: first === last ? number(first + shift) : `${number(first + shift)}-${number(last + shift)}`,
    });
    if (data.effects) {
      const begins = first <= notFinite && notFinite <= last ? notFinite : 0;
      const weights = optimizer().firsts ? sayWeights(cell, begins) : "not compared";
      Object.assign(cells.at(-1), { weights, mark: markOf(cell), at: begins + shift, begins });
    }
  }
  return cells;
}

const thinnest = (from, to) => (2 * (to - from + 1)) / Math.max(200, $("heat").clientWidth); // 2 pixels, in steps

const grid = (from, to) => { // the steps of a column
  const { grain } = optimizer();
  return Math.ceil((to - from + 1) / COLUMNS / grain) * grain;
};

// The names in at most `most` characters each: without the folders that all of them share, and without
// their middles. All are cut in one way, so that no two of them become equal; if that cannot be, those
// that would are left whole.
function short(names, most) {
  if (names.every((name) => name.length <= most)) return names;
  let shared = names.length > 1 ? names[0].lastIndexOf("/") + 1 : 0;
  while (shared && !names.every((name) => name.startsWith(names[0].slice(0, shared))))
    shared = names[0].lastIndexOf("/", shared - 2) + 1;
  const rest = names.map((name) => (shared ? "…" : "") + name.slice(shared));
  const cut = (tail) => rest.map((name) => (name.length <= most ? name
    : `${name.slice(0, most - 1 - tail)}…${name.slice(name.length - tail)}`));
  const whole = new Set(names).size, tails = [0.5, 0.75, 0.9, 0.25].map((part) => Math.round(part * most));
  const cuts = tails.map(cut).find((each) => new Set(each).size === whole) ?? cut(tails[0]);
  const owners = new Map();
  cuts.forEach((each, at) => owners.set(each, (owners.get(each) ?? new Set()).add(names[at])));
  return cuts.map((each, at) => (owners.get(each).size > 1 ? names[at] : each));
}

// Charts.

async function show(element, spec) {
  drawn.get(element)?.finalize();
  const theme = data.themes[dark.matches ? "dark" : "light"];
  element.style.minHeight = `${element.offsetHeight}px`;
  const { view: made } = await vegaEmbed(element, spec, {
    actions: false, renderer: "canvas", config: theme.config, theme: undefined,
    tooltip: { theme: dark.matches ? "dark" : "light" },
  });
  element.style.minHeight = "";
  drawn.set(element, made);
  return made;
}

const narrow = (element) => element.clientWidth < 500;
const copy = (chart) => JSON.parse(JSON.stringify(data.charts[chart]));
const theme = () => data.themes[dark.matches ? "dark" : "light"];

async function drawHeat() {
  const rows = groups(), shift = data.first - 1;
  state.row = Math.max(0, Math.min(state.row, Math.floor((rows.length - 1) / ROWS) * ROWS));
  const shown = rows.slice(state.row, state.row + ROWS);
  const { from, to } = state, most = narrow($("heat")) ? 14 : 36;
  rowsOfCells = shown.map((members, row) => cellsOf(members, row, from, to));
  cursor = null;
  $("cell").textContent = "Hover over a cell, tap it, or use the arrow keys, to see its counts.";
  const spec = copy("heat");
  spec.height = 20 * shown.length;
  const values = { from: from - 0.5 + shift, to: to + 0.5 + shift, rows: shown.map((_, row) => row) };
  const names = short(shown.map((members) => members[0][0] || "(no name)"), most);
  values.labels = shown.map((members, at) => names[at] + (members.length > 1 ? ` +${number(members.length - 1)}` : ""));
  for (const each of spec.params) each.value = values[each.name];
  spec.datasets.cells = rowsOfCells.flat().sort((a, b) => a.odd - b.odd);
  const { color } = spec.layer[0].encoding;
  const present = new Set(spec.datasets.cells.map((each) => each.state));
  const { states, colors } = optimizer(), palette = colors[dark.matches ? "dark" : "light"];
  color.scale.domain = states.filter((each) => present.has(each));
  color.scale.range = palette.filter((_, at) => present.has(states[at]));
  color.legend.title = `updates of a ${data.variable} per ${view().per}`;
  if (narrow($("heat"))) { // beside the labels there is no room for a line of both
    color.legend.title = [`updates of a ${data.variable}`, `per ${view().per}`];
    color.legend.columns = 1;
  }
  if (data.effects) drawMarks(spec);
  spec.layer.at(-1).mark.stroke = theme().text;
  const made = await show($("heat"), spec);
  listen(made);
  $("from").value = from + shift;
  $("to").value = to + shift;
  $("from").min = $("to").min = data.first;
  $("from").max = $("to").max = view().steps + shift;
  $("rows-shown").textContent = rows.length <= ROWS ? some(rows.length, "row")
    : `rows ${number(state.row + 1)}-${number(state.row + shown.length)} of ${number(rows.length)}`;
  $("rows-before").disabled = state.row === 0;
  $("rows-after").disabled = state.row + ROWS >= rows.length;
  for (const id of ["in", "out", "all", "earlier", "later"]) {
    $(id).disabled = id === "in" ? to - from + 1 <= optimizer().grain
      : id === "earlier" ? from === 1 : id === "later" ? to === view().steps
        : from === 1 && to === view().steps;
  }
  $("honest").textContent = honest(from, to);
}

// The cells of a row, in which neighbours are one that have the same `what`: no lines between them.
function joined(cells, what) {
  const found = [];
  for (const { row, state, odd, mark, a, b } of cells) {
    const before = found.at(-1);
    if (before && before[what] === { state, mark }[what]) before.b = b;
    else found.push({ row, state, odd, mark, a, b });
  }
  return found;
}

function drawMarks(spec) { // bars for what updates did to the weights, crosses where they were not finite first
  const { marks, edges } = theme(), { marks: all, first } = data.words, shown = rowsOfCells.flat();
  spec.datasets.hits = spec.datasets.cells;
  spec.datasets.cells = rowsOfCells.flatMap((cells) => joined(cells, "state")).sort((a, b) => a.odd - b.odd);
  spec.datasets.marks = rowsOfCells.flatMap((cells) => joined(cells, "mark")).filter((each) => each.mark)
    .map((each) => {
      const more = Math.max(0, 3 * thinnest(state.from, state.to) - (each.b - each.a)) / 2; // between its edges
      return { ...each, a: each.a - more, b: each.b + more };
    });
  spec.datasets.firsts = shown.filter((each) => each.begins).map(({ row, at }) => ({ row, at, mark: first }));
  const present = new Set(spec.datasets.marks.map((each) => each.mark));
  const [, thin, thick, crosses] = spec.layer;
  for (const { encoding, mark } of [thin, thick]) {
    mark.stroke = edges[encoding === thin.encoding ? 0 : 1];
    encoding.fill.scale = { domain: all.filter((each) => present.has(each)), range: marks.filter((_, at) => present.has(all[at])) };
    if (!present.size) encoding.fill.legend = null;
    else if (narrow($("heat"))) encoding.fill.legend.columns = 1;
  }
  Object.assign(crosses.mark, { fill: theme().text, stroke: edges[1] });
  if (!spec.datasets.firsts.length) crosses.encoding.shape.legend = null;
  if (narrow($("heat"))) {
    spec.config = { legend: { layout: { top: { direction: "vertical" } } } };
    if (crosses.encoding.shape.legend) crosses.encoding.shape.legend.title = null;
  }
}

function honest(from, to) {
  const { grain } = optimizer(), size = grid(from, to), lines = [];
  if (rowsOfCells.flat().some((each) => each.summed)) lines.push(`Where a row has too many runs of steps to show, a cell sums up ${number(size)} of them: zoom in to see each.`);
  if (grain > 1) lines.push(`This training is so irregular that the page keeps ${number(grain)} steps together; tracer report --step A:B -o part.html makes a page of fewer steps with each.`);
  if (rowsOfCells.flat().some((each) => each.widened)) lines.push("Steps without an update are drawn at least 2 pixels wide, so that they can be seen.");
  return lines.join(" ");
}

function listen(made) {
  let start = null;
  const step = (event) => {
    const x = event.clientX - $("heat").querySelector("canvas").getBoundingClientRect().left;
    return made.scale("x").invert(x - made.padding().left - made.origin()[0]);
  };
  made.addEventListener("pointerdown", (event) => { start = event.pointerType === "touch" ? null : step(event); });
  made.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const shift = data.first - 1, ends = [start, step(event)].sort((a, b) => a - b).map((x) => Math.round(x - shift));
    const pixels = Math.abs(made.scale("x")(start) - made.scale("x")(step(event)));
    start = null;
    if (pixels > 5) zoom(...ends);
  });
  const tell = (event, item) => { if (item?.datum?.variable) at(item.datum); };
  made.addEventListener("click", tell);
  made.addEventListener("touchstart", tell);
  made.addEventListener("dblclick", (event) => {
    const middle = Math.round(step(event) - data.first + 1), half = (state.to - state.from + 1) / 8;
    zoom(Math.ceil(middle - half), Math.floor(middle + half));
  });
}

function zoom(from, to) {
  const { steps } = view(), { grain } = optimizer();
  const length = Math.max(grain, Math.min(steps, to - from + 1));
  state.from = Math.max(1, Math.min(from, steps - length + 1));
  if (grain > 1) state.from = Math.floor((state.from - 1) / grain) * grain + 1;
  state.to = Math.min(steps, state.from + length - 1);
  drawHeat();
}

function scale(factor) {
  const length = state.to - state.from + 1, now = Math.max(1, Math.round(length * factor));
  const middle = cursor ? rowsOfCells[cursor[0]][cursor[1]].first : state.from + length / 2;
  const from = Math.round(middle - now / 2);
  zoom(from, from + now - 1);
}

const move = (part) => {
  const by = Math.max(1, Math.round((state.to - state.from + 1) / 2)) * part;
  zoom(state.from + by, state.to + by);
};

function at(cell) { // show which cell the keyboard or a finger is at
  cursor = [cell.row, rowsOfCells[cell.row].findIndex((each) => each.first === cell.first)];
  $("cell").textContent = `${cell.variable}, step${cell.first === cell.last ? "" : "s"} ${cell.steps}, `
    + `${cell.on}: ${cell.updates}${cell.weights ? `. Weights: ${cell.weights}` : ""}`;
  drawn.get($("heat")).data("cursor", [{ row: cell.row, a: cell.a, b: cell.b }]).run();
}

function key(event) {
  const [row, column] = cursor ?? [0, -1], keys = {
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
  };
  if (keys[event.key] && rowsOfCells.length) {
    const [down, right] = keys[event.key];
    const to = Math.max(0, Math.min(rowsOfCells.length - 1, row + (cursor ? down : 0)));
    const cells = rowsOfCells[to], middle = rowsOfCells[row][column]?.first ?? 1;
    const same = cells.findIndex((each) => each.last >= middle);
    at(cells[Math.max(0, Math.min(cells.length - 1, down ? same : column + right))] ?? cells[0]);
  } else if (event.key === "+" || event.key === "=") scale(1 / 4);
  else if (event.key === "-") scale(4);
  else if (event.key === "Home") zoom(1, view().steps);
  else return;
  event.preventDefault();
}

function drawBars(element, values, chart = "bars", set = "bars") {
  element.hidden = !values.length;
  if (!values.length) return;
  const spec = copy(chart), { color } = spec.encoding, blues = theme().kinds;
  color.scale.range = [...blues, theme().odd[1]];
  const shown = values.some((each) => each[color.field] === data.words.idle) ? 3 : 2;
  for (const { scale } of [color, spec.encoding.shape ?? color]) { // what is not there needs no legend
    scale.domain = scale.domain.slice(0, shown);
    scale.range = scale.range.slice(0, shown);
  }
  if (narrow(element)) color.legend.columns = 1;
  spec.datasets[set] = values;
  const names = [...new Set(values.map((each) => each.name))];
  spec.height = 22 * names.length;
  spec.params = [{ name: "names", value: names }, { name: "labels", value: short(names, narrow(element) ? 16 : 44) }];
  spec.encoding.y.axis = { ...spec.encoding.y.axis, labelLimit: 0, labelExpr: "labels[indexof(names, datum.value)]" };
  show(element, spec);
}

const kinds = (name, dense, sparse) => [
  { name, kind: "dense", updates: dense }, { name, kind: "sparse", updates: sparse },
].filter((each) => each.updates || each.kind === "dense");

function drawCallers(element, callers) {
  element.hidden = !callers.length;
  if (!callers.length) return;
  const spec = copy("icicle"), [boxes, texts] = spec.layer, { color } = boxes.encoding;
  const present = new Set(callers.map((each) => each[3])), domain = color.scale.domain;
  color.scale.range = theme().callers.filter((_, at) => present.has(domain[at]));
  color.scale.domain = domain.filter((each) => present.has(each));
  if (narrow(element)) color.legend.columns = 2;
  boxes.mark.stroke = getComputedStyle(document.body).backgroundColor;
  texts.mark.color = theme().text;
  spec.datasets.boxes = callers.map(([depth, a, b, kind, name, steps, calls]) => (
    { depth, a, b, kind, name, steps, calls, executions: number(b - a) }));
  spec.height = 26 * (1 + Math.max(...callers.map(([depth]) => depth)));
  show(element, spec);
}

function drawOthers() {
  for (const part of document.querySelectorAll(`.of[data-of="${state.of}"]`)) {
    for (const element of part.querySelectorAll(".callers")) drawCallers(element, optimizer().callers);
    for (const element of part.querySelectorAll(".replicas"))
      drawBars(element, optimizer().replicas.flatMap((each) => kinds(...each)));
    for (const element of part.querySelectorAll(".graphs"))
      drawBars(element, optimizer().graphs.flatMap(([name, calls, runs]) => [
        { name, what: "Python calls", number: calls },
        { name, what: runs ? "executions" : data.words.idle, number: runs },
      ]), "points", "points");
  }
}

// The table.

function matching() {
  const text = $("search").value.trim().toLowerCase(), { sort, down } = state;
  const found = optimizer().variables.filter((each) => each[0].toLowerCase().includes(text));
  if (sort < 0) return found;
  const sign = down ? -1 : 1;
  return found.sort((a, b) => {
    if (a[sort] === b[sort]) return 0;
    if (a[sort] === null || b[sort] === null) return a[sort] === null ? 1 : -1;
    return sign * (typeof a[sort] === "string" ? a[sort].localeCompare(b[sort], "en", { numeric: true }) : a[sort] - b[sort]);
  });
}

function cellOf(value, column, row) {
  const cell = document.createElement(column ? "td" : "th");
  if (!column) {
    cell.scope = "row";
    const name = document.createElement("bdi");
    name.textContent = value || "(no name)";
    cell.append(name);
    if (!row[3]) {
      const tag = document.createElement("span");
      tag.className = "tag";
      tag.textContent = data.words.never;
      cell.append(" ", tag);
    }
  } else {
    cell.textContent = typeof value === "number" ? number(value) : value ?? "";
    if (column >= 3) cell.className = "n";
  }
  return cell;
}

function drawTable() {
  const found = matching(), kept = found.slice(0, state.kept);
  $("table").tBodies[0].replaceChildren(...kept.map((row) => {
    const line = document.createElement("tr");
    if (!row[3] || row[COUNTS.length - 1]) line.className = "odd";
    line.append(...SHOWN.map((_, column) => cellOf(row[column], column, row)));
    return line;
  }));
  $("matches").textContent = `${number(found.length)} of ${some(optimizer().variables.length, data.variable)}`;
  $("more").hidden = kept.length === found.length;
  $("more").textContent = `Show ${number(Math.min(MORE, found.length - kept.length))} more`;
  $("left").textContent = optimizer().left ? `${some(optimizer().left, `more ${data.variable}`)} would make this page too large: `
    + "tracer report --by variable -o variables.csv has them all." : "";
  [...$("table").tHead.rows[0].cells].forEach((cell, column) => {
    if (column === state.sort) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
    cell.querySelector("button").lastChild.textContent = column !== state.sort ? "" : state.down ? " ↓" : " ↑";
  });
  drawBars($("kinds"), found.slice(0, BARS).flatMap((each) => kinds(each[0], each[4], each[5])));
}

function makeTable() {
  $("table").tHead.rows[0].replaceChildren(...SHOWN.map((name, column) => {
    const cell = document.createElement("th"), button = document.createElement("button");
    cell.scope = "col";
    if (column >= 3) cell.className = "n";
    button.append(name === "variable" ? data.variable : name, document.createElement("span"));
    button.addEventListener("click", () => {
      state.down = state.sort === column ? !state.down : column >= 3;
      state.sort = column;
      drawTable();
    });
    cell.append(button);
    return cell;
  }));
  $("search").addEventListener("input", drawTable);
  $("more").addEventListener("click", () => { state.kept += MORE; drawTable(); });
}

// The page.

function choose(of) {
  state.of = of;
  for (const part of document.querySelectorAll(".of")) part.hidden = Number(part.dataset.of) !== of;
  const { views, variables } = optimizer();
  $("view").replaceChildren(...views.map(({ name }, at) => new Option(name, at)));
  $("view").parentElement.hidden = views.length < 2;
  Object.assign(state, { view: 0, row: 0, kept: PAGE });
  $("fold").checked = state.fold = variables.length > ROWS;
  $("fold").parentElement.hidden = variables.length < 2;
  const steps = views[0]?.steps ?? 0;
  $("heat-all").hidden = !steps || !variables.length;
  $("empty").hidden = !$("heat-all").hidden;
  drawOthers();
  drawTable();
  return $("heat-all").hidden ? undefined : zoom(1, steps);
}

function start() {
  const on = (id, event, act) => $(id).addEventListener(event, act);
  makeTable();
  on("view", "change", () => {
    state.view = Number($("view").value);
    zoom(state.from, state.to);
  });
  on("fold", "change", () => { state.fold = $("fold").checked; state.row = 0; drawHeat(); });
  on("rows-before", "click", () => { state.row -= ROWS; drawHeat(); });
  on("rows-after", "click", () => { state.row += ROWS; drawHeat(); });
  on("in", "click", () => scale(1 / 4));
  on("out", "click", () => scale(4));
  on("all", "click", () => zoom(1, view().steps));
  on("earlier", "click", () => move(-1));
  on("later", "click", () => move(1));
  on("heat", "keydown", key);
  for (const id of ["from", "to"]) {
    on(id, "change", () => {
      const [from, to] = ["from", "to"].map((each) => Math.round(Number($(each).value)) - data.first + 1);
      if (from >= 1 && to >= from) zoom(from, to); else drawHeat();
    });
  }
  $("optimizer")?.addEventListener("change", () => choose(Number($("optimizer").value)));
  const again = () => { drawOthers(); drawTable(); if (!$("heat-all").hidden) drawHeat(); };
  dark.addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; again(); } });
  choose(0);
}

if (data.optimizers.length) start();
