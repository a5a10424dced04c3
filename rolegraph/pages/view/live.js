"use strict";
// The form of a live page applies while its reader types; a page of a run that goes on is asked for again.
const form = document.querySelector("form.live");
const message = document.getElementById("message");
let asked = 0, typed = 0;
for (const it of all(".filters")) it.open = [...it.querySelectorAll("[name]")].some((field) => field.value);
const address = () => {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "") query.append(name, value);
  return `${form.action}?${query}`;
};
// An element that is replaced while a key or a button is down on it gets no click.
let held = false;
for (const type of ["keydown", "pointerdown"]) addEventListener(type, () => { held = true; }, true);
for (const type of ["keyup", "pointerup", "pointercancel", "contextmenu", "dragend", "blur"]) addEventListener(type, () => { held = false; }, true);
const released = async () => { while (held) await new Promise(requestAnimationFrame); };
const renew = async (url) => {
  const number = ++asked;
  const answer = await fetch(url).catch(() => null);
  const page = answer && new DOMParser().parseFromString(await answer.text(), "text/html");
  await released();
  if (number !== asked) return;
  message.textContent = page ? (page.querySelector("#message, .note")?.textContent ?? "") : "The viewer has stopped.";
  if (!answer?.ok) return;
  const focused = document.activeElement?.id;
  const top = document.activeElement?.getBoundingClientRect().top;
  const folds = new Map(all("[data-live] details[id]").map((it) => [it.id, it.open]));
  for (const part of all("[data-live]")) part.replaceWith(page.getElementById(part.id));
  for (const it of all("[data-live] details[id]")) it.open = folds.get(it.id) ?? it.open;
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (focused) scrollBy({ top: document.activeElement.getBoundingClientRect().top - top, behavior: "instant" });  // what comes above moves nothing
  history.replaceState(null, "", url);
};
addEventListener("input", ({ target }) => {
  if (target.form !== form || !target.name) return;
  asked++;  // an answer on its way has the values of before
  clearTimeout(typed);
  typed = setTimeout(() => renew(address()), 150);
});
addEventListener("submit", (event) => {
  const button = event.submitter;
  if (event.target !== form || button?.hasAttribute("formaction")) return;
  event.preventDefault();
  if (button?.name) form.querySelector(`[name=${button.name}]:not(button)`).value = button.value;
  renew(address());
});
setInterval(() => {
  const on = document.querySelector("[data-live] [data-running]") && !document.hidden;
  if (on && !document.querySelector("#live:not(:checked)")) renew(location.href);
}, 2000);
