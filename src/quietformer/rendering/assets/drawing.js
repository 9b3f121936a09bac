const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function rgb(variable) { return getComputedStyle(document.documentElement).getPropertyValue(variable).split(",").map(Number); }
function heat(rows, columns, value, {signed = false, high, onHover} = {}) {
  const canvas = el("canvas"); canvas.width = columns; canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const hot = rgb("--hot"), cool = rgb("--cool"), ground = getComputedStyle(document.body).getPropertyValue("--card").trim();
  const base = ground === "#ffffff" ? [255, 255, 255] : [28, 32, 36];
  let most = high; if (!most) { most = 1e-30; for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) most = Math.max(most, Math.abs(value(i, j))); }
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const v = value(i, j), share = Math.min(Math.abs(v) / most, 1) ** .6, ink = signed && v < 0 ? hot : cool, at = 4 * (i * columns + j);
    for (let c = 0; c < 3; c++) image.data[at + c] = base[c] + (ink[c] - base[c]) * share;
    image.data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  canvas.style.aspectRatio = "1";
  if (!onHover) return canvas;
  const inside = (x, count) => Math.min(count - 1, Math.max(0, Math.floor(x))), tell = () => { byId("hover").textContent = onHover(...at, value(...at)); };
  let at = [0, 0];
  ["pointermove", "pointerdown"].forEach(type => canvas.addEventListener(type, event => {
    const box = canvas.getBoundingClientRect();
    at = [inside((event.clientY - box.top) / box.height * rows, rows), inside((event.clientX - box.left) / box.width * columns, columns)]; tell();
  }));
  canvas.tabIndex = 0;
  canvas.addEventListener("keydown", event => {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (step) { event.preventDefault(); at = [inside(at[0] + step[0], rows), inside(at[1] + step[1], columns)]; tell(); }
  });
  return canvas;
}
function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), c => c.charCodeAt(0));
  return (i, j) => (bytes[i * packed.columns + j] - packed.zero) * packed.step;
}
function picture(caption, canvas) { const f = el("figure"); canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", caption); f.append(el("figcaption", caption), canvas); return f; }


// ---- heads
const tokenOf = sequence => i => sequence.tokens ? (sequence.tokens[i] ?? "") : (i === 0 ? "[class]" : `patch ${i - 1}`);
function idlest(rows) {
  let best = [rows[0].layer, 0, -1];
  rows.forEach(h => h.no_op.forEach((v, i) => { if (v > best[2]) best = [h.layer, i, v]; }));
  return best;
}
function attentionPicture(one, caption, onHover, high) { return picture(caption, heat(one.P.rows, one.P.columns, unpack(one.P), {high, onHover})); }
function gatePicture(one, caption, onHover, high = Math.max(1, ...one.pi)) {
  return picture(caption, heat(one.pi.length, 1, i => one.pi[i], {high, onHover: (i, j, x) => onHover(i, x)}));
}
// A button for each head, layers down. Choosing one draws the map anew: the focus stays where it was.
function headMap(box, rows, measure, {layer, head, choose, most = Math.max(...rows.flatMap(h => h[measure]), 1e-9)}) {
  const t = el("table"), top = el("tr"), focused = box.contains(document.activeElement);
  top.append(el("th", "layer")); rows[0].sink.forEach((_, i) => top.append(el("th", i))); t.append(top);
  steer(rows.map(h => {
    const tr = el("tr"); tr.append(el("th", h.layer)); t.append(tr);
    return h[measure].map((v, i) => {
      const b = el("button", `layer ${h.layer} head ${i}`); b.type = "button"; b.title = `layer ${h.layer}, head ${i}: ${number(v)}`;
      b.style.background = `rgba(var(--cool), ${.08 + .92 * v / most})`; if (layer === h.layer && head === i) b.className = "chosen";
      b.addEventListener("click", () => choose(h.layer, i));
      const td = el("td"); td.append(b); tr.append(td);
      return b;
    });
  }));
  box.replaceChildren(t);
  const chosen = box.querySelector(".chosen");
  if (!chosen) return;
  t.querySelectorAll("button").forEach(b => { b.tabIndex = b === chosen ? 0 : -1; });
  if (focused) chosen.focus();
}
