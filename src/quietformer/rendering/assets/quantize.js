const primary = data.primary, higher = data.better === "higher", several = data.runs.length > 1;
const sensitivity = data.sensitivity || {measure: null, rows: []}, measured = sensitivity.measure, base = sensitivity.nothing;
const FEW = 20;
// A perplexity counts by its logarithm (the loss), anything else by the share of it that is gone. Each scale: what is
// nothing, what is little, and beyond what a model is no longer the same model.
const [NOTHING, LITTLE, BREAKS] = data.scale;
const MEANINGS = {
  perplexity: "how many words the model hesitates between; lower is better", loss: "negative log-likelihood a token; lower is better",
  token_agreement: "share of tokens predicted as in fp32", agreement: "share of predictions as in fp32",
  cosine: "between embeddings, quantized and not", neighbour_agreement: "share of texts or images whose nearest other one is the same",
  top1: "share of labels predicted", ndcg10: "known-item retrieval: a first sentence finds the rest of its paragraph (NDCG@10)",
  wer: "word error rate of what a speech model writes down; lower is better",
};

const KEPT = {token_agreement: "of the tokens are predicted as before", agreement: "of the predictions are as before", neighbour_agreement: "of the nearest neighbours are the same"};

// ---- metrics in words
function cost(value, from) {
  if (!known(from) || from <= 0) return null;
  if (!known(value)) return Infinity;
  return higher ? (from - value) / from : Math.log(value / from);
}
const share = x => `${Math.abs(x) < .0005 ? "0" : number(100 * x, 2)}%`; // in words; in columns, where points stand below one another, `percent`
function change(value, from) {
  const much = cost(value, from);
  if (much === null) return "–";
  if (much === Infinity) return "broken";
  const ratio = value / from;
  if (ratio >= 2) return `× ${number(ratio)}`;
  return Math.abs(ratio - 1) < .0005 ? "under 0.1%" : `${ratio > 1 ? "+" : "−"}${share(Math.abs(ratio - 1))}`;
}
const severity = much => much === null ? "unknown" : much > BREAKS ? "broken" : much > LITTLE ? "some" : much > NOTHING ? "little" : "nothing";
const noise = row => known(row.sqnr_db) ? 10 ** (-row.sqnr_db / 20) : null;
const decibels = row => onePlace(row.sqnr_db);
const range = row => `${number(row.lo || 0)} .. ${number(row.hi || 0)}`;
const brief = text => text.length > 64 ? `${text.slice(0, 63)}…` : text;
const plusMinus = (found, measure) => `${shown(found.mean, measure)}${several && known(found.mean) && known(found.std) ? ` ± ${found.std < .01 ? number(found.std, 2) : shown(found.std, measure)}` : ""}`;
function gridWords(grid) {
  const parts = /^([su])(\d+)(@.*)?$/.exec(grid);
  return parts ? `${parts[2]} bits, ${parts[1] === "s" ? "symmetric" : "asymmetric"}${parts[3] === "@token" ? ", a scale for each token" : parts[3] ? ", a scale for each channel" : ""}` : grid;
}
// How much of the harm of quantizing everything is undone by sparing this one.
function regained(row) {
  const all = cost(sensitivity.everything, base), rest = cost(row.without, base);
  if (!known(all) || !known(rest) || all < NOTHING) return null;
  return all === Infinity ? (rest <= LITTLE ? 1 : 0) : (all - rest) / all;
}

// ---- sites: what layer, what kind
// Short names begin with their layer. Sites that have none (an FFN's first weight) belong to the layer whose module
// they are in, learned from the others; a module that holds several layers tells nothing.
function place(rows) {
  const layers = new Map(), order = new Map((data.plan.sites || []).map((s, i) => [s.site, i]));
  const prefixes = site => [...site.matchAll(/(?<=^|\.)\d+(?=[.:])/g)].map(found => site.slice(0, found.index + found[0].length));
  const own = row => /^(\d+)\.(.+)$/.exec(row.short);
  rows.forEach(row => { const found = own(row); if (found) prefixes(row.site).forEach(p => layers.set(p, layers.has(p) && layers.get(p) !== +found[1] ? null : +found[1])); });
  return rows.map((row, i) => {
    const found = own(row), prefix = prefixes(row.site).reverse().find(p => known(layers.get(p)));
    const layer = found ? +found[1] : prefix === undefined ? null : layers.get(prefix);
    const kind = found ? found[2] : layer === null ? row.short : row.site.slice(prefix.length + 1);
    return {...row, rank: i + 1, layer, kind, order: order.has(row.site) ? order.get(row.site) : i, alone: measured ? cost(row.only, base) : null};
  });
}
const sites = place(sensitivity.rows), layers = [...new Set(sites.map(s => s.layer))].filter(known).sort((a, b) => a - b);
function sentenceOf(row) {
  const lost = noise(row), parts = [row.site, row.role, row.layer === null ? "in no layer" : `layer ${row.layer}`, gridWords(row.grid), `range ${range(row)}`];
  parts.push(lost === null ? "no noise" : `SQNR ${decibels(row)} dB: noise of ${share(lost)} of the signal`);
  if (known(row.zeroed)) parts.push(`${percent(row.zeroed)} of its values become zero, the largest token reaches ${number(row.token_spread)} times as far as the median one`);
  if (measured) parts.push(`${name(measured)} ${shown(row.only, measured)} with it alone quantized, ${shown(row.without, measured)} with all but it`);
  return parts.join(" · ");
}

// ---- sections
function claims(much) {
  const found = [], from = data.fp32[primary], to = data.quantized[primary].mean, broke = data.runs.filter(r => !known(r.metrics[primary])).length;
  if (broke) found.push(broke === data.runs.length ? `${several ? "With every seed the" : "The"} quantized model gives no numbers at all.` : `${broke} of ${data.runs.length} seeds broke it.`);
  if (known(to) && much > NOTHING) found.push(higher ? `${share(much)} of its ${name(primary)} is lost.` : to / from >= 2 ? `Its ${name(primary)} is ${number(to / from)} times as high.` : `Its ${name(primary)} is ${share(to / from - 1)} higher.`);
  if (several && known(to) && Math.abs(from - to) < data.quantized[primary].std) found.push("That is less than seeds differ from one another.");
  // A measure that hardly moves may hide that the answers are others.
  Object.entries(KEPT).forEach(([measure, words]) => {
    const kept = (data.quantized[measure] || {}).mean;
    if (measure !== primary && known(kept) && kept < .99) found.push(`${share(kept)} ${words}.`);
  });
  if ((data.annihilated || []).length) found.push(`INT8 leaves almost nothing of ${data.annihilated.length === 1 ? "one tensor" : `${data.annihilated.length} tensors`}: ${data.annihilated.slice(0, 3).map(t => brief(t.short)).join(", ")}.`);
  if (!sites.length) return found;
  if (measured) {
    const worst = sites[0], spared = sites.reduce((a, s) => (regained(s) ?? -1) > (regained(a) ?? -1) ? s : a), back = regained(spared);
    if (worst.alone > NOTHING) found.push(`${brief(worst.short)} alone takes ${name(measured)} from ${shown(base, measured)} to ${shown(worst.only, measured)}.`);
    else if (much > LITTLE) found.push("No tensor does that alone: the harm adds up.");
    if (back !== null && back >= .1) found.push(back >= .995 ? `Sparing ${brief(spared.short)} alone mends it.` : `Sparing ${brief(spared.short)} alone gets back ${share(back)} of what is lost.`);
  } else {
    const noisy = sites.filter(s => known(s.sqnr_db)).slice(0, 3);
    if (noisy.length) found.push(`Noisiest: ${noisy.map(s => `${brief(s.short)} (noise of ${share(noise(s))} of the signal)`).join(", ")}.`);
  }
  return found;
}
function nextSteps(much) {
  if (!(much > LITTLE)) return [];
  const top = sites.slice(0, 5), steps = [], activation = top.find(s => s.role === "activation" && s.layer !== null && /^[\w.]+$/.test(s.kind));
  if (!measured) steps.push("`--sensitivity` measures what each tensor costs; noise is only a hint.");
  if (activation) steps.push(`\`--keep '*.${activation.kind}=16'\` gives these activations 16 bits.`);
  if (top.some(s => s.role === "weight") && !data.spec.per_channel) steps.push("`--per-channel` gives each output channel of a weight its own scale.");
  if (!data.search.length) steps.push("`--search` tries other estimators of the ranges of activations.");
  if (top.some(s => s.role === "activation")) steps.push("`quietformer inspect` shows the outliers behind wide ranges and the heads that make them.");
  return steps;
}
function showVerdict() {
  const m = data.model, box = byId("verdict"), from = data.fp32[primary], to = data.quantized[primary], much = cost(to.mean, from), level = severity(much);
  document.title = `${m.name}: ${data.label}`;
  byId("title").textContent = m.name;
  byId("subtitle").textContent = `${m.class_name}, ${number(m.parameters / 1e6)}M parameters, attention: ${m.attention}; quantized in simulation`;
  const said = {
    broken: `${data.label} breaks this model`, some: `${data.label} costs this model quality`, little: `${data.label} costs this model a little`,
    nothing: `${data.label} costs this model next to nothing`, unknown: "There is nothing to compare with: the model does not work in fp32",
  }[level];
  box.classList.add({broken: "broken", some: "worrying", little: "quiet-model", nothing: "quiet-model", unknown: "worrying"}[level]);
  const list = (texts, make) => { const ul = el("ul"); texts.forEach(t => ul.append(make("li", t))); return ul; };
  const counted = claims(much), steps = nextSteps(much), parts = [el("strong", `${said}: ${name(primary)} ${shown(from, primary)} → ${plusMinus(to, primary)}.`)];
  if (counted.length) parts.push(list(counted, el));
  if (steps.length) parts.push(el("h3", "What to do"), list(steps, withCode));
  parts.push(facts([[shown(from, primary), `${name(primary)} in fp32`], [plusMinus(to, primary), `in ${data.label}${several ? `, ${data.runs.length} seeds` : ""}`], [change(to.mean, from), "change"], [`${data.plan.weights} + ${data.plan.activations}`, "weights + activations quantized"]]));
  box.replaceChildren(...parts);
}
function showMeasures() {
  const marked = (x, measure) => known(x) ? shown(x, measure) : el("span", "broken", "bad");
  byId("measure-table").replaceChildren(table(["measure", "fp32", `in ${data.label}`, ...(several ? data.runs.map(r => `seed ${r.seed}`) : [])], Object.keys(data.fp32).map(measure => {
    const what = el("span", name(measure)), found = data.quantized[measure];
    if (MEANINGS[measure]) what.append(el("span", MEANINGS[measure], "meaning"));
    return [what, marked(data.fp32[measure], measure), known(found.mean) ? plusMinus(found, measure) : marked(null), ...(several ? data.runs.map(r => marked(r.metrics[measure], measure)) : [])];
  })));
  const limit = much => share(higher ? much : Math.exp(much) - 1);
  byId("scale").textContent = `${several ? "Mean ± standard deviation over seeds, each calibrated on other batches" : "One seed"}; ${number(data.data.evaluation_sequences)} sequences. By ${name(primary)}, this page calls up to ${limit(NOTHING)} ${higher ? "lost" : "more"} next to nothing, up to ${limit(LITTLE)} a little, and over ${limit(BREAKS)} broken.`;
}
function showRanking() {
  const role = byId("role"), layer = byId("layer"), text = byId("text"), body = el("tbody"), head = el("tr");
  const reach = row => measured ? row.alone : noise(row);
  // A finite harm is drawn on a scale that never makes a trifle look long; a broken one fills its track.
  const most = Math.max(measured ? LITTLE : .1, ...sites.map(reach).filter(x => known(x) && x !== Infinity));
  const figureOf = row => measured ? shown(row.only, measured) : noise(row) === null ? "–" : percent(noise(row));
  const widest = Math.max(0, ...sites.map(row => figureOf(row).length)); // all tracks are equally long
  const barred = row => {
    const figure = figureOf(row), cell = el("span", null, "measured"), track = el("span", null, "track"), bar = el("span", null, "bar"), long = Math.min(Math.max(reach(row) || 0, 0) / most, 1);
    bar.style.width = `${100 * long}%`; track.setAttribute("aria-hidden", "true");
    if (measured ? row.alone > LITTLE : reach(row) > .1) bar.classList.add("worst");
    if (long) track.append(bar);
    const written = el("span", figure, figure === "broken" ? "bad" : ""); written.style.minWidth = `${widest + 1}ch`;
    cell.append(track, written); return cell;
  };
  const naming = row => {
    const button = el("button", row.short, "site"); button.type = "button"; button.title = row.site; button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const line = button.closest("tr"), open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      if (open) { line.nextSibling.remove(); return; }
      const detail = el("tr", null, "detail"), td = el("td", sentenceOf(row)); td.colSpan = columns.length; detail.append(td); line.after(detail);
    });
    return button;
  };
  const sparing = row => {
    const back = regained(row), cell = el("span");
    if (back !== null && back >= .05) cell.append(el("span", back >= .995 ? "mends it" : `${percent(back)} back`, "good"), " ");
    cell.append(el("span", shown(row.without, measured), known(row.without) ? "" : "bad")); return cell;
  };
  // `first` is the direction of the first click: that which puts the harmful on top.
  const columns = [
    {head: "#", label: "rank", value: r => r.rank, first: 1, cell: r => r.rank},
    {head: "tensor", value: r => r.short, first: 1, cell: naming},
    ...(measured ? [
      {head: `${name(measured)}, it alone`, value: r => r.alone, first: -1, cell: barred},
      {head: "all but it", value: r => cost(r.without, base), first: 1, cell: sparing},
    ] : [{head: "noise / signal", value: noise, first: -1, cell: barred}]),
    {head: "SQNR dB", value: r => r.sqnr_db, first: 1, cell: decibels},
    {head: "range", value: r => r.hi - r.lo, first: -1, cell: range},
    {head: "grid", value: r => r.grid, first: 1, cell: r => { const g = el("span", r.grid); g.title = gridWords(r.grid); return g; }},
    {head: "role", value: r => r.role, first: 1, cell: r => r.role},
  ];
  let by = columns[0], direction = 1, everything = false;
  const compare = (a, b) => {
    const [x, y] = [by.value(a), by.value(b)];
    if (x === null || y === null) return (x === null) - (y === null) || a.rank - b.rank;
    const order = typeof x === "string" ? x.localeCompare(y, "en", {numeric: true}) : x === y ? 0 : x < y ? -1 : 1;
    return direction * order || a.rank - b.rank;
  };
  const draw = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = sites.filter(s => (role.value === "" || s.role === role.value) && (layer.value === "" || String(s.layer) === layer.value) && words.every(w => `${s.short} ${s.site}`.toLowerCase().includes(w))).sort(compare);
    const some = everything ? found : found.slice(0, FEW);
    body.replaceChildren(...some.map(row => {
      const tr = el("tr");
      columns.forEach(c => { const td = el("td"), inner = c.cell(row); td.append(inner instanceof Node ? inner : document.createTextNode(inner)); tr.append(td); });
      return tr;
    }));
    if (!found.length) { const tr = el("tr"), td = el("td", "No tensor matches."); td.colSpan = columns.length; tr.append(td); body.append(tr); }
    byId("shown").textContent = `${some.length} of ${found.length === sites.length ? sites.length : `${found.length} that match`}`;
    byId("clear").hidden = !(role.value || layer.value || words.length);
    byId("all").hidden = found.length <= FEW;
    byId("all").textContent = everything ? `show the first ${FEW}` : `show all ${found.length}`;
    columns.forEach((c, i) => { const th = head.children[i]; if (c === by) th.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending"); else th.removeAttribute("aria-sort"); });
  };
  columns.forEach(c => {
    const th = el("th"), button = el("button", c.head); th.scope = "col"; button.type = "button"; button.title = `sort by ${c.label || c.head}`; if (c.label) button.setAttribute("aria-label", c.label);
    button.addEventListener("click", () => { direction = c === by ? -direction : c.first; by = c; draw(); });
    th.append(button); head.append(th);
  });
  const whole = el("table"), thead = el("thead"); thead.append(head); whole.append(thead, body); byId("sites").replaceChildren(whole);
  byId("ranking-title").textContent = `Which tensors are to blame: the ${measured ? "most harmful" : "noisiest"} first`;
  byId("ranking-note").textContent = measured
    ? `On ${number(sensitivity.sequences)} sequences, where ${name(measured)} is ${shown(base, measured)} with nothing quantized and ${shown(sensitivity.everything, measured)} with everything. Each tensor alone, and all but each.${higher ? "" : " Bars are by loss."}`
    : "By the noise that each quantizer adds to its tensor. How much that harms the model was not measured; --sensitivity does.";
  fill(role, [["", "all"], ["weight", "weights"], ["activation", "activations"]]);
  fill(layer, [["", "all"], ...layers.map(l => [l, l]), ...(sites.some(s => s.layer === null) ? [["null", "none"]] : [])]);
  role.addEventListener("change", draw); layer.addEventListener("change", draw); text.addEventListener("input", draw);
  byId("clear").addEventListener("click", () => { role.value = layer.value = text.value = ""; draw(); text.focus(); });
  byId("all").addEventListener("click", () => { everything = !everything; draw(); });
  draw();
  return row => {
    role.value = row.role; layer.value = String(row.layer); text.value = row.kind; draw();
    byId("ranking").scrollIntoView(); body.querySelector("button")?.focus({preventScroll: true});
  };
}
function showMap(find) {
  const figure = byId("figure"), legend = byId("legend"), readout = byId("readout"), hint = "Point at a cell, or go there with the arrow keys; press it to find it above.";
  const harms = sites.map(s => s.alone).filter(x => known(x) && x !== Infinity), most = Math.max(LITTLE, ...harms);
  const kinds = {
    alone: {text: `${name(measured || "")}, it alone`, heat: s => (s.alone || 0) / most, label: s => s.alone === Infinity ? "broken" : s.alone === null ? "–" : compact(s.alone, s.only),
      legend: [higher ? `${share(most)} lost` : change(base * Math.exp(most), base), "unharmed"]},
    sqnr: {text: "SQNR dB", heat: s => known(s.sqnr_db) ? (40 - s.sqnr_db) / 30 : 0, label: s => wholeNumber(s.sqnr_db), legend: ["10 dB or less", "40 dB or more"]},
  };
  const compact = (much, value) => {
    const rise = higher ? much : value / base - 1;
    return rise >= 9.995 ? `×${number(rise + 1, 2)}` : Math.abs(rise) < .0005 ? "0" : percent(rise, Math.abs(rise) >= .0995 ? 0 : 1).replace("-", "−");
  };
  fill(figure, (measured ? ["alone", "sqnr"] : ["sqnr"]).map(k => [k, kinds[k].text + (k === "alone" ? (higher ? ", share lost" : ", rise") : "")]));
  const cellOf = (row, also, long) => {
    const kind = kinds[figure.value], said = `${row.short}: ${sentenceOf(row)}${also ? ` · and ${also} more here` : ""}`;
    const cell = el("button", null, "cell"); cell.append(...(long ? [el("span", row.short), el("b", kind.label(row))] : [kind.label(row)])); cell.type = "button"; cell.title = said; cell.setAttribute("aria-label", said);
    cell.style.setProperty("--heat", String(Math.min(Math.max(kind.heat(row), 0), 1)));
    ["pointerenter", "focus"].forEach(type => cell.addEventListener(type, () => { readout.textContent = said; }));
    cell.addEventListener("click", () => find(row));
    return cell;
  };
  const grid = (heading, rows) => {
    const box = el("div", null, "map"), t = el("table"), top = el("tr"), body = el("tbody"), thead = el("thead"), lines = [];
    const names = [...new Set([...rows].sort((a, b) => a.order - b.order).map(s => s.kind))];
    top.append(el("td")); layers.forEach(l => { const th = el("th", l); th.scope = "col"; top.append(th); }); thead.append(top);
    names.forEach(kind => {
      const tr = el("tr"), th = el("th"), line = []; th.scope = "row"; th.title = kind; th.append(el("span", name(kind).replace(/[.:]weight$/, ""))); tr.append(th);
      layers.forEach(l => {
        const here = rows.filter(s => s.kind === kind && s.layer === l), td = el("td"), cell = here.length ? cellOf(here[0], here.length - 1) : null;
        if (cell) td.append(cell);
        line.push(cell); tr.append(td);
      });
      lines.push(line); body.append(tr);
    });
    t.append(thead, body); steer(lines);
    const scroll = el("div", null, "scroll"); scroll.append(t); box.append(el("h3", heading), scroll);
    if (layers.length > 8) box.classList.add("wide");
    return box;
  };
  const draw = () => {
    const inside = role => sites.filter(s => s.role === role && s.layer !== null), outside = sites.filter(s => s.layer === null).sort((a, b) => a.order - b.order);
    const parts = [["activation", "Activations by layer"], ["weight", "Weights by layer"]].filter(([role]) => inside(role).length).map(([role, heading]) => grid(heading, inside(role)));
    if (outside.length) {
      const box = el("div", null, "map wide"), line = el("div", null, "outside"), cells = outside.map(s => cellOf(s, 0, true));
      line.append(...cells); steer([cells]); box.append(el("h3", "In no layer"), line); parts.push(box);
    }
    byId("maps").replaceChildren(...parts);
    const [hot, clear] = kinds[figure.value].legend; legend.replaceChildren(el("span", hot), el("i"), el("span", clear));
    readout.textContent = hint;
  };
  figure.addEventListener("change", draw); draw();
  if (!sites.length) byId("map").hidden = true;
}
function showLeft() {
  const reasons = new Map(), box = byId("left-groups");
  (data.plan.left || []).forEach(({site, why}) => reasons.set(why, [...(reasons.get(why) || []), site]));
  if (!reasons.size) { box.replaceChildren(el("p", "Nothing: every tensor the model computes with is quantized.")); return; }
  box.replaceChildren(...[...reasons].flatMap(([why, names]) => {
    const list = el("ul"), alike = new Map();
    names.forEach(n => { const key = n.replace(/(?<=^|\.)\d+(?=[.:])/g, "*"); alike.set(key, [...(alike.get(key) || []), n]); });
    alike.forEach((same, key) => {
      const li = el("li");
      if (same.length === 1) li.append(el("code", same[0]));
      else { const more = el("details"), summary = el("summary"), all = el("ul"); summary.append(el("code", key), ` × ${same.length}`); same.forEach(n => { const one = el("li"); one.append(el("code", n)); all.append(one); }); more.append(summary, all); li.append(more); }
      list.append(li);
    });
    return [el("h3", `${why} (${names.length})`), list];
  }));
}
function showSearch() {
  if (!data.search.length) { byId("search").hidden = true; return; }
  const worth = row => { const x = row.metrics[primary]; return !known(x) ? -Infinity : higher ? x : -x; };
  const best = data.search.reduce((a, r) => worth(r) > worth(a) ? r : a), measures = Object.keys(data.search[0].metrics);
  byId("search-table").replaceChildren(table(["activations", ...measures.map(name), ""], data.search.map(row => {
    const cells = [row.activations, ...measures.map(m => shown(row.metrics[m], m)), row === best ? "chosen" : ""];
    cells.className = row === best ? "chosen" : ""; return cells;
  })));
}
function showFooter() {
  const s = data.spec, d = data.data, line = (...parts) => { const p = el("p"); p.append(...parts); return p; };
  const estimator = ({kind, ...rest}) => kind + (Object.keys(rest).length ? `(${Object.entries(rest).map(([k, v]) => `${k}=${v}`).join(", ")})` : "");
  const grid = (bits, symmetric) => `${bits} bits, ${symmetric ? "symmetric" : "asymmetric"}`;
  const spec = [`Weights: ${grid(s.weight_bits, s.weight_symmetric)}, ${s.per_channel ? "a scale for each channel" : "one scale a tensor"}, ${estimator(s.weights)}`, `activations: ${grid(s.activation_bits, s.activation_symmetric)}, ${s.granularity === "token" ? "one scale a token" : "one scale a tensor"}, ${estimator(s.activations)}`, `head ${s.head ? "" : "not "}quantized`, `gates ${s.gate ? "" : "not "}quantized`];
  if (s.rules.length) spec.push(`rules ${s.rules.join(", ")}`);
  const parts = [line(`${spec.join("; ")}.`), line(`${d.source || "Given data"}${d.length ? `, ${d.length} tokens a sequence` : ""}: calibrated on ${number(d.calibration_sequences)}, evaluated on ${number(d.evaluation_sequences)}; seed ${d.seed ?? 0}.`)];
  if (data.command) parts.push(line(el("code", data.command)));
  if (data.versions) parts.push(line(Object.entries(data.versions).map(([k, v]) => `${k} ${v}`).join(", ")));
  byId("footer").replaceChildren(...parts);
}
showVerdict(); showMeasures(); showAnnihilated(); showMap(showRanking()); showLeft(); showSearch(); showFooter();
followTheme();
