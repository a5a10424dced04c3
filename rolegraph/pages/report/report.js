"use strict";
const tip = document.getElementById("tip");
for (const chart of document.querySelectorAll("svg.chart")) {
  const cursor = chart.querySelector(".cursor");
  const places = JSON.parse(chart.dataset.hover);
  if (!places.length) continue;
  const hide = () => { tip.hidden = true; cursor.style.opacity = 0; };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const [at, text] = places.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.style.opacity = 1;
    tip.textContent = text;
    tip.hidden = false;
    const left = box.left + (at / chart.viewBox.baseVal.width) * box.width + 12;
    tip.style.left = `${Math.max(4, left + tip.offsetWidth > innerWidth - 4 ? left - tip.offsetWidth - 24 : left)}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
  });
  chart.addEventListener("pointerleave", hide);
  addEventListener("scroll", hide, { passive: true });
}
