"use strict";
// Values of a chart at the step under the pointer, or at the one that the arrow keys choose. The page listens, not
// each chart: a live page draws its charts anew.
const tip = document.getElementById("tip");
const chosen = new WeakMap();
const chartOf = (element) => element?.closest?.("svg.chart");
const hide = (chart) => { tip.hidden = true; chart.querySelector(".cursor").style.opacity = 0; };
const show = (chart, pick, top) => {
  const places = JSON.parse(chart.dataset.hover);
  if (!places.length) return;
  const last = places.length - 1;
  const place = Math.min(Math.max(pick(places, chosen.get(chart) ?? last), 0), last);
  chosen.set(chart, place);
  const box = chart.getBoundingClientRect(), cursor = chart.querySelector(".cursor");
  const [at, text] = places[place];
  cursor.setAttribute("x1", `${at}%`);
  cursor.setAttribute("x2", `${at}%`);
  cursor.style.opacity = 1;
  tip.textContent = text;
  tip.hidden = false;
  const left = box.left + (at / 100) * box.width + 12;
  tip.style.left = `${Math.max(4, left + tip.offsetWidth > innerWidth - 4 ? left - tip.offsetWidth - 24 : left)}px`;
  tip.style.top = `${Math.max(4, (top ?? box.top) - tip.offsetHeight - 12)}px`;
};
addEventListener("pointermove", (event) => {
  const chart = chartOf(event.target);
  if (!chart) return;
  const box = chart.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * 100;
  const far = ([at]) => Math.abs(at - x);
  show(chart, (places) => places.reduce((near, it, place) => (far(it) < far(places[near]) ? place : near), 0), event.clientY);
});
addEventListener("keydown", (event) => {
  const chart = chartOf(event.target);
  if (!chart) return;
  if (event.key === "Escape") hide(chart);
  const to = { ArrowLeft: (_, at) => at - 1, ArrowRight: (_, at) => at + 1, Home: () => 0, End: (places) => places.length - 1 };
  if (!to[event.key]) return;
  event.preventDefault();
  show(chart, to[event.key]);
});
addEventListener("focusin", ({ target }) => { if (chartOf(target)?.matches(":focus-visible")) show(target, (_, at) => at); });
addEventListener("focusout", ({ target }) => { if (chartOf(target)) hide(target); });
addEventListener("pointerout", ({ target, relatedTarget }) => {
  const chart = chartOf(target);
  if (chart && !chart.contains(relatedTarget)) hide(chart);
});
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
