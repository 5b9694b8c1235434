"use strict";

/** Why a round's clients were picked: their scores in parts, and the cut between in and out. */
const Why = (() => {
  const BESIDE = 20; // clients shown on each side of the cut
  const IN_CHART = 12;
  const MEANING = {
    mean: "what its measured times say",
    failures: "what its failures cost",
    bonus: "the benefit of the doubt: large while little is known of it",
    draw: "a random draw around its mean",
    queue: "what it is owed by its floor",
    "tie-break": "decides between equal scores, the larger first",
    "owed after": "virtual queue after the round, in rounds",
  };
  let round = 0, shown = null, asked = null, loading = false, whole = false, unknown = "";

  function begin() {
    byId("why-form").addEventListener("submit", (event) => event.preventDefault());
    byId("why-round").addEventListener("change", () => go(Number(byId("why-round").value)));
    byId("why-before").addEventListener("click", () => go(round - 1));
    byId("why-after").addEventListener("click", () => go(round + 1));
    byId("why-follow").addEventListener("change", update);
    byId("why-client").addEventListener("input", () => {
      const names = Page.state.clients.name, wanted = byId("why-client").value.trim();
      const arm = names.includes(wanted) ? names.indexOf(wanted) : names.findIndex((name) => name.toLowerCase() === wanted.toLowerCase());
      unknown = arm < 0 && wanted ? wanted : "";
      asked = arm >= 0 ? arm : null;
      if (shown && shown.scores) show();
      else say();
    });
  }

  /** Show a round, and stay there. */
  function go(number) {
    byId("why-follow").checked = false;
    const wanted = Math.min(Math.max(Math.round(number) || 1, 1), Math.max(Page.state.top.round, 1));
    byId("why-round").value = wanted;
    load(wanted);
  }

  /** Say why a client was picked, or why not. */
  function ask(arm) {
    asked = arm;
    unknown = "";
    byId("why-client").value = Page.state.clients.name[arm];
    if (shown && shown.scores) show();
    byId("why").scrollIntoView({ block: "nearest" });
  }

  /** Follow the latest round, if that is wanted. */
  function update() {
    const names = Page.state.clients.name, list = byId("client-names");
    if (list.children.length !== names.length) {
      list.replaceChildren(...names.map((name) => make("option", { value: name })));
    }
    const last = Page.state.top.round;
    byId("why-round").max = last;
    if (shown && (shown.missing || shown.round > last)) shown = null; // there may be more by now
    if (round > last) round = last;
    if (last && (byId("why-follow").checked || !round)) load(last);
    else if (last) load(round);
    else arrows();
  }

  async function load(number) {
    if (number === round && shown) return arrows();
    round = number;
    if (document.activeElement !== byId("why-round")) byId("why-round").value = number;
    arrows();
    if (loading) return;
    loading = true;
    try {
      while (!shown || shown.round !== round) {
        const wanted = round;
        const found = await Page.round(wanted);
        if (wanted !== round) continue;
        shown = found || { round: wanted, missing: true };
        show();
      }
    } finally {
      loading = false;
    }
  }

  function arrows() {
    byId("why-before").disabled = round <= 1;
    byId("why-after").disabled = round >= Page.state.top.round;
    if (document.activeElement !== byId("why-round")) byId("why-round").value = round || "";
  }

  /** Return the arms by rank, the best first, those who were not available last. */
  function ranking(scores, selected) {
    const sign = scores.rule === "smallest" ? 1 : -1;
    const value = scores.score.map((score) => sign * Format.value(score));
    const picked = new Set(selected);
    return scores.score.map((_, arm) => arm).sort((a, b) =>
      scores.available[b] - scores.available[a] || picked.has(b) - picked.has(a) ||
      (value[a] === value[b] ? 0 : value[a] - value[b]) ||
      (scores.tie_break ? Format.value(scores.tie_break[b]) - Format.value(scores.tie_break[a]) || 0 : 0) || a - b);
  }

  function show() {
    const scores = shown.scores, head = byId("why-table").tHead, body = byId("why-table").tBodies[0];
    const figure = byId("why-chart").parentElement;
    head.replaceChildren();
    body.replaceChildren();
    figure.hidden = !scores;
    if (shown.missing) setText(byId("why-summary"), Page.saved ? `Round ${shown.round} is not in this file: it has the last ones.` : `Round ${shown.round} cannot be read.`);
    else setText(byId("why-summary"), summary());
    if (!scores) {
      if (!shown.missing) {
        const why = Page.state.run.explained ? "The scores of this round were not recorded." : "Scores are not recorded: the run has --no-explain.";
        setText(byId("why-summary"), `${summary()} ${why}`);
      }
      say();
      return;
    }
    const parts = Object.keys(scores.parts), unit = scores.unit ? ` [${scores.unit}]` : "";
    const extra = [scores.tie_break ? "tie-break" : "", scores.owed ? "owed after" : ""].filter(Boolean);
    const columns = parts.length + extra.length + 5;
    const row = make("tr");
    for (const title of ["rank", "client", `score${unit}`, ...parts, ...extra, "round trip", "outcome"]) {
      row.append(make("th", { scope: "col", title: MEANING[title] || null, class: title === "client" || title === "outcome" ? "left" : null }, title));
    }
    head.append(row);
    const order = ranking(scores, shown.selected), picked = shown.selected.length;
    const free = scores.available.filter(Boolean).length;
    const near = (arm, rank) => whole || arm === asked || Math.abs(rank - picked + 0.5) < BESIDE;
    let left = 0;
    order.slice(0, free).forEach((arm, rank) => {
      if (rank === picked) {
        more(body, left, "with better scores", columns);
        left = 0;
        body.append(cutRow(columns, free - picked));
      }
      if (near(arm, rank)) body.append(clientRow(arm, rank, parts));
      else left += 1;
    });
    more(body, left, "with worse scores", columns);
    if (picked && picked === free) body.append(cutRow(columns, 0));
    const away = order.slice(free).map((arm) => shown.names[arm]);
    if (away.length) {
      const some = away.length > 10 && !whole ? `${away.slice(0, 10).join(", ")} and ${away.length - 10} more` : away.join(", ");
      body.append(make("tr", { class: "away" }, make("td", { colspan: columns, class: "wrap" }, `Not available: ${some}`)));
    }
    const first = Math.max(0, Math.min(picked - IN_CHART, free - 2 * IN_CHART));
    Charts.scores(byId("why-chart"), order.slice(first, Math.min(free, Math.max(picked, first + IN_CHART) + IN_CHART)), shown, parts);
    say();
  }

  /** Say that rows are left out, with a button that brings them. */
  function more(body, count, which, columns) {
    if (!count) return;
    const button = make("button", { type: "button" }, `${count} more ${which}: show all`);
    button.addEventListener("click", () => { whole = true; show(); });
    body.append(make("tr", { class: "away" }, make("th", { colspan: columns, scope: "row" }, button)));
  }

  function clientRow(arm, rank, parts) {
    const scores = shown.scores, at = shown.selected.indexOf(arm);
    const button = make("button", { type: "button" }, shown.names[arm]);
    button.addEventListener("click", () => ask(arm));
    const cells = [
      make("td", {}, `${rank + 1}${at >= 0 ? " ✓" : ""}`),
      make("th", { scope: "row", class: "left" }, button),
      make("td", {}, Format.number(scores.score[arm], 5)),
      ...parts.map((part) => make("td", {}, Format.number(scores.parts[part][arm]))),
      ...(scores.tie_break ? [make("td", {}, Format.number(scores.tie_break[arm], 4))] : []),
      ...(scores.owed ? [make("td", {}, Format.number(scores.owed[arm], 2))] : []),
      make("td", {}, at >= 0 ? Format.seconds(shown.rtt_s[at]) : ""),
      make("td", { class: at >= 0 && !shown.completed[at] ? "left failed" : "left" }, at < 0 ? "" : shown.completed[at] ? "in time" : shown.reason[at] || "failed"),
    ];
    return make("tr", { class: at >= 0 ? "picked" : null }, ...cells);
  }

  function cutRow(columns, below) {
    const scores = shown.scores;
    const cut = scores.cut == null ? "" : ` at ${Format.number(scores.cut, 5)}`;
    const tied = scores.tied.length ? `, ${scores.tied.length} clients tied there: ${decided(scores)}` : "";
    const text = scores.rule === "drawn" ? "below: not drawn" : `cut${cut}${tied}`;
    return make("tr", { class: "cut" }, make("td", { colspan: columns }, below ? text : `${text}; nobody who was available is left out`));
  }

  /** Say what decided between clients of one score; of one client, with its number. */
  function decided(scores, arm = null) {
    const own = arm == null ? "" : ` (its own: ${Format.number(scores.tie_break?.[arm], 4)})`;
    if (!scores.tie_break) return "a lot decided";
    if (!scores.drawn.length) return `the larger tie-break decided${own}`;
    if (arm != null && !scores.drawn.includes(arm)) return `the larger tie-break decided${own}`;
    return `the larger tie-break decided${own}, and a lot between ${scores.drawn.length} that had the same`;
  }

  function summary() {
    const scores = shown.scores, picked = shown.selected.length;
    if (!picked) return `Round ${shown.round}: nobody was picked${shown.no_step ? ` (${shown.no_step})` : ""}.`;
    const free = scores ? scores.available.filter(Boolean).length : null;
    const rule = !scores ? "" : { largest: " with the largest scores", smallest: " with the smallest scores", drawn: " by a random draw in which a larger score is likelier" }[scores.rule];
    const times = shown.rtt_s.map((t, i) => (shown.completed[i] ? t ?? 0 : Infinity));
    const slowest = times.indexOf(Math.max(...times));
    const end = shown.completed[slowest] ? `${shown.names[shown.selected[slowest]]} was the slowest` : `${shown.names[shown.selected[slowest]]} did not deliver`;
    return `Round ${shown.round}: ${picked} of ${free ?? "the"} available clients${rule}. It took ${Format.seconds(shown.round_s)}; ${end}.`;
  }

  function say() {
    if (unknown) { setText(byId("why-sentence"), `No client is called ${unknown}.`); return; }
    setText(byId("why-sentence"), asked == null || !shown || !shown.scores ? "" : sentence(asked));
  }

  function sentence(arm) {
    const scores = shown.scores, name = Page.state.clients.name[arm], when = `in round ${shown.round}`;
    if (arm >= scores.score.length) return `${name} had not joined yet ${when}.`;
    if (!scores.available[arm]) return `${name} was not available ${when}.`;
    const picked = shown.selected.includes(arm), unit = scores.unit ? ` ${scores.unit}` : "";
    const free = scores.available.filter(Boolean).length;
    const rank = ranking(scores, shown.selected).indexOf(arm) + 1;
    const parts = Object.entries(scores.parts).map(([part, values]) => `${part} ${Format.number(values[arm])}`);
    const sum = `${Format.number(scores.score[arm], 5)}${unit}${parts.length > 1 ? ` = ${parts.join(" + ").replaceAll("+ −", "− ")}` : ""}`;
    const verdict = `${name} was ${picked ? "picked" : "not picked"} ${when}`;
    if (scores.rule === "drawn") return `${verdict}, by a random draw in which a larger score is likelier. Its score was ${sum}.`;
    let how = `rank ${rank} of ${free} with ${sum}`;
    const others = scores.tied.length - 1;
    if (scores.tied.includes(arm)) how += `, tied with ${others} ${others === 1 ? "other" : "others"} at the cut; ${decided(scores, arm)}`;
    else if (picked && free > shown.selected.length) how += `; the cut was at ${Format.number(scores.cut, 5)}${unit}`;
    else if (!picked) how += `; the cut was at ${Format.number(scores.cut, 5)}${unit}`;
    const first = scores.score[arm] === "inf" || scores.score[arm] === "-inf";
    return `${verdict}: ${how}.${first && picked ? " It comes first because nobody has tried it yet." : ""}`;
  }

  return { begin, update, ask, go };
})();
