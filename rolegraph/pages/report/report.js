"use strict";
// Values of a chart at the step under the pointer, or at the one that the arrow keys choose.
const tip = document.getElementById("tip");
for (const chart of document.querySelectorAll("svg.chart")) {
  const cursor = chart.querySelector(".cursor");
  const places = JSON.parse(chart.dataset.hover);
  if (!places.length) continue;
  let chosen = places.length - 1;
  const hide = () => { tip.hidden = true; cursor.style.opacity = 0; };
  const show = (place, top) => {
    const box = chart.getBoundingClientRect();
    const [at, text] = places[(chosen = place)];
    cursor.setAttribute("x1", `${at}%`);
    cursor.setAttribute("x2", `${at}%`);
    cursor.style.opacity = 1;
    tip.textContent = text;
    tip.hidden = false;
    const left = box.left + (at / 100) * box.width + 12;
    tip.style.left = `${Math.max(4, left + tip.offsetWidth > innerWidth - 4 ? left - tip.offsetWidth - 24 : left)}px`;
    tip.style.top = `${Math.max(4, (top ?? box.top) - tip.offsetHeight - 12)}px`;
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * 100;
    const near = (place) => Math.abs(places[place][0] - x);
    show([...places.keys()].reduce((a, b) => (near(b) < near(a) ? b : a)), event.clientY);
  });
  chart.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: places.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(Math.min(Math.max(to, 0), places.length - 1));
  });
  chart.addEventListener("focus", () => { if (chart.matches(":focus-visible")) show(chosen); });
  chart.addEventListener("blur", hide);
  chart.addEventListener("pointerleave", hide);
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
