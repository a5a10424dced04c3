// The page of an episode asks its own server for the JSON that its reader copies.
const json = document.querySelector("a[rel=alternate]");
json.after(" ", copies("copy JSON", async () => (await fetch(json.href)).text()));
