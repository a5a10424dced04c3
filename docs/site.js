// The menu of narrow screens, code and tables that scroll by keyboard, and a button that copies each block of code.
(() => {
  const menu = document.querySelector("details.nav"), narrow = matchMedia("(max-width: 900px)");
  const fold = () => { menu.open = !narrow.matches; };
  fold();
  narrow.addEventListener("change", fold);

  function letScroll() {
    for (const part of document.querySelectorAll("main pre, main table")) part.toggleAttribute("tabindex", part.scrollWidth > part.clientWidth);
    for (const part of document.querySelectorAll("main [tabindex]")) part.tabIndex = 0;
  }
  addEventListener("resize", letScroll);

  // A page on disk may be denied the clipboard's interface; the older command needs none.
  function copyBySelection(text) {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return copyBySelection(text);
    }
  }

  for (const block of document.querySelectorAll("main pre")) {
    const frame = Object.assign(document.createElement("div"), { className: "block" });
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
    const text = block.textContent;
    button.addEventListener("click", async () => {
      button.textContent = (await copy(text)) ? "Copied" : "Not copied";
      button.focus();
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    button.setAttribute("aria-live", "polite");
    block.replaceWith(frame);
    frame.append(block, button);
  }
  letScroll();
})();
