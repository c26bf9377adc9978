// A click on a heading sorts its table by that column; another click turns the order round. Tab reaches
// headings, and Enter or Space is a click.
const HEADINGS = ".md-typeset table:not([class]) thead th";
document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(HEADINGS).forEach((each) => { each.tabIndex = 0; }));
document.addEventListener("keydown", (event) => {
  if (!event.target.matches(HEADINGS) || ![" ", "Enter"].includes(event.key)) return;
  event.preventDefault();
  event.target.click();
});
document.addEventListener("click", (event) => {
  const heading = event.target.closest(HEADINGS);
  if (!heading || event.target.closest("a")) return;
  const table = heading.closest("table"), place = heading.cellIndex;
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const read = (row) => row.cells[place].textContent.trim();
  const number = (text) => { const found = text.replace(/[,−]/g, (sign) => (sign === "," ? "" : "-")).match(/^[+-]?[\d.]+/); return found ? parseFloat(found[0]) : NaN; };
  const compare = (a, b) => {
    const [x, y] = [number(read(a)), number(read(b))];
    if (isNaN(x) || isNaN(y)) return isNaN(x) && isNaN(y) ? read(a).localeCompare(read(b)) * (up ? 1 : -1) : isNaN(x) - isNaN(y);
    return (x - y) * (up ? 1 : -1);
  };
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const body = table.tBodies[0];
  [...body.rows].sort(compare).forEach((row) => body.append(row));
});
