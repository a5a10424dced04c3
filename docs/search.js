// Search over the index that the build writes as a script, so that it works from the disk as well.
(() => {
  const input = document.getElementById("query"), list = document.getElementById("found");
  const base = document.body.dataset.base, sections = new Map(SEARCH_INDEX.map((s) => [s.location, s]));
  const folded = document.querySelector("details.nav"), narrow = matchMedia("(max-width: 900px)");
  folded.open = !narrow.matches;
  narrow.addEventListener("change", () => { folded.open = !narrow.matches; });
  const index = lunr(function () {
    this.ref("location");
    this.field("title", { boost: 8 });
    this.field("text");
    SEARCH_INDEX.forEach((section) => this.add(section));
  });

  function find(words) {
    const terms = words.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean);
    return terms.length === 0 ? [] : index.query((query) => {
      for (const term of terms) {
        query.term(lunr.tokenizer(term), { boost: 4 });
        query.term(term, { wildcard: lunr.Query.wildcard.TRAILING, usePipeline: false });
      }
    }).slice(0, 12);
  }

  function show() {
    list.replaceChildren(...find(input.value).map(({ ref }) => {
      const section = sections.get(ref), page = sections.get(ref.split("#")[0]);
      const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("span");
      link.href = `${base}/${ref}`;
      link.textContent = page && page !== section ? `${page.title}: ${section.title}` : section.title;
      text.textContent = section.text.slice(0, 140);
      link.append(text);
      item.append(link);
      return item;
    }));
    if (input.value.trim() && !list.children.length) list.append(Object.assign(document.createElement("li"), { textContent: "No section has these words." }));
    list.hidden = !input.value.trim();
  }

  input.addEventListener("input", show);
  document.getElementById("search").addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { list.hidden = true; input.blur(); }
    if (event.key === "/" && document.activeElement !== input) { event.preventDefault(); input.focus(); }
  });
  document.addEventListener("click", (event) => { if (!event.target.closest("#search")) list.hidden = true; });
})();
