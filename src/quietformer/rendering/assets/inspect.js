const COLOURS = ["#2f6f8f", "#b3372b", "#2c7a4b", "#a8700d", "#7b4fa3", "#c2557f"];
const largest = row => Math.max(Math.abs(row.min), Math.abs(row.max));

// ---- charts
function lines(series, labels, {log = false, unit = ""} = {}) {
  const width = 480, height = 230, left = 46, right = 8, top = 10, bottom = 46;
  const values = series.flatMap(s => s.values).filter(v => v !== null && v > 0);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img"});
  if (!values.length) return root;
  const high = Math.max(...values), low = log ? Math.min(...values) : 0;
  const scale = log ? v => Math.log10(Math.max(v, low)) : v => v;
  const [a, b] = [scale(low), scale(high) + (scale(high) === scale(low) ? 1 : 0)];
  const x = i => left + (labels.length > 1 ? i / (labels.length - 1) : .5) * (width - left - right);
  const y = v => height - bottom - (scale(v) - a) / (b - a) * (height - top - bottom);
  for (let i = 0; i <= 4; i++) {
    const v = log ? 10 ** (a + (b - a) * i / 4) : a + (b - a) * i / 4;
    root.append(svg("line", {x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid"}), svg("text", {x: left - 6, y: y(v) + 4, "text-anchor": "end"}, number(v, 2)));
  }
  const every = Math.ceil(labels.length / 12);
  labels.forEach((t, i) => { if (i % every === 0) root.append(svg("text", {x: x(i), y: height - bottom + 15, "text-anchor": "middle"}, t)); });
  series.forEach((s, k) => {
    const points = s.values.map((v, i) => [i, v]).filter(([, v]) => v !== null && (!log || v > 0));
    root.append(svg("polyline", {points: points.map(([i, v]) => `${x(i)},${y(v)}`).join(" "), fill: "none", stroke: COLOURS[k % 6], "stroke-width": 2}));
    points.forEach(([i, v]) => { const c = svg("circle", {cx: x(i), cy: y(v), r: 3, fill: COLOURS[k % 6]}); c.append(svg("title", {}, `${s.name}, ${labels[i]}: ${number(v)}${unit}`)); root.append(c); });
    root.append(svg("rect", {x: left + (k % 3) * 145, y: height - 24 + Math.floor(k / 3) * 13, width: 9, height: 9, fill: COLOURS[k % 6]}), svg("text", {x: left + 13 + (k % 3) * 145, y: height - 16 + Math.floor(k / 3) * 13}, s.name));
  });
  return root;
}
function bars(values, {labels, marks = [], width = 960} = {}) {
  const height = 150, left = 46, bottom = 22, high = Math.max(...values, 1);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img"});
  const step = (width - left) / values.length;
  root.append(svg("line", {x1: left, x2: width, y1: height - bottom, y2: height - bottom, class: "grid"}), svg("text", {x: left - 6, y: 14, "text-anchor": "end"}, number(high)));
  values.forEach((v, i) => {
    if (!v) return;
    const h = v / high * (height - bottom - 16);
    const r = svg("rect", {x: left + i * step, y: height - bottom - h, width: Math.max(step - .5, 2.5), height: h, fill: marks.includes(i) ? "rgb(var(--hot))" : "var(--accent)"});
    r.append(svg("title", {}, `${labels ? labels(i) : i}: ${number(v)}`)); root.append(r);
    if (marks.includes(i)) root.append(svg("text", {x: Math.min(left + i * step, width - 14), y: height - bottom - h - 4, "text-anchor": "middle", class: "label"}, i));
  });
  for (let i = 0; i <= 4; i++) { const at = Math.round((values.length - 1) * i / 4); root.append(svg("text", {x: left + at * step, y: height - 6, "text-anchor": i === 4 ? "end" : "middle"}, at)); }
  return root;
}
// ---- sections
function showVerdict() {
  const m = data.model, v = data.verdict, h = data.headline, box = byId("verdict");
  document.title = `${m.name}: outliers`;
  byId("title").textContent = m.name;
  byId("subtitle").textContent = `${m.class_name}, ${number(m.parameters / 1e6)}M parameters, ${m.layers} layers${m.heads ? ` of ${m.heads} heads` : ""}, attention: ${m.attention}`;
  box.classList.add(v.severity === "quiet" ? "quiet-model" : v.severity);
  const claims = el("ul"), steps = el("ul");
  v.claims.forEach(c => claims.append(el("li", c))); v.next_steps.forEach(s => steps.append(el("li", s)));
  const worst = data.sites.filter(s => data.verdict.ranked.some(p => p.site === s.site)).reduce((a, s) => s.int8_bits_left < a.int8_bits_left ? s : a);
  const figures = facts([[number(h.infinity_norm), `largest infinity norm, ${name(h.infinity_site)}`], [number(h.kurtosis), "average kurtosis"], [number(worst.int8_bits_left), `bits left in the worst tensor`]]);
  box.replaceChildren(el("strong", v.sentence), claims, el("h3", "What to do"), steps, figures);
}
function showRanked() {
  const find = p => data.sites.find(s => s.site === p.site && s.layer === p.layer);
  const rows = data.verdict.ranked.slice(0, 12).map(find);
  const most = Math.max(...rows.map(largest));
  byId("ranked").replaceChildren(table(["tensor", "layer", "largest |x|", "kurtosis", "past 6σ", "bits left"], rows.map(r => {
    const reach = el("span", number(largest(r))), bar = el("span", null, "bar"); bar.style.width = `${60 * largest(r) / most}px`; reach.append(bar);
    const cells = [name(r.site), r.layer, reach, number(r.kurtosis), number(r.outliers), number(r.int8_bits_left)];
    cells.className = r.int8_bits_left < 4 ? "bad" : ""; return cells;
  })));
}
function showLayers() {
  const shown = ["ffn_output", "attention_output", "ffn_residual", "block_output", "ffn_norm"].filter(s => data.sites.some(r => r.site === s));
  const labels = [...Array(data.model.layers).keys()];
  const pick = field => shown.map(s => ({name: name(s), values: labels.map(l => { const r = data.sites.find(r => r.site === s && r.layer === l); return r ? r[field] : null; })}));
  byId("norms").replaceChildren(lines(pick("infinity_norm"), labels));
  byId("kurtoses").replaceChildren(lines(pick("kurtosis"), labels, {log: true}));
}
function showOutliers() {
  if (!data.outliers.length) { byId("outliers").hidden = true; return; }
  const select = byId("outlier-site");
  const order = data.verdict.ranked.map(p => data.outliers.findIndex(o => o.site === p.site && o.layer === p.layer)).filter(i => i >= 0);
  fill(select, order.map(i => [i, `${name(data.outliers[i].site)}, layer ${data.outliers[i].layer}`]));
  const draw = () => {
    const o = data.outliers[select.value], width = data.model.width || Math.max(...o.dimensions.map(d => d.dimension)) + 1;
    const counts = Array(width).fill(0); o.dimensions.forEach(d => { counts[d.dimension] = d.count; });
    const heads = [...new Set(o.few_dimensions.map(d => (o.dimensions.find(x => x.dimension === d) || {}).head))].filter(h => h !== null && h !== undefined);
    byId("outlier-summary").textContent = `${number(o.total)} values past 6σ; ${o.few_dimensions.length ? `${o.few_dimensions.length} dimension${o.few_dimensions.length === 1 ? "" : "s"} (${o.few_dimensions.join(", ")}${heads.length ? `; head${heads.length === 1 ? "" : "s"} ${heads.join(", ")} by position` : ""}) hold nearly all` : "spread over many dimensions"}${o.delimiter_share === null ? "" : `; ${Math.round(100 * o.delimiter_share)} % stand on delimiters and special tokens`}.`;
    byId("by-dimension").replaceChildren(bars(counts, {marks: o.few_dimensions}));
    byId("by-position").replaceChildren(bars(o.positions, {width: 480}));
    byId("by-token").replaceChildren(o.tokens.length ? table(["token", "outliers"], o.tokens.slice(0, 10).map(t => [t.token, number(t.count)])) : el("p", "no tokens", "quiet"));
  };
  select.addEventListener("change", draw); redraw.push(draw); draw();
}
function showAttention() {
  if (!data.heads.length) { byId("attention").hidden = true; return; }
  const measure = byId("measure"), layer = byId("layer"), head = byId("head"), sequence = byId("sequence"), kept = data.pictures.attention;
  fill(measure, Object.keys(data.head_measures).filter(m => m in data.heads[0]).map(m => [m, name(m)]));
  fill(layer, data.heads.map(h => [h.layer, h.layer])); fill(head, data.heads[0].sink.map((_, i) => [i, i]));
  fill(sequence, data.pictures.sequences.map((s, i) => [i, s.tokens ? `${i + 1}: ${s.tokens.slice(1, 6).join(" ")}…` : `image ${i + 1}`]));
  [layer.value, head.value] = idlest(data.heads);
  const choose = (chosenLayer, chosenHead) => { layer.value = chosenLayer; head.value = chosenHead; draw(); };
  const drawMap = () => {
    byId("measure-meaning").textContent = data.head_measures[measure.value];
    headMap(byId("head-map"), data.heads, measure.value, {layer: +layer.value, head: +head.value, choose});
  };
  const drawPictures = () => {
    const found = kept.find(k => k.layer === +layer.value && k.sequence === +sequence.value), box = byId("pictures");
    if (!found) { box.replaceChildren(el("p", "No picture was kept of this layer and sequence.", "quiet")); return; }
    const one = found.heads[+head.value], s = data.pictures.sequences[+sequence.value], token = tokenOf(s);
    const v = unpack(one.V), pv = unpack(one.PV), list = [];
    if (s.image) { const g = unpack(s.image); list.push(picture("the image", heat(s.image.rows, s.image.columns, g, {high: 1}))); }
    if (one.pi) list.push(gatePicture(one, "π, the gate", (i, x) => `${token(i)}: gate ${number(x)}`));
    list.push(attentionPicture(one, "P, probabilities (query down, key across)", (i, j, x) => `${token(i)} → ${token(j)}: ${number(x)}`));
    list.push(picture("V, values", heat(one.V.rows, one.V.columns, v, {signed: true, onHover: (i, j, x) => `${token(i)}, feature ${j}: ${number(x)}`})));
    list.push(picture(one.pi ? "π P V, what the head adds" : "P V, what the head adds", heat(one.PV.rows, one.PV.columns, pv, {signed: true, high: Math.max(...[one.V, one.PV].map(m => m.step * 127)), onHover: (i, j, x) => `${token(i)}, feature ${j}: ${number(x)}`})));
    box.replaceChildren(...list);
  };
  const draw = () => { drawMap(); drawPictures(); };
  [measure, layer, head, sequence].forEach(s => s.addEventListener("change", draw)); redraw.push(draw); draw();
}
function showPatches() {
  const rows = data.pictures.patches;
  if (!rows) { byId("patches").hidden = true; return; }
  const select = byId("patch-layer"); fill(select, rows.map((r, i) => [i, r.layer]), rows.length - 1);
  const draw = () => {
    const r = rows[select.value], at = list => (i, j) => list[r.extra_tokens + i * r.side + j];
    byId("patch-maps").replaceChildren(
      picture("attention each patch receives, all images", heat(r.side, r.side, at(r.attention))),
      picture("outliers in each patch, all images", heat(r.side, r.side, at(r.outliers))));
    byId("patch-values").textContent = r.value_norm_outlier_patches === null ? "No patch with outliers reaches this layer." : `Mean value norm: ${number(r.value_norm_outlier_patches)} for patches with outliers, ${number(r.value_norm_other_patches)} for the others.`;
  };
  select.addEventListener("change", draw); redraw.push(draw); draw();
}
function showInterventions() {
  if (!data.interventions || !data.interventions.length) { byId("interventions").hidden = true; return; }
  byId("intervention-table").replaceChildren(table(["what was done", "measure", "before", "after"], data.interventions.map(r => [r.what, r.measure, number(r.before), number(r.after)])));
}
function showGrowth() {
  if (!data.growth || !data.growth.length) { byId("growth").hidden = true; return; }
  const labels = data.growth.map((g, i) => i + 1);
  byId("growth-norms").replaceChildren(lines([{name: "infinity norm", values: data.growth.map(g => g.infinity_norm)}], labels));
  byId("growth-kurtoses").replaceChildren(lines([{name: "kurtosis", values: data.growth.map(g => g.kurtosis)}], labels, {log: true}));
}
showVerdict(); showAnnihilated(); showRanked(); showLayers(); showOutliers(); showAttention(); showPatches(); showInterventions(); showGrowth();
byId("footer").textContent = `${data.data.sequences} sequences of ${data.data.source || "given data"}; headline ${data.headline.source}; torch ${data.versions.torch}, transformers ${data.versions.transformers}. ${data.command || ""}`;
followTheme();
