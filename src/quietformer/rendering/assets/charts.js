// ---- charts: as wide as their place, so that letters keep their size on a phone
const HEIGHT = 230, LEFT = 52, RIGHT = 10, TOP = 10, BOTTOM = 26;
// Draws now and whenever the width changes; what it returns draws anew.
function fitted(box, draw) {
  let width = 0;
  const again = () => { if (width) box.replaceChildren(draw(width)); };
  const fit = () => { const now = Math.floor(box.clientWidth); if (now && now !== width) { width = now; again(); } };
  new ResizeObserver(fit).observe(box); fit();
  return again;
}
function logTicks(low, high) {
  const ticks = [], decades = Math.log10(high / low), steps = decades > 6 ? [1] : decades > 2.2 ? [1, 3] : [1, 2, 5], every = Math.ceil(decades / 7);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) if (every < 2 || power % every === 0) steps.forEach(s => ticks.push(s * 10 ** power));
  return ticks;
}
function evenTicks(low, high) {
  const rough = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 2.5, 5, 10].find(s => s * power >= rough * .999) * power, ticks = [];
  for (let i = Math.floor(low / step + 1e-9); (i - 1) * step < high; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}
// Round numbers around the values, and how far a value is from the first of them to the last.
function ticked(values, log) {
  const least = Math.min(...values), most = Math.max(...values), all = log ? logTicks(least, most) : evenTicks(least, most);
  const from = all.filter(t => t <= least * (1 + 1e-9)).pop() ?? all[0], to = all.find(t => t >= most * (1 - 1e-9) && t > from) ?? all[all.length - 1];
  const scale = log ? Math.log10 : v => v, low = scale(from), high = scale(to) === low ? low + 1 : scale(to);
  return {ticks: all.filter(t => t >= from && t <= to), share: v => (scale(v) - low) / (high - low)};
}
// A grid with round numbers around the values, and the function from a value to its height.
function upright(root, values, width, log, height = HEIGHT) {
  const {ticks, share} = ticked(values, log), y = v => height - BOTTOM - share(v) * (height - TOP - BOTTOM);
  ticks.forEach(t => root.append(
    svg("line", {x1: LEFT, x2: width - RIGHT, y1: y(t), y2: y(t), class: "grid"}),
    svg("text", {x: LEFT - 6, y: y(t) + 4, "text-anchor": "end"}, exact(t))));
  return y;
}
const frame = (width, label, height = HEIGHT) => svg("svg", {viewBox: `0 0 ${width} ${height}`, "aria-label": label});
const path = points => points.map(p => p.join(",")).join(" ");

