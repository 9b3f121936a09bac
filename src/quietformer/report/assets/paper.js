// A figure of the paper's, unrounded: mean ± standard deviation where there are two, else a list.
const quoted = x => Array.isArray(x) ? x.map(String).join(x.length === 2 ? " ± " : ", ") : x === undefined ? "–" : String(x);
const marked = source => el("span", source, `source ${source}`);
function boxed(content, className) {
  const box = el("div", null, `scroll figures ${className}`);
  box.tabIndex = 0;
  box.append(content);
  return box;
}
function written(title, text) {
  const block = el("pre", text);
  block.tabIndex = 0;
  return [el("h3", title), block];
}
function papersTable(shown) {
  const alone = shown.rows.every(line => line.made_by.length === 1), told = shown.columns.some(c => c.key === "finding");
  const rows = shown.rows.map(line => [marked(line.source), ...shown.columns.map(c => quoted(line.row[c.key])), ...(alone ? line.made_by : [])]);
  const titles = ["source", ...shown.columns.map(c => c.title), ...(alone ? ["made by"] : [])];
  return [el("h3", shown.name ? `The paper: ${shown.name}` : "The paper"), boxed(table(titles, rows), `paper${alone ? " made" : ""}${told ? " told" : ""}`)];
}
function ourTable(study) {
  const rows = study.table.rows.map(cells => [marked(study.source), ...cells]);
  const parts = [el("h3", `Ours: ${study.name}, ${study.recipe}: ${study.size.words}`), boxed(table(["source", ...study.table.columns], rows), "ours")];
  return [...parts, el("p", study.sentence), ...written("As it was run", study.command)];
}
const heading = item => item.name.replace("table", "Table ").replace("figure", "Figure ");
function card(item) {
  const section = el("section", null, "card");
  section.id = item.name;
  section.append(el("h2", `${heading(item)}: ${item.shows}`), el("p", `Section ${item.section} of the paper.`, "quiet"));
  item.paper.forEach(shown => section.append(...papersTable(shown)));
  if (!item.paper.length) section.append(el("p", "The paper: no figures of it are kept.", "quiet"));
  item.ours.forEach(study => section.append(...ourTable(study)));
  if (item.document) section.append(el("p", `Ours: ${item.document.holds}, in ${item.document.place}.`, "quiet"));
  else if (!item.ours.length) section.append(el("p", item.commands.length ? "Ours: not run here." : "Ours: nothing to run.", "quiet"));
  if (item.runs.length) section.append(el("p", `Made by ${item.runs.map(run => [run.recipe, run.variants.join(", ")].filter(Boolean).join(": ")).join("; ")}.`, "quiet"));
  Object.entries(item.files).forEach(([file, text]) => section.append(...written(file, text)));
  if (item.commands.length) section.append(...written("In full", item.commands.join("\n")));
  if (item.note) section.append(withCode("p", item.note));
  return section;
}
function line(item) {
  const link = el("a", heading(item)), marks = el("span");
  link.href = `#${item.name}`;
  if (item.paper.length) marks.append(marked("paper"), " ");
  if (item.ours.length) marks.append(marked("ours"));
  return [link, item.shows, marks, item.runs.map(run => run.recipe).join(", ")];
}
document.title = "Quietformer: the paper, item by item";
byId("title").textContent = "The paper, item by item";
byId("subtitle").textContent = "Quantizable Transformers: its tables and figures, what makes each of them, what it found and what we did";
byId("overview").replaceChildren(table(["item", "shows", "figures of", "recipe"], data.items.map(line)));
byId("items").replaceChildren(...data.items.map(card));
byId("elsewhere").textContent = data.elsewhere.length ? `Of no table or figure of the paper: ${data.elsewhere.join(", ")}.` : "";
byId("footer").textContent = data.how;
followTheme();
