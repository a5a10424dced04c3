// Search over the index that the build writes as a script, so that it works from the disk as well.
const SiteSearch = (() => {
  const EXCERPT = 170, HITS = 12;
  let index, sections;

  function build() {
    sections = new Map(SEARCH_INDEX.map((section) => [section.location, section]));
    index = lunr(function () {
      this.ref("location");
      this.field("title", { boost: 6 });
      this.field("page", { boost: 2 });
      this.field("text");
      this.metadataWhitelist = ["position"];
      SEARCH_INDEX.forEach((section) => this.add(section));
    });
  }

  // The words of a query with their stems, as the index has them; words such as "the" and "how" say nothing.
  function termsOf(words) {
    return words.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter((word) => word && lunr.stopWordFilter(word))
      .map((word) => ({ word, stem: index.pipeline.runString(word)[0] }));
  }

  // Sections by their sum of scores, times the squared share of the words that they have.
  function find(words) {
    if (!index) build();
    const terms = termsOf(words), scores = new Map(), positions = new Map();
    for (const { word, stem } of terms) {
      const found = index.query((query) => {
        query.term(stem, { usePipeline: false, boost: 4 });
        if (word.length > 2) query.term(word, { usePipeline: false, wildcard: lunr.Query.wildcard.TRAILING });
      });
      for (const { ref, score, matchData } of found) {
        const before = scores.get(ref) ?? { sum: 0, count: 0 };
        scores.set(ref, { sum: before.sum + score, count: before.count + 1 });
        const places = Object.values(matchData.metadata).flatMap((fields) => fields.text?.position ?? []);
        positions.set(ref, [...(positions.get(ref) ?? []), ...places.map(([start, length]) => ({ start, length, word }))]);
      }
    }
    return [...scores].map(([location, { sum, count }]) => ({ location, score: sum * (count / terms.length) ** 2 }))
      .sort((a, b) => b.score - a.score || a.location.localeCompare(b.location)).slice(0, HITS)
      .map(({ location, score }) => {
        const { title, page, text } = sections.get(location);
        return { location, score, title: page === title ? title : `${page}: ${title}`, excerpt: excerpt(text, positions.get(location)) };
      });
  }

  // The stretch of a text with the most different words of the query, as [text, is marked] pairs.
  function excerpt(text, places) {
    places.sort((a, b) => a.start - b.start || b.length - a.length);
    let best = { words: 0, start: 0 };
    for (const first of places) {
      const words = new Set(places.filter((it) => it.start >= first.start && it.start < first.start + EXCERPT).map((it) => it.word)).size;
      if (words > best.words) best = { words, start: first.start };
    }
    const from = best.start < 60 ? 0 : text.lastIndexOf(" ", best.start - 40) + 1, to = end(text, from + EXCERPT);
    const parts = from ? [["… ", false]] : [];
    let at = from;
    for (const { start, length } of places) {
      if (start < at || start + length > to) continue;
      parts.push([text.slice(at, start), false], [text.slice(start, start + length), true]);
      at = start + length;
    }
    parts.push([text.slice(at, to) + (to < text.length ? " …" : ""), false]);
    return parts.filter(([part]) => part);
  }

  // The end of the last whole word before a place.
  function end(text, place) {
    return place >= text.length ? text.length : text.lastIndexOf(" ", place);
  }

  return { find };
})();

if (typeof document !== "undefined") (() => {
  const input = document.getElementById("query"), list = document.getElementById("found");
  const base = document.body.dataset.base;

  function element(name, ...children) {
    const made = document.createElement(name);
    made.append(...children);
    return made;
  }

  function show() {
    const hits = SiteSearch.find(input.value).map(({ location, title, excerpt }) => {
      const text = element("span", ...excerpt.map(([part, marked]) => (marked ? element("mark", part) : part)));
      const link = element("a", title, text);
      link.href = `${base}/${location}`;
      return element("li", link);
    });
    const asked = Boolean(input.value.trim());
    list.replaceChildren(...(asked && !hits.length ? [element("li", "No section has these words.")] : hits));
    list.hidden = !asked;
  }

  input.addEventListener("input", show);
  document.getElementById("search").addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { list.hidden = true; input.blur(); }
    if (event.key === "/" && document.activeElement !== input) { event.preventDefault(); input.focus(); }
    if (["ArrowDown", "ArrowUp"].includes(event.key) && event.target.closest("#search")) {
      const stops = [input, ...list.querySelectorAll("a")], at = stops.indexOf(document.activeElement);
      event.preventDefault();
      stops[at + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
    }
  });
  document.addEventListener("click", (event) => { if (!event.target.closest("#search")) list.hidden = true; });
})();
