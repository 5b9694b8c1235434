"use strict";

/** The table of the clients: sorted, searched, a hundred at a time. */
const Clients = (() => {
  const ROWS = 100;
  const seen = (c, i) => {
    if (c.last_seen[i] != null) return Format.ago(c.last_seen[i]);
    if (["free", "busy", "opted out", "left out"].includes(c.state[i]) && !Page.state.run.simulated) return "now";
    return c.last_round[i] ? `${Page.state.run.buffered ? "step" : "round"} ${c.last_round[i]}` : "–";
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
    { title: "selected", key: (c, i) => c.selected[i], text: (c, i) => String(c.selected[i]), hint: "rounds in which it was selected; in buffered mode its pieces of work" },
    { title: "share", key: (c, i) => c.share[i], text: (c, i) => Format.share(c.share[i]), mark: (c, i) => (missed(c, i) ? "missed" : ""), hint: "of the rounds since it joined and while it was there; in buffered mode of the updates" },
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

  /** Return the table of all clients, for a file. */
  function table() {
    const c = Page.state.clients;
    const keys = ["name", "state", "num_examples", "mean_s", "deviation_s", "network_s", "compute_s", "link_s", "selected", "share", "floor", "owed"];
    const of = (i) => [...keys.map((key) => c[key][i]), failures(c, i), c.last_round[i]];
    return [[...keys, "failures", "last_completed"], ...c.name.map((_, i) => of(i))];
  }

  let historyOf = null, historyRound = -1;

  /** Show what a client did: its round trips, failures and share; the same again as the run goes on. */
  async function history(arm) {
    const s = Page.state, c = s.clients, name = c.name[arm];
    const failed = failures(c, arm), floor = c.floor[arm];
    setText(byId("history-title"), name ?? "A client's history");
    if (name == null) return;
    const facts = [
      c.state[arm] || null,
      `${c.selected[arm]} ${s.run.buffered ? "pieces of work" : "rounds"}`,
      c.share[arm] == null ? null : `share ${Format.share(c.share[arm])}${floor ? ` (floor ${Format.share(floor)})` : ""}`,
      c.mean_s[arm] == null ? null : `round trip ${Format.seconds(c.mean_s[arm])} ± ${Format.seconds(c.deviation_s[arm])}`,
      failed ? `${failed} failures: ${Object.keys(c.failures[arm]).join(", ")}` : "no failures",
      c.num_examples[arm] == null ? null : `${c.num_examples[arm]} examples`,
    ];
    setText(byId("history-text"), facts.filter(Boolean).join(" · "));
    if (historyOf === arm && historyRound === c.selected[arm]) return;
    [historyOf, historyRound] = [arm, c.selected[arm]];
    const found = await Page.client(arm);
    byId("history-figure").hidden = !found || !found.round.length;
    if (!found || historyOf !== arm) return;
    const what = s.run.buffered ? "step" : "round", done = found.round.map((_, i) => i).filter((i) => !found.reason[i]);
    const top = Math.max(0.001, ...done.map((i) => found.rtt_s[i]));
    Charts.put(byId("c-history"), () => ({
      xAxis: { type: "value", name: what, scale: true, max: "dataMax" },
      yAxis: { type: "value", name: "round trip [s]", nameGap: 40 },
      series: [
        { type: "scatter", symbolSize: 5, itemStyle: { color: Palette.of("ours"), opacity: 0.7 }, data: done.map((i) => ({ value: [found.round[i], found.rtt_s[i]], i })) },
        { type: "scatter", symbol: "path://M0,0L3,3L0,6L1,7L4,4L7,7L8,6L5,3L8,0L7,-1L4,2L1,-1Z", symbolSize: 9, itemStyle: { color: Palette.of("failed") }, data: found.round.map((_, i) => i).filter((i) => found.reason[i]).map((i) => ({ value: [found.round[i], found.rtt_s[i] ?? top], i })) },
      ],
      tooltip: { formatter: (p) => `${what} ${found.round[p.data.i]}: ${found.reason[p.data.i] ?? Format.seconds(found.rtt_s[p.data.i])}` },
    }), `History of ${name}: ${found.round.length} results, ${found.round.length - done.length} failures.`,
    { click: (p) => { if (p.data) Why.go(found.round[p.data.i]); }, csv: () => [[what, "rtt_s", "failure"], ...found.round.map((_, i) => [found.round[i], found.rtt_s[i], found.reason[i]])] });
  }

  return { begin, show, table, history };
})();
