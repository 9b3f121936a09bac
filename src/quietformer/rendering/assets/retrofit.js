const SIDES = data.after ? ["before", "after"] : ["before"], higher = data.better === "higher";
const inspected = side => data[side].inspect;
const heading = side => data.after ? side : "as it is";
const MEANINGS = {
  perplexity: "how many tokens the model hesitates between; lower is better", loss: "negative log-likelihood a token; lower is better",
  token_agreement: "share of tokens predicted as by the original model", agreement: "share of predictions as by the original model",
  cosine: "between its embeddings and those of the original model; 1 is the same", neighbour_agreement: "share of texts or images whose nearest other one is the same as in the original model",
  top1: "share of labels predicted", ndcg10: "known-item retrieval: a first sentence finds the rest of its paragraph (NDCG@10)",
  wer: "word error rate of what a speech model writes down; lower is better",
};
// What is measured of a side, and where it stands in the report; undefined is not measured, null gave no number.
const WAYS = [
  ["fp32", (s, m) => s.fp32?.[m]],
  ["simulated W8A8, per-tensor weights", (s, m) => s.simulated?.per_tensor?.[m]?.mean, (s, m) => s.simulated.per_tensor[m].std],
  ["simulated W8A8, per-channel weights", (s, m) => s.simulated?.per_channel?.[m]?.mean, (s, m) => s.simulated.per_channel[m].std],
  ["real INT8, per-tensor weights", (s, m) => s.real?.per_tensor?.[m]],
  ["real INT8, per-channel weights", (s, m) => s.real?.per_channel?.[m]],
];

// ---- verdict
function pairShown(before, after) {
  const both = [before, after].filter(known), share = both.every(x => Math.abs(x) <= 1) && both.some(x => !Number.isInteger(x));
  return x => share && known(x) ? shown(x, "share") : number(x);
}
function change(before, after, better, noise = 0) {
  if (!known(before) || !known(after)) return el("span", "–");
  const ratio = before > 0 ? after / before : NaN, same = before === after || Math.abs(ratio - 1) < .0005, show = pairShown(before, after);
  if (same) return el("span", "same");
  if (Math.abs(ratio - 1) < noise) return el("span", "about the same", "quiet");
  const words = ratio >= 2 ? `${number(ratio)} × more` : ratio > 0 && ratio <= .5 ? `${number(1 / ratio)} × less` : `${after > before ? "+" : "−"}${show(Math.abs(after - before))}`;
  if (!["higher", "lower"].includes(better)) return el("span", words);
  const good = (after > before) === (better === "higher"), span = el("span", `${good ? "✓" : "✗"} ${words}`, good ? "good" : "bad");
  span.append(el("span", good ? ", better" : ", worse", "unseen"));
  return span;
}
// Whether INT8 got better, by the most real way that both sides were measured in.
function improved() {
  if (!data.after) return inspected("before").verdict.severity === "quiet";
  const way = [...WAYS].reverse().find(([, value]) => SIDES.every(s => known(value(data[s], data.primary))));
  if (!way) return inspected("after").verdict.severity === "quiet";
  const [before, after] = SIDES.map(s => way[1](data[s], data.primary));
  return higher ? after > before : after < before;
}
function showVerdict() {
  const m = data.model, box = byId("verdict"), rows = data.rows || [];
  document.documentElement.classList.toggle("alone", !data.after);
  document.title = `${m.name}: ${data.after ? "before and after" : "left as it is"}`;
  byId("title").textContent = m.name;
  byId("subtitle").textContent = `${m.class_name}, ${number(m.parameters / 1e6)}M parameters, attention: ${m.attention}; ${data.after ? "retrofitted for INT8" : "looked at for a retrofit"}`;
  box.classList.add(improved() ? "quiet-model" : "worrying");
  const parts = [withCode("strong", data.sentence)];
  if (!data.after) parts.push(el("p", "The model was left alone. All numbers on this page are of the model as it is."));
  if (rows.length) {
    const scroll = el("div", null, "scroll");
    scroll.append(table(["", ...(data.after ? ["before", "after", "change"] : ["as it is"])], rows.map(r => {
      const show = pairShown(r.before, r.after);
      return [r.what, show(r.before), ...(data.after ? [show(r.after), change(r.before, r.after, r.better, r.noise)] : [])];
    })));
    parts.push(scroll);
  }
  box.replaceChildren(...parts);
}

// ---- charts
function layerChart(box, field, what, rows, readout) {
  const values = SIDES.flatMap(s => rows.map(r => r[s]?.[field])).filter(v => known(v) && v > 0);
  const said = r => `layer ${r.layer}: ${what} ${SIDES.map(s => `${exact(r[s]?.[field])}${data.after ? ` ${s}` : ""}`).join(", ")}`;
  if (!values.length) { box.append(el("p", "Not measured.", "quiet")); return; }
  fitted(box, width => {
    const root = frame(width, `${what} of each layer, logarithmic`), y = upright(root, values, width, true), column = (width - LEFT - RIGHT) / rows.length;
    root.setAttribute("role", "group");
    const x = i => LEFT + (i + .5) * column, drawn = v => known(v) && v > 0, every = Math.ceil(rows.length * 26 / (width - LEFT));
    const points = side => rows.map((r, i) => [x(i), r[side]?.[field]]).filter(([, v]) => drawn(v)).map(([at, v]) => [at, y(v)]);
    if (data.after) root.append(svg("polygon", {points: path([...points("before"), ...points("after").reverse()]), class: "between"}));
    SIDES.forEach(side => root.append(svg("polyline", {points: path(points(side)), class: `trace ${side}`})));
    const marks = rows.map((r, i) => {
      const g = svg("g", {role: "img", "aria-label": said(r)});
      g.append(svg("rect", {x: LEFT + i * column, y: TOP - 4, width: column, height: HEIGHT - TOP - BOTTOM + 8, rx: 4, class: "target"}));
      SIDES.forEach(side => { const v = r[side]?.[field]; if (drawn(v)) g.append(svg("circle", {cx: x(i), cy: y(v), r: rows.length > 30 ? 3 : 4.5, class: `mark ${side}`})); });
      ["pointerenter", "pointerdown", "focus"].forEach(type => g.addEventListener(type, () => { readout.textContent = capital(said(r)); }));
      root.append(g);
      if (i % every === 0) root.append(svg("text", {x: x(i), y: HEIGHT - 8, "text-anchor": "middle"}, r.layer));
      return g;
    });
    steer([marks]);
    return root;
  });
}
function stepsLeft(side) {
  const rows = inspected(side).sites.filter(r => known(r.int8_bits_left)), worst = rows.reduce((a, r) => !a || r.int8_bits_left < a.int8_bits_left ? r : a, null);
  return worst && {layer: worst.layer, steps: 2 ** worst.int8_bits_left};
}
function stepsFigure(side) {
  const {layer, steps} = stepsLeft(side), box = el("figure", null, `steps ${side}`), across = 64, rounded = number(steps >= 10 ? Math.round(steps) : steps, 2);
  const root = svg("svg", {viewBox: `0 0 ${across * 5} 20`, role: "img", "aria-label": `${rounded} of 256 steps`});
  for (let i = 0; i < 256; i++) {
    const place = {x: Math.floor(i / 4) * 5 + .5, y: i % 4 * 5 + .5, width: 4, height: 4, rx: .8}, part = Math.min(Math.max(steps - i, 0), 1);
    root.append(svg("rect", place));
    if (part) root.append(svg("rect", {...place, class: "left", "fill-opacity": part}));
  }
  box.append(el("h3", capital(heading(side))), root, el("b", `${rounded} of 256 steps`), el("span", `left for the ordinary values in layer ${layer}, the worst`, "quiet"));
  return box;
}
function showOutliers() {
  const find = (side, layer) => inspected(side).sites.find(r => r.layer === layer), sites = inspected("before").sites;
  if (!sites.length) { byId("outliers").hidden = true; return; }
  const rows = sites.map(r => r.layer).map(layer => ({layer, before: find("before", layer), after: data.after ? find("after", layer) : undefined}));
  const most = side => Math.max(...inspected(side).sites.map(r => r.infinity_norm)), tensor = name(sites[0].site).replace("ffn", "FFN");
  document.querySelectorAll(".tensor").forEach(node => { node.textContent = tensor; });
  byId("problem").textContent = `From layer to layer a model hands on thousands of numbers. Nearly all are small; a few are huge: outliers. INT8 has 256 steps to write all numbers of a tensor with, spread evenly from the smallest to the largest. One huge number makes every step wide, and the many ordinary ones, side by side on a few steps, can hardly be told apart. In this model the largest reach ${number(most("before"))}${data.after ? `; after the retrofit, ${number(most("after"))}` : ""}.`;
  if (SIDES.every(stepsLeft)) byId("steps").replaceChildren(...SIDES.map(stepsFigure));
  byId("legend").replaceChildren(...SIDES.map(side => {
    const item = el("span"), mark = svg("svg", {viewBox: "0 0 14 14", "aria-hidden": "true"});
    mark.append(svg("circle", {cx: 7, cy: 7, r: 4.5, class: `mark ${side}`})); item.append(mark, heading(side)); return item;
  }));
  const readout = byId("layer-readout"); readout.textContent = "Point at a layer, or go there with the arrow keys, to read its values.";
  layerChart(byId("norms"), "infinity_norm", "infinity norm", rows, readout);
  layerChart(byId("kurtoses"), "kurtosis", "kurtosis", rows, readout);
  const fields = [["infinity_norm", "infinity norm"], ["kurtosis", "kurtosis"]];
  byId("layer-table").replaceChildren(table(["layer", ...fields.flatMap(([, what]) => SIDES.map(s => data.after ? `${what} ${s}` : what))], rows.map(r => [r.layer, ...fields.flatMap(([field]) => SIDES.map(s => exact(r[s]?.[field])))])));
  byId("claims").replaceChildren(...SIDES.flatMap(side => inspected(side).verdict.claims.slice(0, 2).map(claim => withCode("li", data.after ? `${capital(side)}: ${claim}` : claim))));
}

// ---- quality
function barLength(value, values, measure) {
  if (!known(value)) return 1;
  // A perplexity of one is perfect and a broken one may be millions: only its logarithm can be drawn.
  if (measure === "perplexity") return Math.log(Math.max(value, 1)) / Math.log(Math.max(...values.filter(known), 1 + 1e-9));
  return Math.max(value, 0) / Math.max(1, ...values.filter(known));
}
function showQuality() {
  const select = byId("measure"), found = (m, way) => SIDES.map(s => way[1](data[s], m));
  const measures = [...new Set(SIDES.flatMap(s => [data[s].fp32, data[s].simulated?.per_tensor, data[s].simulated?.per_channel, data[s].real?.per_tensor, data[s].real?.per_channel]).flatMap(f => Object.keys(f || {})))];
  if (!measures.length) { byId("quality").hidden = true; return; }
  measures.sort((a, b) => (b === data.primary) - (a === data.primary));
  fill(select, measures.map(m => [m, name(m)]));
  const draw = () => {
    const m = select.value, ways = WAYS.filter(w => found(m, w).some(v => v !== undefined)), values = ways.flatMap(w => found(m, w)), t = el("table");
    byId("measure-meaning").textContent = MEANINGS[m] || "";
    ways.forEach(way => {
      const body = el("tbody"), title = el("tr"), th = el("th", way[0]); th.colSpan = 3; th.scope = "rowgroup"; title.append(th); body.append(title);
      SIDES.forEach(side => {
        const tr = el("tr"), value = way[1](data[side], m), which = el("th", heading(side)), bar = el("td"), figure = el("td", null, "figure"); which.scope = "row";
        if (value !== undefined) {
          const track = el("span", null, "track"), inner = el("i", null, known(value) ? side : "none"), std = known(value) && way[2] ? way[2](data[side], m) : null;
          inner.style.width = `${100 * barLength(value, values, m)}%`; track.setAttribute("aria-hidden", "true"); track.append(inner); bar.append(track);
          figure.append(el("span", shown(value, m), known(value) ? "" : "bad"));
          if (std) figure.title = `± ${number(std, 2)} over seeds`;
        } else figure.append(el("span", "not measured", "quiet"));
        tr.append(which, bar, figure); body.append(tr);
      });
      t.append(body);
    });
    byId("bars").replaceChildren(t);
    byId("bar-scale").textContent = `${m === "perplexity" ? "Bars are logarithmic and begin at 1, which is perfect: shorter is better. " : ""}Simulated: computed in fp32, with every weight and activation rounded as INT8 rounds it. Real: the exported file, run in INT8 by ONNX Runtime. Per-tensor weights share one scale; per-channel weights have one for each output.`;
  };
  select.addEventListener("change", draw); draw();
  showSavings();
}
function showSavings() {
  const real = (data.after || data.before).real, rows = real?.latency || [], bytes = real?.bytes;
  if (!rows.length && !bytes) { byId("savings").hidden = true; return; }
  const timed = (row, runtime, kind) => { const run = row.runs.find(r => r.runtime === runtime && r.kind === kind); return run ? run.fastest_ms ?? run.median_ms : null; };
  if (rows.length) byId("savings-table").replaceChildren(table(["batch", "length", "PyTorch ms", "ONNX ms", "INT8 ms", "INT8 against ONNX"], rows.map(r => {
    const [torch, fp32, int8] = [["torch", "fp32"], ["onnxruntime", "fp32"], ["onnxruntime", "int8"]].map(kind => timed(r, ...kind));
    return [number(r.batch), number(r.length), onePlace(torch), onePlace(fp32), onePlace(int8), known(fp32) && known(int8) ? `${twoPlaces(fp32 / int8)} × as fast` : MISSING];
  })));
  if (bytes) byId("size").textContent = `File: ${number(bytes.int8 / 1e6)} MB in INT8, ${number(bytes.fp32 / 1e6)} MB in fp32. Measured on the machine that made this page.`;
}

// ---- attention
function whyText(piece, gated) {
  const told = `Softmax attention always hands out all of its weight: a head that has nothing to add for a ${piece} cannot keep quiet. It learns to park its weight on ${piece === "patch" ? "a patch" : "a token"} that carries nothing, such as ${piece === "patch" ? "a piece of background" : "a full stop or a delimiter"}, and for that the layers before must write huge numbers there. Strong columns in the pictures are such parking places.`;
  if (!data.after) return told;
  if (!gated) return `${told} The retrofit trained the model to give the same answers without the huge numbers; its attention is now: ${inspected("after").model.attention}.`;
  // How far the gates really closed is said too: a reader should not credit them with what training did without them.
  const open = inspected("after").heads.flatMap(h => h.gate), mean = open.reduce((a, x) => a + x, 0) / open.length;
  return `${told} The retrofit gives each head a gate, a number for each ${piece} by which what the head adds is multiplied: near 0 it is shut and the head adds nothing, without any huge number. In the strip beside the picture, full colour is open. Here the gates of the heads are open to ${number(mean, 2)} on average, from ${number(Math.min(...open), 2)} to ${number(Math.max(...open), 2)}.`;
}
function parking(one, token) {
  const p = unpack(one.P), totals = new Map(); let all = 0;
  for (let i = 0; i < one.P.rows; i++) for (let j = 0; j < one.P.columns; j++) { const v = p(i, j); all += v; totals.set(token(j), (totals.get(token(j)) || 0) + v); }
  const [place, most] = [...totals].reduce((a, b) => b[1] > a[1] ? b : a);
  return all > 0 ? {place, share: most / all} : null;
}
function showAttention() {
  const rows = side => inspected(side).heads, kept = (side, layer) => inspected(side).pictures.attention.find(k => k.layer === layer);
  if (SIDES.some(side => !rows(side).length)) { byId("attention").hidden = true; return; }
  const measure = byId("head-measure"), layer = byId("layer"), head = byId("head"), sequence = inspected("before").pictures.sequences[0];
  const token = sequence ? tokenOf(sequence) : i => String(i), piece = sequence?.image ? "patch" : "token", gated = data.after && rows("after")[0].gate !== undefined;
  byId("why").textContent = whyText(piece, gated);
  const measures = Object.keys(inspected("before").head_measures).filter(m => m === "gate" ? false : SIDES.every(s => rows(s)[0][m]));
  if (gated) measures.push("gate");
  const meaning = m => inspected("before").head_measures[m] || inspected("after").head_measures[m];
  const NAMES = {no_op: "doing nothing (no-op score)", sink: "parked on one token (sink)", gate: "gate, how open"}, named = m => NAMES[m] || name(m);
  fill(measure, measures.map(m => [m, named(m)]));
  fill(layer, rows("before").map(h => [h.layer, h.layer])); fill(head, rows("before")[0].sink.map((_, i) => [i, i]));
  [layer.value, head.value] = idlest(rows("before"));
  const choose = (chosenLayer, chosenHead) => { layer.value = chosenLayer; head.value = chosenHead; draw(); };
  const maps = new Map(SIDES.map(side => { const part = el("div"), box = el("div", null, "head-map scroll"); part.append(el("h3", capital(heading(side))), box); byId("head-maps").append(part); return [side, {part, box}]; }));
  const drawMaps = () => {
    const m = measure.value, those = SIDES.filter(s => rows(s)[0][m]), most = Math.max(1e-9, ...those.flatMap(s => rows(s).flatMap(h => h[m])));
    byId("head-meaning").textContent = meaning(m);
    maps.forEach(({part, box}, side) => {
      part.hidden = !those.includes(side);
      if (!part.hidden) headMap(box, rows(side), m, {most, layer: +layer.value, head: +head.value, choose});
    });
  };
  const one = side => kept(side, +layer.value)?.heads[+head.value];
  const weights = side => { const found = one(side); return found && unpack(found.P); };
  const describe = (side, found) => {
    const park = parking(found, token), row = rows(side).find(h => h.layer === +layer.value), parts = [];
    parts.push(park ? `${percent(park.share, 0)} of its weight goes to \`${park.place.replaceAll("`", "'")}\`.` : "It gives no weight to anything here.");
    if (row.gate) parts.push(`Its gate is open to ${number(row.gate[+head.value], 2)} on average${Math.max(...row.gate) > 1 ? " (1 leaves the head as it is)" : ""}.`);
    parts.push(`No-op score ${number(row.no_op[+head.value], 2)}.`);
    return withCode("p", parts.join(" "));
  };
  const drawPictures = () => {
    const found = SIDES.map(one).filter(Boolean), box = byId("pictures");
    if (!found.length) { box.replaceChildren(el("p", "No picture was kept of this layer.", "quiet")); byId("hover").textContent = ""; return; }
    const high = Math.max(...found.map(f => 255 * f.P.step)), open = Math.max(1, ...found.flatMap(f => f.pi || []));
    byId("cropped").textContent = `one ${sequence?.image ? "image" : "text"}, ${found[0].P.rows} ${piece === "patch" ? "patches" : "tokens"}`;
    const said = (i, j) => `${token(i)} → ${token(j)}: ${SIDES.map(s => { const p = weights(s); return p ? `${number(p(i, j))}${data.after ? ` ${s}` : ""}` : null; }).filter(Boolean).join(", ")}`;
    box.classList.toggle("alone", !data.after);
    box.replaceChildren(...SIDES.map(side => {
      const here = one(side), part = el("div"), pattern = el("div", null, "pattern");
      part.append(el("h3", `${capital(heading(side))}: layer ${layer.value}, head ${head.value}`));
      if (!here) { part.append(el("p", "No picture was kept of this layer.", "quiet")); return part; }
      if (here.pi) { const gate = gatePicture(here, "gate", (i, x) => `${token(i)}: gate ${number(x)} ${heading(side)}`, open); gate.className = "gate"; gate.querySelector("canvas").style.aspectRatio = "auto"; pattern.append(gate); }
      else if (found.some(f => f.pi)) pattern.classList.add("shut");
      const map = attentionPicture(here, "who looks (down) at whom (across)", said, high), canvas = map.querySelector("canvas"), text = describe(side, here);
      canvas.setAttribute("aria-label", `attention ${heading(side)}, layer ${layer.value}, head ${head.value}: ${text.textContent}`);
      pattern.append(map); part.append(pattern, text);
      return part;
    }));
    byId("hover").textContent = "Point at a picture to read who looks at whom.";
  };
  const draw = () => { drawMaps(); drawPictures(); };
  [measure, layer, head].forEach(s => s.addEventListener("change", draw)); redraw.push(draw); draw();
}

// ---- the run
function runChart(box, series, log, readout) {
  const points = series.map(s => data.log.filter(r => known(r.step) && known(r[s.key]) && (!log || r[s.key] > 0)).map(r => [r.step, r[s.key]]).sort((a, b) => a[0] - b[0])).map((p, k) => ({...series[k], points: p})).filter(s => s.points.length);
  if (!points.length) return false;
  const steps = [...new Set(points.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b), last = Math.max(...steps), first = Math.min(0, ...steps);
  const said = step => `Step ${number(step)}: ${points.map(s => { const p = s.points.find(q => q[0] === step); return p ? `${s.name} ${exact(p[1])}` : null; }).filter(Boolean).join(", ")}`;
  const ends = points.map(s => `${s.name} from ${exact(s.points[0][1])} to ${exact(s.points[s.points.length - 1][1])}`).join("; ");
  let at = -1;
  fitted(box, width => {
    const root = frame(width, ends), y = upright(root, points.flatMap(s => s.points.map(p => p[1])), width, log), x = step => LEFT + (step - first) / (last - first || 1) * (width - LEFT - RIGHT);
    root.setAttribute("role", "img"); root.setAttribute("tabindex", "0");
    evenTicks(first, last).filter(t => t >= first && t <= last).forEach(t => root.append(svg("text", {x: x(t), y: HEIGHT - 8, "text-anchor": x(t) > width - 30 ? "end" : "middle"}, number(t))));
    const cursor = svg("line", {y1: TOP, y2: HEIGHT - BOTTOM, class: "stem", visibility: "hidden"}); root.append(cursor);
    points.forEach(s => {
      root.append(svg("polyline", {points: path(s.points.map(([step, v]) => [x(step), y(v)])), class: `trace ${s.look}`}));
      if (s.points.length <= 40) s.points.forEach(([step, v]) => root.append(svg("circle", {cx: x(step), cy: y(v), r: 3, class: `dot ${s.look}`})));
    });
    const show = place => { at = place; cursor.setAttribute("x1", x(steps[at])); cursor.setAttribute("x2", x(steps[at])); cursor.setAttribute("visibility", "visible"); readout.textContent = said(steps[at]); };
    ["pointermove", "pointerdown"].forEach(type => root.addEventListener(type, event => {
      const frame = root.getBoundingClientRect(), step = first + ((event.clientX - frame.left) / frame.width * width - LEFT) / (width - LEFT - RIGHT) * (last - first);
      show(steps.reduce((best, s, i) => Math.abs(s - step) < Math.abs(steps[best] - step) ? i : best, 0));
    }));
    root.addEventListener("focus", () => show(at < 0 ? steps.length - 1 : at));
    root.addEventListener("keydown", event => {
      const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (move) { event.preventDefault(); show(Math.min(Math.max(at + move, 0), steps.length - 1)); }
    });
    return root;
  });
  return true;
}
function showRun() {
  const readout = byId("step-readout"), log = data.log || [], values = key => log.map(r => r[key]).filter(known), wide = list => Math.min(...list) > 0 && Math.max(...list) / Math.min(...list) > 10;
  const losses = values("loss"), evaluated = [...values("eval_int8"), ...values("eval_fp32")];
  if (!losses.length && !evaluated.length) { byId("run").hidden = true; return; }
  byId("run-summary").textContent = `${number(data.steps)} steps${known(data.minutes) ? ` in ${number(data.minutes)} minutes` : ""}. The loss should fall and the quality of INT8 come close to that of fp32.`;
  byId("evaluated-title").textContent = `${capital(name(data.primary))}, step by step: ${higher ? "higher" : "lower"} is better`;
  readout.textContent = "Point at a curve, or use the arrow keys on it, to read a step.";
  byId("loss-part").hidden = !runChart(byId("loss"), [{key: "loss", name: "loss", look: "plain"}], losses.length > 0 && wide(losses), readout);
  const looks = [{key: "eval_int8", name: "INT8", look: "after"}, {key: "eval_fp32", name: "fp32", look: "dashed"}];
  byId("evaluated-part").hidden = !runChart(byId("evaluated"), looks, evaluated.length > 0 && !higher && wide(evaluated), readout);
  const legend = el("p", null, "legend quiet");
  looks.filter(s => values(s.key).length).forEach(s => { const item = el("span"), mark = svg("svg", {viewBox: "0 0 14 14", "aria-hidden": "true"}); mark.append(svg("line", {x1: 0, x2: 14, y1: 7, y2: 7, class: `trace ${s.look}`})); item.append(mark, s.name); legend.append(item); });
  byId("evaluated-part").append(legend);
  const columns = ["step", "loss", "learning_rate", "eval_int8", "eval_fp32"].filter(key => key === "step" || values(key).length);
  byId("log-table").replaceChildren(table(columns.map(name), log.map(r => columns.map(key => exact(r[key])))));
}

// ---- what was done
function showDone() {
  const before = inspected("before").model.attention, parts = [];
  const balance = data.recipe && data.recipe.model ? data.recipe.model.balance : 0;
  const units = balance ? ` Channels of the residual stream were balanced first (alpha ${balance}), which changes no output of the model; largest values and kurtosis are measured on the balanced scale, as they are quantized.` : "";
  byId("done-summary").textContent = data.after ? `Attention: ${before} before, ${data.attention || inspected("after").model.attention} after.${units}` : "Nothing was changed.";
  linesOf(byId("recipe"), data.recipe);
  byId("recipe-part").hidden = !byId("recipe").childElementCount;
  if (data.data && Object.keys(data.data).length) { const list = el("dl", null, "lines"); linesOf(list, data.data); parts.push(el("h3", "Data"), list); }
  if (data.command) parts.push(el("h3", "Command"), el("code", data.command));
  byId("given").replaceChildren(...parts);
  byId("footer").textContent = Object.entries(data.versions || {}).map(([k, v]) => `${k} ${v}`).join(", ");
}
showVerdict(); showOutliers(); showQuality(); showAttention(); showRun(); showDone();
followTheme();
