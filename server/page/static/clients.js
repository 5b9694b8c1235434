"use strict";

/** The table of the clients: sorted, searched, a hundred at a time. */
const Clients = (() => {
  const ROWS = 100;
  const seen = (c, i) => {
    if (c.last_seen[i] != null) return Format.ago(c.last_seen[i]);
    if (["free", "busy", "opted out"].includes(c.state[i]) && !Page.state.run.simulated) return "now";
    return c.last_round[i] ? `round ${c.last_round[i]}` : "–";
  };
  const missed = (c, i) => c.floor[i] != null && c.share[i] != null && c.share[i] < c.floor[i] - 0.01;
  const failures = (c, i) => Object.values(c.failures[i]).reduce((a, b) => a + b, 0);
  const COLUMNS = [
    { title: "client", key: (c, i) => c.name[i], text: (c, i) => c.name[i] },
    { title: "state", key: (c, i) => c.state[i], text: (c, i) => c.state[i] || "–", left: true },
    { title: "examples", key: (c, i) => c.num_examples[i], text: (c, i) => (c.num_examples[i] ?? "–").toString() },
    { title: "round trip", key: (c, i) => c.mean_s[i], text: (c, i) => c.mean_s[i] == null ? "–" : `${Format.seconds(c.mean_s[i])} ± ${Format.seconds(c.deviation_s[i])}`, hint: "mean and standard deviation of what the server measured" },
    { title: "network", key: (c, i) => c.network_s[i], text: (c, i) => Format.seconds(c.network_s[i]), hint: "what remains of the round trip" },
    { title: "compute", key: (c, i) => c.compute_s[i], text: (c, i) => Format.seconds(c.compute_s[i]), hint: "local training, as the client reports it" },
    { title: "emulated link", key: (c, i) => c.link_s[i], text: (c, i) => Format.seconds(c.link_s[i]), hint: "as the client reports it" },
    { title: "rounds", key: (c, i) => c.selected[i], text: (c, i) => String(c.selected[i]), hint: "rounds in which it was selected" },
    { title: "share", key: (c, i) => c.share[i], text: (c, i) => Format.share(c.share[i]), mark: (c, i) => (missed(c, i) ? "missed" : ""), hint: "of the rounds since it joined and while it was there" },
    { title: "floor", key: (c, i) => c.floor[i], text: (c, i) => Format.share(c.floor[i]), hint: "share that it is guaranteed" },
    { title: "owed", key: (c, i) => Format.value(c.owed[i]), text: (c, i) => Format.number(c.owed[i], 2), hint: "virtual queue, in rounds" },
    { title: "failures", key: failures, text: (c, i) => Object.entries(c.failures[i]).map(([kind, n]) => `${kind} ${n}`).join(", ") || "0", mark: (c, i) => (failures(c, i) ? "failed" : ""), left: true },
    { title: "last seen", key: (c, i) => c.last_seen[i] ?? c.last_round[i], text: seen, left: true },
  ];
  let column = 3, falling = true, page = 0;
  const rows = new Map();

  function begin() {
    const head = make("tr");
    COLUMNS.forEach((each, number) => {
      const button = make("button", { type: "button", title: each.hint }, each.title);
      button.addEventListener("click", () => {
        falling = column === number ? !falling : number >= 2;
        column = number;
        page = 0;
        show();
      });
      head.append(make("th", { scope: "col", class: each.left ? "left" : null }, button));
    });
    byId("client-table").tHead.append(head);
    byId("client-search").addEventListener("input", () => { page = 0; show(); });
    byId("page-before").addEventListener("click", () => { page -= 1; show(); });
    byId("page-after").addEventListener("click", () => { page += 1; show(); });
  }

  function ordered(c) {
    const wanted = byId("client-search").value.trim().toLowerCase();
    const found = [];
    for (let i = 0; i < c.name.length; i++) {
      if (!wanted || c.name[i].toLowerCase().includes(wanted) || c.state[i] === wanted) found.push(i);
    }
    const keys = c.name.map((_, i) => COLUMNS[column].key(c, i));
    const unknown = (key) => key == null || Number.isNaN(key);
    found.sort((a, b) => {
      if (unknown(keys[a]) || unknown(keys[b])) return unknown(keys[a]) - unknown(keys[b]) || a - b;
      const order = typeof keys[a] === "string" ? Page.collator.compare(keys[a], keys[b]) : keys[a] - keys[b];
      return (falling ? -order : order) || a - b;
    });
    return found;
  }

  function row(arm) {
    const button = make("button", { type: "button", title: "why was it picked, or not?" });
    button.addEventListener("click", () => Why.ask(arm));
    const element = make("tr", {}, make("th", { scope: "row" }, button));
    for (const each of COLUMNS.slice(1)) element.append(make("td", { class: each.left ? "left" : null }));
    rows.set(arm, element);
    return element;
  }

  function show() {
    const c = Page.state.clients;
    const found = ordered(c), pages = Math.max(1, Math.ceil(found.length / ROWS));
    page = Math.min(Math.max(page, 0), pages - 1);
    const body = byId("client-table").tBodies[0], focused = document.activeElement;
    const shown = found.slice(page * ROWS, (page + 1) * ROWS);
    shown.forEach((arm, place) => {
      const element = rows.get(arm) || row(arm);
      COLUMNS.forEach((each, number) => {
        const cell = element.cells[number];
        setText(number ? cell : cell.firstChild, each.text(c, arm));
        if (each.mark) cell.className = `${each.left ? "left " : ""}${each.mark(c, arm)}`;
      });
      element.className = c.state[arm] === "away" ? "away" : "";
      if (body.children[place] !== element) body.insertBefore(element, body.children[place] || null);
    });
    while (body.children.length > shown.length) body.lastChild.remove();
    if (focused && body.contains(focused) && document.activeElement !== focused) focused.focus();
    [...byId("client-table").tHead.rows[0].cells].forEach((cell, number) => {
      const sort = number !== column ? null : falling ? "descending" : "ascending";
      if (sort) cell.setAttribute("aria-sort", sort);
      else cell.removeAttribute("aria-sort");
      setText(cell.firstChild, COLUMNS[number].title + (sort ? (falling ? " ▾" : " ▴") : ""));
    });
    const of = found.length === c.name.length ? "" : ` of ${c.name.length}`;
    setText(byId("client-count"), `${found.length}${of} clients`);
    setText(byId("page-number"), pages > 1 ? `page ${page + 1} of ${pages}` : "");
    byId("page-before").hidden = byId("page-after").hidden = pages < 2;
    byId("page-before").disabled = page === 0;
    byId("page-after").disabled = page === pages - 1;
  }

  return { begin, show };
})();
