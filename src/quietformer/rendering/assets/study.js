const study = data.study, rows = data.rows, trials = data.trials, grid = study.grid, fields = Object.keys(grid);
const VARIANT = "variant", BITS = "bits", FEW = 20;
const primary = data.primary || "", higher = data.better === "higher", inPercent = ["top1", "agreement"].includes(primary);
const inUnits = data.metric, quantizedName = data.quantized_title;
// Bits need no training of their own: settings, each of which has a colour, are the points of the other fields.
const trained = fields.filter(f => f !== BITS), varied = fields.filter(f => grid[f].length > 1);
const allBits = [...new Set(rows.map(r => r.bits))], severalBits = allBits.length > 1, bitsAreRows = severalBits && !grid[BITS];
const whole = row => row.runs > 0, several = rows.some(r => r.runs > 1), calibrations = study.measures?.calibrations || 1;

// ---- names
const short = field => data.fields[field];
const indexOf = (field, v) => grid[field].findIndex(other => same(other, v));
const valueText = (field, v) => data.values[field][indexOf(field, v)], partOf = (field, v) => data.points[field][indexOf(field, v)];
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const isNumeric = v => known(v) || typeof v === "string" && v.trim() !== "" && Number.isFinite(Number(v));

// ---- settings and their colours
const HUES = [250, 45, 150, 340, 85, 295, 195, 20], DASHES = ["", "6 3", "2 3"];
const keyOf = at => JSON.stringify(trained.map(f => at[f]));
// Few settings get hues that are far apart; values of one number go from blue to red; many share the circle, and dashes
// help the eye.
function settingsOf() {
  const found = new Map(), axes = varied.filter(f => f !== BITS);
  [...trials, ...rows].forEach(({at, setting}) => {
    if (!found.has(keyOf(at))) found.set(keyOf(at), {label: setting, trials: []});
  });
  trials.forEach(t => found.get(keyOf(t.at)).trials.push(t));
  const count = found.size, isFew = count <= HUES.length;
  const isRamp = count > 3 && axes.length === 1 && grid[axes[0]].every(isNumeric);
  [...found.values()].forEach((s, i) => {
    s.hue = isRamp ? 265 - 235 * i / (count - 1) : isFew ? HUES[i] : (250 + 360 * i / count) % 360;
    s.dash = isRamp || isFew ? "" : DASHES[i % DASHES.length];
  });
  return found;
}
const settings = settingsOf(), settingOf = at => settings.get(keyOf(at));
function coloured(node, {hue}) { node.classList.add("setting"); node.style.setProperty("--hue", hue); return node; }
function named(at, node) {
  const box = el("span", null, "named"), swatch = coloured(el("i", null, "swatch"), settingOf(at));
  swatch.setAttribute("aria-hidden", "true"); box.append(swatch, node);
  return box;
}
function drawnKey(width, shape) {
  const mark = svg("svg", {viewBox: `0 0 ${width} 10`, "aria-hidden": "true"}); mark.append(shape);
  return mark;
}

// ---- numbers: texts come with the page, formatted as on the terminal; charts read the values
const QUALITY = ["fp32", "quantized", "real"], OUTLIERS = ["infinity_norm", "kurtosis"];
const scaleOf = key => QUALITY.includes(key) && inPercent || key === "dead_rows" ? 100 : 1;
// One run has no deviation: a zero would say that seeds agree.
const stdOf = (row, key) => row.runs > 1 ? row[key]?.std : undefined;
// A number; null of a model that gives none any more; undefined for what was not measured.
function valueOf(row, key) {
  if (!whole(row) || !row[key]) return undefined;
  return row[key].mean ?? (QUALITY.includes(key) ? null : undefined);
}
const meanText = (row, key) => row.texts[key]?.mean ?? "–";
const fullText = (row, key) => [meanText(row, key), row.texts[key]?.std].filter(Boolean).join(" ");
function numberNode(row, key, isBest = false) {
  const box = el("span"), text = row.texts[key];
  box.append(el(isBest ? "b" : "span", meanText(row, key), valueOf(row, key) === null ? "bad" : ""));
  if (text?.std) box.append(" ", el("span", text.std, "std"));
  return box;
}

// ---- what quantization costs
const COSTS = {
  none: ["next to nothing lost", "✓", "good"], little: ["a little lost", "✓", "good"],
  harm: ["quality lost", "✗", "some"], broken: ["broken", "✗", "bad"],
};
const look = (row, key = "quantized") => COSTS[row.texts[key]?.effect]?.[2] ?? "";
function changeNode(row, key) {
  const {effect, change} = row.texts[key] || {}, node = el("span", null, `change ${look(row, key)}`);
  if (!effect) return node;
  const [words, mark] = COSTS[effect];
  node.append(`${mark} ${change}`, el("span", `, ${words}`, "unseen"));
  node.title = words;
  return node;
}

// ---- verdict
function showVerdict() {
  const box = byId("verdict"), {sentence, long, severity, facts: counted} = data.verdict;
  document.title = `${data.name}: ${quantizedName}`;
  byId("title").textContent = data.name;
  const recipe = `Recipe ${study.recipe}${data.task ? `, ${name(data.task)}` : ""}.`;
  byId("subtitle").textContent = data.about ? `${data.about} ${recipe}` : recipe;
  box.classList.add(severity);
  box.replaceChildren(el("strong", sentence, long ? "long" : ""), facts(counted));
}

// ---- the table
function paperRow(row, columns) {
  const {texts, about, finding} = row.quoted, values = columns.slice(1).map(c => texts[c.paper] || ""), first = el("span");
  first.append(el("b", "the paper, at its size"));
  [about, finding].filter(Boolean).forEach(text => first.append(el("span", text, "under")));
  const cells = values.some(Boolean) ? [first, ...values] : [first];
  cells.className = "paper";
  return cells;
}
function settingCell(row) {
  const box = el("span"), isWhole = whole(row);
  box.append(named(row.at, el("b", row.label)));
  box.append(el("span", isWhole ? row.attention : "no run finished", isWhole ? "under attention" : "under bad"));
  return box;
}
function tableColumns() {
  const unit = primary ? `${inUnits} ${higher ? "↑" : "↓"}` : "", has = key => rows.some(r => r.texts[key]);
  const bests = new Map([...QUALITY, ...OUTLIERS].map(key => {
    const values = rows.map(r => valueOf(r, key)).filter(known), best = higher && QUALITY.includes(key) ? Math.max : Math.min;
    return [key, new Set(values).size > 1 ? best(...values) : undefined];
  }));
  const cell = key => r => { const mean = valueOf(r, key); return numberNode(r, key, known(mean) && mean === bests.get(key)); };
  const changed = key => r => { const box = el("span"); box.append(cell(key)(r), changeNode(r, key)); return box; };
  const mean = key => r => meanText(r, key);
  const measures = !rows.some(whole) ? [] : [
    {head: "fp32", unit, cell: cell("fp32"), paper: "fp32"},
    {head: quantizedName, unit, cell: changed("quantized"), paper: "quantized"},
    has("real") && {head: "real INT8", unit, cell: changed("real")},
    {head: "largest value", unit: "↓", cell: cell("infinity_norm"), paper: "infinity_norm"},
    {head: "kurtosis", unit: "↓", cell: cell("kurtosis"), paper: "kurtosis"},
    rows.some(r => r.dead_rows?.mean || r.most_dead_rows?.mean) && {head: "dead rows", unit: "%", cell: cell("dead_rows")},
    has("gate_openness") && {head: "gate openness", cell: cell("gate_openness")},
    has("bigram_perplexity") && {head: "bigram", unit: "perplexity", cell: mean("bigram_perplexity")},
    has("majority_accuracy") && {head: "largest class", unit: "%", cell: mean("majority_accuracy")},
    {head: "minutes", cell: mean("seconds")},
  ];
  const counted = r => r.failed.length ? el("span", `${r.runs} of ${r.runs + r.failed.length}`, "bad") : String(r.runs);
  const columns = [
    {head: "setting", cell: settingCell}, bitsAreRows && {head: "bits", cell: r => r.bits.toUpperCase()},
    ...measures, {head: "runs", cell: counted},
  ];
  return columns.filter(Boolean);
}
function showTable() {
  const columns = tableColumns(), lines = rows.flatMap(row => {
    const cells = columns.map(c => c.cell(row)); cells.className = whole(row) ? "" : "failed";
    return row.quoted ? [cells, paperRow(row, columns)] : [cells];
  });
  const t = table(columns.map(c => c.head), lines);
  [...t.tHead.rows[0].cells].forEach((th, i) => { if (columns[i].unit) th.append(el("span", columns[i].unit, "unit")); });
  [...t.tBodies[0].rows].forEach(tr => { if (tr.cells.length === 1) tr.cells[0].colSpan = columns.length; });
  byId("result-table").replaceChildren(t);
  byId("result-note").textContent = data.note;
  byId("troubles").replaceChildren(...data.troubles.map(text => el("li", text)));
}

// ---- before and after quantization
const FAR = 1.5;
const isFar = values => !higher && Math.min(...values) > 0 && Math.max(...values) > FAR * Math.min(...values);
// Where values are on the axis, in percent of its length.
function pairAxis(drawn) {
  const found = drawn.flatMap(r => QUALITY.map(key => [valueOf(r, key), stdOf(r, key) || 0])).filter(([mean]) => known(mean));
  const means = found.map(([mean]) => mean), least = Math.min(...means), most = Math.max(...means), log = isFar(means);
  const ends = found.flatMap(([mean, std]) => [mean, mean - std, mean + std]).filter(v => !log || v >= least / 2);
  // A trifle must not fill the axis.
  const middle = (least + most) / 2;
  const around = higher ? [Math.max(middle - .05, 0), Math.min(middle + .05, 1)] : [.95 * middle, 1.05 * middle];
  const scale = scaleOf("fp32"), {ticks, share} = ticked([...ends, ...(log ? [] : around)].map(v => v * scale), log);
  return {log, ticks, placeOf: v => 100 * Math.min(Math.max(share(v * scale), 0), 1), tickPlace: t => 100 * share(t)};
}
function laneOf(row, {ticks, placeOf, tickPlace}) {
  const lane = el("span", null, "lane"), from = valueOf(row, "fp32"), to = valueOf(row, "quantized"), colour = look(row);
  const put = (className, left, right) => {
    const i = el("i", null, className); i.style.left = `${left}%`;
    if (right !== undefined) i.style.width = `${right - left}%`;
    lane.append(i);
  };
  const between = (className, a, b) => put(className, ...[a, b].sort((x, y) => x - y));
  lane.setAttribute("aria-hidden", "true");
  ticks.forEach(t => put("tick", tickPlace(t)));
  [["fp32", ""], ["quantized", colour]].forEach(([key, ink]) => {
    const mean = valueOf(row, key), std = stdOf(row, key);
    if (known(mean) && std) between(`spread ${ink}`, placeOf(mean - std), placeOf(mean + std));
  });
  const end = known(to) ? placeOf(to) : higher ? 0 : 100;
  if (known(from) && to !== undefined) between(`link ${known(to) ? colour : "none"}`, placeOf(from), end);
  if (known(from)) put("mark fp32", placeOf(from));
  if (known(valueOf(row, "real"))) put("mark real", placeOf(row.real.mean));
  if (known(to)) put(`mark quantized ${colour}`, placeOf(to));
  return lane;
}
function pairOf(row, axis) {
  const line = el("div", null, "pair"), values = el("span", null, "values"), both = el("span"), to = valueOf(row, "quantized");
  line.setAttribute("role", "listitem");
  both.append(meanText(row, "fp32"), " → ", el("b", meanText(row, "quantized"), look(row)));
  values.append(both, known(to) ? changeNode(row, "quantized") : el("span", null, "change"));
  line.append(named(row.at, el("span", row.full_label)), laneOf(row, axis), values);
  return line;
}
function showPairs() {
  const drawn = rows.filter(r => known(valueOf(r, "fp32")) || known(valueOf(r, "quantized")));
  const missing = rows.length - drawn.length;
  if (!drawn.length) { byId("quantization").hidden = true; return; }
  const axis = pairAxis(drawn), list = el("div"), foot = el("div", null, "pair axis"), scale = el("span", null, "lane");
  const every = Math.ceil(axis.ticks.length / 6);
  axis.ticks.filter((_, i) => i % every === 0).forEach(t => {
    const text = el("span", exact(t)); text.style.left = `${axis.tickPlace(t)}%`; scale.append(text);
  });
  foot.setAttribute("aria-hidden", "true"); foot.append(el("span"), scale, el("span"));
  list.setAttribute("role", "list"); list.append(...drawn.map(row => pairOf(row, axis)));
  byId("pairs").replaceChildren(list, foot);
  const legend = [
    ["mark fp32", "fp32"], ["mark quantized", quantizedName], ["mark real", "real INT8"],
    ["link good", "little or nothing lost"], ["link some", "quality lost"], ["link bad", "broken"],
  ].filter(([className]) => className !== "mark real" || rows.some(r => r.texts.real));
  byId("pair-legend").replaceChildren(...legend.map(([className, text]) => {
    const item = el("span"), key = el("span", null, "key"); key.setAttribute("aria-hidden", "true");
    key.append(el("i", null, className)); item.append(key, text);
    return item;
  }));
  const goal = severalBits ? "what quantization leaves" : quantizedName;
  const direction = `Further ${higher ? "right" : "left"} is better.`;
  byId("pair-note").textContent = `From fp32 to ${goal}: the shorter the line, the less is lost. ${direction}`;
  byId("pair-scale").textContent = [
    capital(inUnits) + (axis.log ? ", logarithmic" : ""), several && "pale bars: ± standard deviation over seeds",
    missing && `${missing} of ${rows.length} have no values`,
  ].filter(Boolean).join("; ") + ".";
}

// ---- over the grid: a heat map of two fields
const TITLES = {
  fp32: `${inUnits}, fp32`, quantized: `${inUnits}, ${quantizedName}`, real: `${inUnits}, real INT8`,
  infinity_norm: "largest value", kurtosis: "kurtosis", dead_rows: "dead rows, %", gate_openness: "gate openness",
};
const gridMeasures = Object.keys(TITLES).filter(key => rows.some(r => known(valueOf(r, key))));
function sentenceOf(row) {
  if (!whole(row)) return `${row.full_label}: no run finished; ${row.failed.join("; ")}`;
  const title = key => key === "quantized" ? `${inUnits}, ${row.bits.toUpperCase()}` : TITLES[key];
  const told = gridMeasures.filter(key => row.texts[key]).map(key => `${title(key)} ${fullText(row, key)}`);
  return `${row.full_label}: ${told.join(" · ")}`;
}
// How strongly a value is coloured, from 0 to 1: stronger is worse, or of what is neither good nor bad, more.
function heatScale(key, values) {
  const isQuality = QUALITY.includes(key), log = OUTLIERS.includes(key) || isQuality && !higher, falls = isQuality && higher;
  const scale = log ? Math.log : v => v, usable = values.filter(v => known(v) && (!log || v > 0));
  const low = Math.min(...usable), high = Math.max(...usable), [pale, strong] = falls ? [high, low] : [low, high];
  // Cells that hardly differ should look alike.
  const span = Math.max(scale(high) - scale(low), log ? Math.log(1.05) : .02);
  const heat = v => log && v <= 0 ? 0 : Math.abs(scale(v) - scale(pale)) / span;
  return {log, pale, strong, heat, isJudged: isQuality || OUTLIERS.includes(key), isEmpty: !usable.length};
}
function heatCell(row, key, scale, readout) {
  const value = valueOf(row, key), said = sentenceOf(row);
  const cell = el("button", whole(row) ? meanText(row, key) : "failed", "cell");
  const isBest = scale.isJudged && value === scale.pale && scale.pale !== scale.strong;
  cell.type = "button"; cell.title = said;
  cell.setAttribute("aria-label", `${cell.textContent}${isBest ? ", the best" : ""}. ${said}`);
  if (known(value)) cell.style.setProperty("--heat", String(scale.heat(value))); else cell.classList.add("none");
  if (isBest) cell.classList.add("best");
  ["pointerenter", "focus", "click"].forEach(type => cell.addEventListener(type, () => { readout.textContent = said; }));
  return cell;
}
function showHeat() {
  const [down, across] = varied, measure = byId("heat-measure"), bits = byId("heat-bits"), legend = byId("heat-legend");
  if (varied.length !== 2 || !gridMeasures.length) { byId("heat").hidden = true; return; }
  byId("heat-title").textContent = `${capital(short(down))} and ${short(across)}`;
  fill(measure, gridMeasures.map(m => [m, TITLES[m]]), gridMeasures.find(m => m === "quantized") || gridMeasures[0]);
  fill(bits, allBits.map(b => [b, b.toUpperCase()])); byId("heat-bits-label").hidden = !bitsAreRows;
  const isChosen = r => !bitsAreRows || r.bits === bits.value;
  const rowAt = (x, y) => rows.find(r => same(r.at[down], x) && same(r.at[across], y) && isChosen(r));
  const headed = (text, scope) => { const th = el("th", text); th.scope = scope; return th; };
  const draw = () => {
    const key = measure.value, cells = grid[down].map(x => grid[across].map(y => rowAt(x, y))), readout = byId("heat-readout");
    const scale = heatScale(key, cells.flat().map(r => r && valueOf(r, key)));
    const t = el("table", null, scale.isJudged ? "" : "amounts"), thead = el("thead"), top = el("tr"), body = el("tbody");
    top.append(el("th", `${short(down)}\u00a0↓ ${short(across)}\u00a0→`));
    grid[across].forEach(y => top.append(headed(valueText(across, y), "col")));
    steer(cells.map((line, i) => {
      const tr = el("tr"), buttons = line.map(row => row ? heatCell(row, key, scale, readout) : null);
      tr.append(headed(valueText(down, grid[down][i]), "row")); body.append(tr);
      buttons.forEach(b => { const td = el("td"); td.append(b || "–"); tr.append(td); });
      return buttons;
    }));
    thead.append(top); t.append(thead, body); t.style.setProperty("--columns", String(grid[across].length));
    byId("heat-map").replaceChildren(t);
    readout.textContent = "Point at a cell, or use the arrow keys, to read all of its values.";
    const textOf = value => meanText(cells.flat().find(r => r && valueOf(r, key) === value), key);
    const ends = scale.isEmpty ? [] : [el("span", textOf(scale.pale)), el("i"), el("span", textOf(scale.strong))];
    legend.className = `ramp quiet${scale.isJudged ? "" : " amounts"}`;
    legend.replaceChildren(...(scale.isEmpty ? [] : [...ends, ...(scale.log ? ["· logarithmic colours"] : [])]));
  };
  [measure, bits].forEach(s => s.addEventListener("change", draw)); draw();
}

// ---- over the grid: lines over one field of numbers
// Where values are on the axis: as far apart as they are if that keeps them apart, else by their logarithm, else evenly.
function spaced(values) {
  const spread = (places, words) => {
    const gaps = places.slice(1).map((p, i) => p - places[i]), span = places[places.length - 1] - places[0];
    return Math.min(...gaps) >= .4 * span / gaps.length && {places: places.map(p => (p - places[0]) / span), words};
  };
  const byLogarithm = () => values[0] > 0 && spread(values.map(Math.log), ", logarithmic");
  return spread(values, "") || byLogarithm() || spread(values.map((_, i) => i), ", evenly spaced");
}
// A line is {key, name, className, dress, rowOf}; a point {place, text, said} of the field.
function fieldChart(box, title, lines, log, points, readout) {
  const drawnOf = (line, point) => {
    const row = line.rowOf(point), mean = row && valueOf(row, line.key), scale = scaleOf(line.key);
    return known(mean) && (!log || mean > 0) ? {mean: mean * scale, std: (stdOf(row, line.key) || 0) * scale} : null;
  };
  const found = lines.flatMap(line => points.map(p => drawnOf(line, p))).filter(Boolean);
  if (!found.length) return false;
  // On a logarithmic axis a bar may reach below zero: it ends a little below the lowest point.
  const foot = log ? Math.min(...found.map(f => f.mean)) / 1.5 : -Infinity;
  const ends = ({mean, std}) => [mean + std, Math.max(mean - std, foot)], values = found.flatMap(f => [f.mean, ...ends(f)]);
  // Bars of several lines at one value are side by side.
  const aside = k => (k - (lines.length - 1) / 2) * 5, inset = 22;
  fitted(box, width => {
    const root = frame(width, title), y = upright(root, values, width, log), inner = width - LEFT - RIGHT;
    const half = Math.min(26, inner / points.length / 2);
    const x = (point, k) => LEFT + inset + point.place * (inner - 2 * inset) + (k === undefined ? 0 : aside(k));
    root.setAttribute("role", "group");
    lines.forEach((line, k) => {
      const corners = points.map(p => [x(p, k), drawnOf(line, p)]).filter(([, f]) => f).map(([at, f]) => [at, y(f.mean)]);
      root.append(line.dress(svg("polyline", {points: path(corners), class: `trace ${line.className}`})));
    });
    let lastText = -Infinity;
    steer([points.map(point => {
      const told = lines.filter(line => line.rowOf(point)).map(line => [line.name, line.rowOf(point), line.key]);
      const values = told.map(([what, row, key]) => `${what} ${whole(row) ? fullText(row, key) : "failed"}`);
      const said = `${point.said}: ${values.join(", ")}`;
      const g = svg("g", {role: "img", "aria-label": said}), height = HEIGHT - TOP - BOTTOM + 8;
      g.append(svg("rect", {x: x(point) - half, y: TOP - 4, width: 2 * half, height, rx: 4, class: "target"}));
      lines.forEach((line, k) => {
        const f = drawnOf(line, point), row = line.rowOf(point), at = x(point, k), stroke = {class: `bar ${line.className}`};
        const isBroken = !f && row && valueOf(row, line.key) === null;
        if (isBroken) g.append(svg("text", {x: at, y: TOP + 8, "text-anchor": "middle", class: "gone"}, "✗"));
        if (!f) return;
        const [top, bottom] = ends(f).map(y), flat = h => svg("line", {x1: at - 3, x2: at + 3, y1: h, y2: h, ...stroke});
        const bars = f.std ? [svg("line", {x1: at, x2: at, y1: top, y2: bottom, ...stroke}), flat(top), flat(bottom)] : [];
        g.append(...[...bars, svg("circle", {cx: at, cy: y(f.mean), r: 4, class: `dot ${line.className}`})].map(line.dress));
      });
      ["pointerenter", "pointerdown", "focus"].forEach(type => g.addEventListener(type, () => { readout.textContent = said; }));
      root.append(g);
      if (x(point) - lastText >= 8 + 6 * point.text.length) {
        lastText = x(point); root.append(svg("text", {x: lastText, y: HEIGHT - 8, "text-anchor": "middle"}, point.text));
      }
      return g;
    })]);
    return root;
  });
  return true;
}
function showField() {
  const [field] = varied, section = byId("field"), box = byId("field-charts"), readout = byId("field-readout");
  if (varied.length !== 1 || !grid[field].every(isNumeric) || !gridMeasures.length) { section.hidden = true; return; }
  const values = [...grid[field]].sort((a, b) => a - b), {places, words} = spaced(values.map(Number));
  const points = values.map((value, i) => ({value, place: places[i], text: valueText(field, value), said: partOf(field, value)}));
  const rowOf = bits => point => rows.find(r => same(r.at[field], point.value) && (bits === undefined || r.bits === bits));
  const lineOf = (key, what, className) => ({key, name: what, className, dress: node => node, rowOf: rowOf()});
  const quantized = allBits.map((bits, i) => ({
    ...lineOf("quantized", bits.toUpperCase(), severalBits ? "own" : "plain"), rowOf: rowOf(bits),
    dress: node => severalBits ? coloured(node, {hue: HUES[i % HUES.length]}) : node,
  }));
  const lines = [lineOf("fp32", "fp32", "dashed"), ...quantized];
  const means = rows.flatMap(r => [valueOf(r, "fp32"), valueOf(r, "quantized")]).filter(known);
  const isWorth = key => !QUALITY.includes(key) && (key !== "dead_rows" || rows.some(r => r.dead_rows?.mean));
  const chartOf = key => [TITLES[key], [lineOf(key, TITLES[key], "plain")], OUTLIERS.includes(key)];
  const charts = [[inUnits, lines, isFar(means)], ...gridMeasures.filter(isWorth).map(chartOf)];
  charts.forEach(([title, drawn, log]) => {
    const part = el("div"), chart = el("div", null, "chart");
    part.append(el("h3", capital(title) + (log ? ", logarithmic" : "")), chart); box.append(part);
    if (!fieldChart(chart, title, drawn, log, points, readout)) part.remove();
  });
  box.classList.toggle("four", box.childElementCount === 4);
  byId("field-title").textContent = `Over ${short(field)}`;
  byId("field-note").textContent = `Across: ${field}${words}.${several ? " Bars: ± standard deviation over seeds." : ""}`;
  byId("field-legend").replaceChildren(...lines.map(line => {
    const item = el("span"), stroke = svg("line", {x1: 0, x2: 14, y1: 5, y2: 5, class: `trace ${line.className}`});
    item.append(drawnKey(14, line.dress(stroke)), line.name);
    return item;
  }));
  readout.textContent = "Point at a value, or use the arrow keys, to read its numbers.";
}

// ---- as they learned
const TALL = 320;
const CURVES = {
  loss: {text: "training loss", meaning: "what training makes small"},
  ffn_infinity_norm: {text: "largest FFN output", meaning: "the largest |x| of the FFN outputs", log: true},
  ffn_kurtosis: {text: "kurtosis of FFN outputs", meaning: "how far a few values stick out: 3 for a bell curve", log: true},
  dead_rows: {text: "dead rows, %", meaning: "rows of attention that give no weight to anything", scale: 100},
  gate_openness: {text: "gate openness", meaning: "1 lets a head through unchanged, 0 shuts it"},
};
const curveOf = t => t.result?.curve || [];
// The runs of some settings as [step, value] of a measure, in the order of the settings.
function curvesOf(chosen, measure) {
  const {log, scale = 1} = CURVES[measure], isDrawn = p => known(p.step) && known(p[measure]) && (!log || p[measure] > 0);
  const pointsOf = t => curveOf(t).filter(isDrawn).map(p => [p.step, scale * p[measure]]).sort((a, b) => a[0] - b[0]);
  const runs = chosen.flatMap(setting => setting.trials.map(t => ({setting, seed: t.seed, points: pointsOf(t)})));
  return runs.filter(r => r.points.length);
}
function curveChart(width, runs, measure, readout) {
  const {log, text} = CURVES[measure], all = runs.flatMap(r => r.points), steps = all.map(p => p[0]);
  const last = Math.max(...steps), first = Math.min(0, ...steps), inner = width - LEFT - RIGHT;
  const ending = r => `${r.setting.label}, seed ${r.seed}, ends at ${number(r.points[r.points.length - 1][1])}`;
  const told = runs.length > 12 ? `${runs.length} runs` : runs.map(ending).join("; ");
  const root = frame(width, `${text} over steps: ${told}`, TALL);
  const y = upright(root, all.map(p => p[1]), width, log, TALL), x = step => LEFT + (step - first) / (last - first || 1) * inner;
  root.setAttribute("role", "img"); root.setAttribute("tabindex", "0");
  evenTicks(first, last).filter(t => t >= first && t <= last).forEach(t => root.append(
    svg("text", {x: x(t), y: TALL - 8, "text-anchor": x(t) > width - 30 ? "end" : "middle"}, number(t))));
  const lines = runs.map(({setting, points}) => {
    const corners = path(points.map(([step, v]) => [x(step), y(v)])), g = coloured(svg("g", {class: "run"}), setting);
    g.append(svg("polyline", {points: corners, class: "trace own", "stroke-dasharray": setting.dash}));
    // A line of one point cannot be seen.
    if (points.length === 1) g.append(svg("circle", {cx: x(points[0][0]), cy: y(points[0][1]), r: 3, class: "dot own"}));
    root.append(g);
    return g;
  });
  const cursor = svg("circle", {r: 5, class: "cursor own", visibility: "hidden"}); root.append(cursor);
  let here = null;
  const show = (run, at) => {
    const {setting, seed, points} = runs[run], [step, value] = points[at];
    here = {run, at}; lines.forEach((g, i) => g.classList.toggle("faint", i !== run));
    root.append(lines[run], coloured(cursor, setting));
    Object.entries({cx: x(step), cy: y(value), visibility: "visible"}).forEach(([key, v]) => cursor.setAttribute(key, v));
    readout.textContent = `Step ${number(step)}, ${setting.label}, seed ${seed}: ${text} ${exact(value)}`;
  };
  const nearest = (points, step) => {
    const away = points.map(p => Math.abs(p[0] - step));
    return away.indexOf(Math.min(...away));
  };
  ["pointermove", "pointerdown"].forEach(type => root.addEventListener(type, event => {
    const box = root.getBoundingClientRect(), left = (event.clientX - box.left) / box.width * width;
    const top = (event.clientY - box.top) / box.height * TALL;
    const near = runs.map(r => nearest(r.points, first + (left - LEFT) / inner * (last - first)));
    const away = runs.map(({points}, i) => Math.hypot(x(points[near[i]][0]) - left, y(points[near[i]][1]) - top));
    const run = away.indexOf(Math.min(...away)); show(run, near[run]);
  }));
  root.addEventListener("focus", () => { if (!here) show(0, runs[0].points.length - 1); });
  root.addEventListener("keydown", event => {
    const along = {ArrowLeft: -1, ArrowRight: 1}[event.key], over = {ArrowUp: -1, ArrowDown: 1}[event.key];
    if (!along && !over) return;
    const {run, at} = here, next = (run + (over || 0) + runs.length) % runs.length, {points} = runs[next];
    event.preventDefault();
    show(next, over ? nearest(points, runs[run].points[at][0]) : Math.min(Math.max(at + along, 0), points.length - 1));
  });
  ["pointerleave", "blur"].forEach(type => root.addEventListener(type, () => lines.forEach(g => g.classList.remove("faint"))));
  return root;
}
function showLearning() {
  const measures = Object.keys(CURVES).filter(m => trials.some(t => curveOf(t).some(p => known(p[m]))));
  const select = byId("curve-measure"), readout = byId("curve-readout");
  if (!measures.length) { byId("learning").hidden = true; return; }
  fill(select, measures.map(m => [m, CURVES[m].text]), measures.find(m => m === "ffn_infinity_norm") || measures[0]);
  const learned = [...settings.values()].filter(s => s.trials.some(t => curveOf(t).length)), chosen = new Set(learned);
  const again = fitted(byId("curves"), width => {
    const runs = curvesOf(learned.filter(s => chosen.has(s)), select.value), {log, meaning} = CURVES[select.value];
    byId("curve-meaning").textContent = meaning + (log ? "; logarithmic" : "");
    const hint = "Point at a curve to read it; or use the arrow keys, across from step to step, up and down from run to run.";
    readout.textContent = runs.length ? hint : "";
    if (runs.length) return curveChart(width, runs, select.value, readout);
    return el("p", chosen.size ? "None of the chosen settings has this measure." : "No setting is chosen.", "quiet");
  });
  const button = (className, content, act) => {
    const b = el("button", null, `toggle ${className}`); b.type = "button"; b.append(...content);
    b.addEventListener("click", () => { act(); mark(); again(); });
    return b;
  };
  const toggles = learned.map(s => {
    const stroke = coloured(svg("line", {x1: 0, x2: 22, y1: 5, y2: 5, class: "trace own", "stroke-dasharray": s.dash}), s);
    return button("", [drawnKey(22, stroke), el("span", s.label)], () => { if (!chosen.delete(s)) chosen.add(s); });
  });
  const mark = () => toggles.forEach((b, i) => b.setAttribute("aria-pressed", String(chosen.has(learned[i]))));
  const all = button("every", ["all"], () => learned.forEach(s => chosen.add(s)));
  const none = button("every", ["none"], () => chosen.clear());
  byId("curve-legend").append(...toggles, ...(toggles.length > 4 ? [all, none] : [])); mark();
  select.addEventListener("change", again);
}

// ---- the runs
const hasPage = t => Boolean(study.measures?.pages) && Boolean(t.result) && !t.elsewhere;
function runCells(t, withReal) {
  const link = el(hasPage(t) ? "a" : "span", t.name), first = named(t.at, link);
  if (hasPage(t)) link.href = `runs/${encodeURIComponent(t.name)}/inspect.html`;
  if (!t.result) {
    const cells = [first, el("span", `seed ${t.seed} failed: ${t.failed}`, "bad")]; cells.className = "failed";
    return cells;
  }
  const {seconds, fp32, quantized, real = "–", infinity_norm: norm = "–", kurtosis = "–"} = t.texts;
  const marked = text => el("span", text, ["broken", "not exported"].includes(text) ? "bad" : "");
  return [
    first, el("span", t.result.attention, "attention"), String(t.seed), seconds, marked(fp32),
    ...allBits.map(bits => marked(quantized[bits] ?? "–")), ...(withReal ? [marked(real)] : []), norm, kurtosis,
  ];
}
function showRuns() {
  const withReal = trials.some(t => t.result?.real), all = byId("all-runs"), notes = [], isMany = trials.length > FEW;
  const columns = [
    "run", "attention", "seed", "seconds", "fp32", ...allBits.map(b => b.toUpperCase()),
    ...(withReal ? ["real INT8"] : []), "largest value", "kurtosis",
  ];
  let everything = !isMany;
  const draw = () => {
    const t = table(columns, trials.slice(0, everything ? trials.length : FEW).map(one => runCells(one, withReal)));
    t.querySelectorAll(".failed td:last-child").forEach(td => { td.colSpan = columns.length - 1; });
    byId("run-table").replaceChildren(t);
    all.textContent = everything ? `show the first ${FEW}` : `show all ${trials.length}`;
  };
  all.hidden = !isMany; all.addEventListener("click", () => { everything = !everything; draw(); }); draw();
  if (trials.some(hasPage)) notes.push("The name of a run opens the page of its activations, which is in its folder.");
  const repeated = `Quantized: mean ± standard deviation of ${calibrations} calibrations of the same model.`;
  if (calibrations > 1 && rows.some(whole)) notes.push(repeated);
  byId("run-note").textContent = notes.join(" ");
  if (data.paper) byId("said").append(el("h3", "What the paper says"), el("blockquote", data.paper));
}
function showGiven() {
  const list = el("dl", null, "lines");
  const asked = ["recipe", "grid", "set", "seeds", "measures", "threads"].filter(key => study[key] !== undefined);
  linesOf(list, Object.fromEntries(asked.map(key => [key, study[key]])));
  byId("given").replaceChildren(...(data.command ? [el("code", data.command)] : []), list);
  byId("footer").textContent = Object.entries(data.versions || {}).map(([k, v]) => `${k} ${v}`).join(", ");
}
showVerdict(); showTable(); showPairs(); showHeat(); showField(); showLearning(); showRuns(); showGiven();
followTheme();
