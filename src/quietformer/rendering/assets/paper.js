const marked = source => el("span", source, `source ${source}`);
function boxed(content, className) {
  const box = el("div", null, `scroll numbers ${className}`);
  box.tabIndex = 0;
  box.append(content);
  return box;
}
function written(title, text) {
  const block = el("pre", text);
  block.tabIndex = 0;
  return [el("h3", title), block];
}
// The first cell of a row says whose it is.
function tableOf({title, columns, rows}, className) {
  const lines = rows.map(([source, ...cells]) => [marked(source), ...cells]);
  return [el("h3", title), boxed(table(columns, lines), className)];
}
const papersTable = shown => tableOf(shown, `paper${shown.made ? " made" : ""}${shown.told ? " told" : ""}`);
const ourTable = study => [...tableOf(study, "ours"), el("p", study.sentence), ...written("Command", study.command)];
function card(item) {
  const section = el("section", null, "card");
  section.id = item.name;
  section.append(el("h2", `${item.heading}: ${item.shows}`), el("p", `Section ${item.section} of the paper.`, "quiet"));
  item.papers.forEach(shown => section.append(...papersTable(shown)));
  if (!item.papers.length) section.append(el("p", "The paper: no numbers of it are kept.", "quiet"));
  item.studies.forEach(study => section.append(...ourTable(study)));
  if (item.status) section.append(el("p", item.status, "quiet"));
  if (item.made_by) section.append(el("p", `Made by ${item.made_by}.`, "quiet"));
  Object.entries(item.files).forEach(([file, text]) => section.append(...written(file, text)));
  if (item.commands.length) section.append(...written("Commands", item.commands.join("\n")));
  if (item.note) section.append(withCode("p", item.note));
  return section;
}
function line(item) {
  const link = el("a", item.heading), marks = el("span");
  link.href = `#${item.name}`;
  if (item.papers.length) marks.append(marked("paper"), " ");
  if (item.studies.length) marks.append(marked("ours"));
  return [link, item.shows, marks, item.runs.map(run => run.recipe).join(", ")];
}
document.title = "Quietformer: the paper, item by item";
byId("title").textContent = "The paper, item by item";
byId("subtitle").textContent = "Quantizable Transformers: its tables and figures, what makes each of them, what it found and what we did";
byId("overview").replaceChildren(table(["item", "shows", "results of", "recipe"], data.items.map(line)));
byId("items").replaceChildren(...data.items.map(card));
byId("elsewhere").textContent = data.elsewhere.length ? `Studies that belong to no table or figure of the paper: ${data.elsewhere.join(", ")}.` : "";
byId("footer").textContent = data.how;
followTheme();
