// ---- the page of an export: words and tables as the terminal has them, and quality against speed
function scatter(width) {
  const height = 320, root = frame(width, `${data.metric} lost against speed`, height), points = data.points;
  const across = ticked([1, ...points.map(p => p.speed)], false), down = ticked(points.map(p => p.lost), true);
  const x = v => LEFT + across.share(v) * (width - LEFT - RIGHT - 20), y = v => TOP + down.share(v) * (height - TOP - BOTTOM - 16);
  down.ticks.forEach(t => root.append(svg("line", {x1: LEFT, x2: width - RIGHT, y1: y(t), y2: y(t), class: "grid"}), svg("text", {x: LEFT - 6, y: y(t) + 4, "text-anchor": "end"}, exact(t))));
  across.ticks.forEach(t => root.append(svg("text", {x: x(t), y: height - BOTTOM + 4, "text-anchor": "middle"}, `${exact(t)} ×`)));
  root.append(svg("text", {x: width - RIGHT, y: height - 4, "text-anchor": "end", class: "axis-title"}, `speed; upright: ${data.metric} lost`));
  const front = points.filter(p => p.front);
  root.append(svg("polyline", {points: path(front.map(p => [x(p.speed), y(p.lost)])), class: "front-line"}));
  points.forEach((p, i) => {
    const g = svg("g", {tabindex: 0, role: "img", "aria-label": `${p.name}: ${p.shown.join(", ")}`});
    g.append(svg("title", {}, `${p.name}: ${p.shown.join(", ")}`), svg("circle", {cx: x(p.speed), cy: y(p.lost), r: 6, class: `point${p.ours ? " ours" : ""}${p.front ? " front" : ""}`}), svg("text", {x: x(p.speed) + 10, y: y(p.lost) - 6}, i + 1));
    root.append(g);
  });
  return root;
}
function section({title, columns, rows}) {
  const box = el("section", null, "card"), scroll = el("div", null, "scroll");
  scroll.tabIndex = 0; scroll.append(table(columns.map(name), rows)); box.append(el("h2", title), scroll);
  return box;
}
document.title = `Quietformer: ${data.title}`;
byId("title").textContent = data.title;
byId("subtitle").textContent = data.subtitle;
byId("sentences").replaceChildren(...data.sentences.map(line => el("p", line)));
byId("tables").replaceChildren(...data.tables.map(section));
if (data.points.length > 1) {
  byId("front-title").textContent = `${capital(data.metric)} against speed`;
  fitted(byId("scatter"), scatter);
  byId("legend-table").replaceChildren(table(["", "tool", "speed", data.metric, "runtime"], data.points.map((p, i) => [i + 1, p.name, ...p.shown])));
  byId("tools").replaceChildren(...data.tools.map(([tool, what]) => { const p = el("p"); p.append(el("b", tool), `: ${what}`); return p; }));
} else byId("front").hidden = true;
byId("footer").replaceChildren(...[el("code", data.command), el("p", data.versions)]);
followTheme();
