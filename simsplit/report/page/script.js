(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const show = (point) => {
    tip.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    const at = point.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.min(at.left + at.width / 2 - own.width / 2, innerWidth - own.width - 8);
    const above = at.top - own.height - 8;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above < 4 ? at.bottom + 8 : above}px`;
  };
  const hide = () => { tip.hidden = true; };
  const pointOf = (event) => event.target.closest?.("[data-p]");
  document.addEventListener("pointerover", (event) => (pointOf(event) ? show(pointOf(event)) : hide()));
  document.addEventListener("focusin", (event) => (pointOf(event) ? show(pointOf(event)) : hide()));
  document.addEventListener("scroll", hide, { capture: true, passive: true });

  // one stop of the Tab key for a chart; the arrow keys move within it
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const clamped = (value, length) => Math.max(0, Math.min(length - 1, value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const point = pointOf(event);
    if (!point || !(event.key in moves || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const groups = [...point.closest("[data-chart]").querySelectorAll("[data-group]")]
      .map((group) => [...group.querySelectorAll("[data-p]")]);
    const row = groups.findIndex((group) => group.includes(point));
    const [down, along] = moves[event.key] ?? [0, 0];
    const points = groups[clamped(row + down, groups.length)];
    const place = { Home: 0, End: points.length - 1 }[event.key] ?? groups[row].indexOf(point) + along;
    const next = points[clamped(place, points.length)];
    point.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(next);
  });

  for (const box of document.querySelectorAll("[data-views]")) {
    const figures = [...box.children], choice = document.createElement("select");
    figures.forEach((figure, index) => {
      choice.add(new Option(figure.dataset.view, index));
      figure.hidden = index > 0;
    });
    choice.addEventListener("change", () => {
      figures.forEach((figure, index) => { figure.hidden = index !== Number(choice.value); });
    });
    const label = document.createElement("label");
    label.className = "note";
    label.append(`${box.dataset.views} `, choice);
    box.prepend(label);
  }

  const toggle = document.getElementById("theme"), root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { toggle.textContent = dark() ? "Light theme" : "Dark theme"; };
  toggle.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  toggle.hidden = false;
  name();
})();
