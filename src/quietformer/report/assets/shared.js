"use strict";
// Everything shown comes from the JSON in the page; texts are only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
function el(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (className) node.className = className;
  return node;
}
function number(x, digits = 3) {
  if (x === null || x === undefined) return "–";
  if (Number.isInteger(x)) return x.toLocaleString("en");
  const size = Math.abs(x);
  if (size >= 1000) return Math.round(x).toLocaleString("en");
  if (size >= 100) return x.toFixed(0);
  if (size >= 10) return x.toFixed(1);
  return x === 0 ? "0" : Number(x.toPrecision(digits)).toString();
}
const name = site => site.replaceAll("_", " ");
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
const redraw = [];
function followTheme() {
  const root = document.documentElement, prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const set = dark => { root.dataset.theme = dark ? "dark" : "light"; redraw.forEach(f => f()); };
  set(prefersDark.matches);
  prefersDark.addEventListener("change", e => set(e.matches));
  byId("theme").addEventListener("click", () => set(root.dataset.theme !== "dark"));
}
