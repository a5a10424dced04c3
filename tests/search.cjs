// Runs the search of a built site: node search.cjs SITE WORDS prints the hits as JSON.
const { readFileSync } = require("node:fs");
const { createContext, runInContext } = require("node:vm");

const [folder, words] = process.argv.slice(2), page = createContext({});
for (const script of ["search/lunr.js", "search/search_index.js", "search.js"]) {
  runInContext(readFileSync(`${folder}/${script}`, "utf-8"), page);
}
console.log(JSON.stringify(runInContext(`SiteSearch.find(${JSON.stringify(words)})`, page)));
