"use strict";
const all = (selector) => [...document.querySelectorAll(selector)];
const seen = (element) => element.checkVisibility();
const follow = (rel) => document.querySelector(`a[rel=${rel}]`)?.click();
const move = (by) => {
  const stops = all(".row, .card").filter(seen);
  const at = stops.indexOf(document.activeElement?.closest(".row, .card"));
  const stop = stops[at < 0 ? (by > 0 ? 0 : stops.length - 1) : Math.min(Math.max(at + by, 0), stops.length - 1)];
  stop?.focus();
  stop?.scrollIntoView({ block: "nearest" });
};
const fold = () => {
  const folded = all("main details").filter((it) => !it.matches(".episode") && it.parentElement.checkVisibility());
  const open = folded.some((it) => !it.open);
  for (const it of folded) it.open = open;
};
// Copies the text as it stands on the page; without a script there is no button.
const copies = (label, text) => {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "copy", textContent: label });
  button.addEventListener("click", async () => {
    const said = await Promise.resolve(text()).then((it) => navigator.clipboard.writeText(it)).then(() => "copied", () => "not copied");
    button.textContent = said;
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
};
const textsBelow = (label) => {
  const below = [];
  for (let it = label.nextElementSibling; it && !it.matches(".label"); it = it.nextElementSibling)
    if (it.matches("pre")) below.push(it);
  const plain = below.filter((it) => !it.matches(".tokens"));  // of an answer with token ids below its text
  return (plain.length ? plain : below).map((it) => it.textContent).join("\n\n");
};
for (const label of all(".turn .label")) if (textsBelow(label)) label.append(" ", copies("copy", () => textsBelow(label)));
const copyAnswer = () => {
  const card = document.activeElement?.closest(".card") ?? document.querySelector(".card");
  card?.querySelector(".answer .copy")?.click();
};
const search = () => document.querySelector("input[type=search]")?.focus();
const keys = {
  j: () => move(1), k: () => move(-1), n: () => follow("next"), p: () => follow("prev"), u: () => follow("up"),
  t: () => document.body.classList.toggle("plain"), o: fold, d: () => follow("alternate"), c: copyAnswer, "/": search,
  "?": () => document.getElementById("keys").showModal(),
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  for (let it = target; it; it = it.parentElement) if (it.matches("details")) it.open = true;
  if (target?.matches(".card")) {
    const groups = [...target.querySelectorAll("a.group")].map((it) => document.getElementById(it.hash.slice(1)));
    for (const it of [target, ...groups].flatMap((card) => [...card.querySelectorAll(".credit")])) it.open = true;
  }
  target?.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
document.getElementById("within")?.addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  for (const it of all("details.episode")) it.hidden = !it.textContent.toLowerCase().includes(wanted);
});
