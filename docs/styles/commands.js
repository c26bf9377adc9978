// A click on a cell of a board's table shows the command that measures it, below its row.
// Each strength is a button, so that Tab reaches it and Enter opens it. Another click closes it.
const findStrength = (table) => [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.trim() === "strength");

function close(table) {
  for (const open of table.querySelectorAll("tr.command")) open.remove();
  for (const button of table.querySelectorAll("td > button")) button.setAttribute("aria-expanded", "false");
}

function show(cell, holder) {
  const row = cell.parentNode, table = row.closest("table"), own = row.cells[findStrength(table)];
  const name = own.textContent.trim(), column = table.tHead.rows[0].cells[cell.cellIndex].textContent.trim();
  const threat = holder.dataset.threats.split(",").includes(column) ? `,threat=${column}` : "";
  const text = `${holder.dataset.command} defence=${name}${threat}`;
  const isOpen = row.nextElementSibling?.className === "command" && row.nextElementSibling.querySelector("code").textContent === text;
  close(table);
  if (!name || isOpen) return;
  const line = table.tBodies[0].insertRow(row.sectionRowIndex + 1), place = document.createElement("div");
  const code = document.createElement("code"), copy = document.createElement("button");
  line.className = "command";
  const wide = line.insertCell();
  wide.colSpan = row.cells.length;
  wide.append(place);
  code.textContent = text;
  copy.type = "button";
  copy.textContent = "copy";
  copy.addEventListener("click", () => {
    getSelection().selectAllChildren(code);  // where there is no clipboard, it is selected at least
    navigator.clipboard?.writeText(text).then(() => (copy.textContent = "copied"), () => {});
  });
  place.append(code, copy);
  own.querySelector("button").setAttribute("aria-expanded", "true");
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".commands table")) {
    for (const row of table.tBodies[0].rows) {
      const cell = row.cells[findStrength(table)], button = document.createElement("button");
      if (!cell?.textContent.trim()) continue;
      button.type = "button";
      button.title = "Show the command that measures it";
      button.setAttribute("aria-expanded", "false");
      button.append(...cell.childNodes);
      cell.append(button);
    }
  }
});
// before the table is sorted: a command would lose its row
document.addEventListener("click", (event) => {
  const heading = event.target.closest(".commands th");
  if (heading) close(heading.closest("table"));
}, true);
document.addEventListener("click", (event) => {
  const cell = event.target.closest(".commands tbody tr:not(.command) td");
  if (cell && !event.target.closest("a")) show(cell, cell.closest(".commands"));
});
