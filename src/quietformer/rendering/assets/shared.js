// Everything shown comes from the JSON in the page; texts are only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
function el(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (className) node.className = className;
  return node;
}
const capital = text => text.charAt(0).toUpperCase() + text.slice(1);
const name = site => site.replaceAll("_", " ");
function withCode(tag, text) {
  const node = el(tag);
  text.split("`").forEach((part, i) => node.append(i % 2 ? el("code", part) : part));
  return node;
}
function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => { const o = el("option", text); o.value = value; return o; }));
  if (chosen !== undefined) select.value = chosen;
}
function table(columns, rows) {
  const t = el("table"), head = el("tr"), body = el("tbody");
  columns.forEach(c => { const th = el("th", c); th.scope = "col"; head.append(th); });
  rows.forEach(cells => {
    const tr = el("tr", null, cells.className);
    cells.forEach(c => { const td = el("td"); td.append(c instanceof Node ? c : document.createTextNode(c)); tr.append(td); });
    body.append(tr);
  });
  const thead = el("thead"); thead.append(head); t.append(thead, body);
  return t;
}
function facts(pairs) {
  const box = el("div", null, "facts");
  pairs.forEach(([value, meaning]) => { const f = el("div", null, "fact"); f.append(el("b", value), el("span", meaning)); box.append(f); });
  return box;
}
// A mapping as lines of name and value, names of inner ones with dots.
function flat(value, prefix = "") {
  if (value === null || typeof value !== "object") return [[prefix, value === null ? "–" : String(value)]];
  if (Array.isArray(value)) return [[prefix, value.map(v => v !== null && typeof v === "object" ? JSON.stringify(v) : String(v)).join(", ") || "–"]];
  return Object.entries(value).flatMap(([key, inner]) => flat(inner, prefix ? `${prefix}.${key}` : key));
}
function linesOf(box, mapping) {
  box.replaceChildren(...flat(mapping || {}).filter(([key]) => key).map(([key, value]) => { const line = el("div"); line.append(el("dt", key), el("dd", value)); return line; }));
}
// One stop for the tab key; the arrows move from cell to cell, over holes.
function steer(rows) {
  const cells = rows.flat().filter(Boolean);
  cells.forEach((cell, i) => { cell.tabIndex = i ? -1 : 0; });
  const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  rows.forEach((line, i) => line.forEach((cell, j) => cell?.addEventListener("keydown", event => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    for (let r = i + step[0], c = j + step[1]; rows[r] && c >= 0 && c < rows[r].length; r += step[0], c += step[1]) {
      const next = rows[r][c];
      if (next) { cell.tabIndex = -1; next.tabIndex = 0; next.focus(); break; }
    }
  })));
}
// Tensors of which INT8 leaves almost nothing, and what helps them: the pages of `inspect` and `quantize`.
function showAnnihilated() {
  const found = data.annihilated || [], box = byId("annihilated");
  box.hidden = !found.length;
  const after = (row, remedy) => percent((row.remedies.find(r => r.name === remedy) || {}).zeroed);
  byId("annihilated-table").replaceChildren(table(["tensor", "become zero", "largest / median token", "after smoothing", "per token", "remedy"],
    found.map(row => [row.short, percent(row.zeroed), number(row.token_spread), after(row, "smoothing"), after(row, "per token"), withCode("span", row.advice)])));
}
const redraw = [];
function followTheme() {
  const root = document.documentElement, prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const set = dark => { root.dataset.theme = dark ? "dark" : "light"; redraw.forEach(f => f()); };
  set(prefersDark.matches);
  prefersDark.addEventListener("change", e => set(e.matches));
  byId("theme").addEventListener("click", () => set(root.dataset.theme !== "dark"));
}
