"use strict";

/** Settings and log of the run, fetched when they are looked at. */
const About = (() => {
  let known = null;

  function begin() {
    for (const id of ["settings", "log"]) {
      byId(id).addEventListener("toggle", () => { if (byId(id).open) load(); });
    }
    byId("log-search").addEventListener("input", log);
    byId("clients-csv").addEventListener("click", () => Csv.save("clients.csv", Clients.table()));
    if (Page.saved) {
      byId("rounds-csv").hidden = byId("save").hidden = true;
      known = Page.saved.about;
      show();
    }
  }

  async function load() {
    const found = Page.saved ? null : await Page.ask("about");
    if (found) known = found;
    show();
  }

  /** Fetch the log again, if somebody looks at it. */
  function update() {
    if (byId("log").open && !Page.saved) load();
  }

  function show() {
    if (!known) return;
    const rows = Object.entries(known.settings).map(([key, value]) => make("tr", {}, make("th", { scope: "row", class: "left" }, key), make("td", { class: "left wrap" }, value === "" ? "–" : String(value))));
    byId("settings-table").tBodies[0].replaceChildren(...rows);
    log();
  }

  function log() {
    const wanted = byId("log-search").value.trim().toLowerCase(), text = known?.log ?? "";
    const lines = wanted ? text.split("\n").filter((each) => each.toLowerCase().includes(wanted)) : [text.trimEnd()];
    const box = byId("log-text"), atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    setText(box, lines.join("\n") || (wanted ? "No line has this." : "The log is empty."));
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  return { begin, update };
})();
