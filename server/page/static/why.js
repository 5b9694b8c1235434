"use strict";

/** Why a round's clients were picked: their scores in parts, and the cut between in and out. */
const Why = (() => {
  const BESIDE = 20; // clients shown on each side of the cut
  const IN_CHART = 8;
  const MEANING = {
    mean: "what its measured times say, on average",
    time: "what its expected time adds to the round, or takes from its usefulness",
    staleness: "what stale updates take from its usefulness",
    failures: "what its failures cost",
    bonus: "the benefit of the doubt: large while little is known of it",
    draw: "a random draw around its mean",
    queue: "what it is owed by its floor",
    "tie-break": "decides between equal scores, the larger first",
    "owed after": "virtual queue after the round, in rounds",
  };
  let round = 0, shown = null, asked = null, loading = false, whole = false, unknown = "";
  let place = -1; // of the pick that is shown, in a buffered step
  let wantedPick = null; // one to show when its step is there

  function begin() {
    byId("why-form").addEventListener("submit", (event) => event.preventDefault());
    byId("why-round").addEventListener("input", () => { byId("why-follow").checked = false; });
    byId("why-round").addEventListener("change", () => go(Number(byId("why-round").value)));
    byId("why-before").addEventListener("click", () => go(round - 1));
    byId("why-after").addEventListener("click", () => go(round + 1));
    byId("why-follow").addEventListener("change", update);
    byId("why-client").addEventListener("input", () => {
      const names = Page.state.clients.name, wanted = byId("why-client").value.trim();
      const arm = names.includes(wanted) ? names.indexOf(wanted) : names.findIndex((name) => name.toLowerCase() === wanted.toLowerCase());
      unknown = arm < 0 && wanted ? wanted : "";
      asked = arm >= 0 ? arm : null;
      if (asked != null) Clients.history(asked);
      if (shown) show();
      else say();
    });
  }

  /** Return what the scores on show are of: a round's, or one pick's of a buffered step. */
  function current() {
    if (!shown || shown.missing) return { scores: null, selected: [] };
    if (!shown.buffered) return { scores: shown.scores, selected: shown.selected };
    const pick = shown.picks[place];
    return pick ? { scores: pick.scores, selected: [pick.arm], pick } : { scores: null, selected: [] };
  }

  /** Show a round, and stay there. */
  function go(number) {
    byId("why-follow").checked = false;
    if (document.activeElement === byId("why-round")) byId("why-round").blur();
    const wanted = Math.min(Math.max(Math.round(number) || 1, 1), Math.max(Page.state.top.round, 1));
    load(wanted);
  }

  /** Show why a client was given a channel: the pick of a piece of work, or where it ended. */
  function goPick(step, arm, at, ended) {
    wantedPick = step ? { arm, at } : null;
    asked = arm;
    unknown = "";
    byId("why-client").value = Page.state.clients.name[arm];
    Clients.history(arm);
    if (shown && shown.round === (step || ended)) { choosePick(); show(); }
    else go(step || ended || Page.state.top.round);
    byId("why").scrollIntoView({ block: "start" });
  }

  function choosePick() {
    place = shown.buffered ? shown.picks.length - 1 : -1;
    if (wantedPick && shown.buffered) {
      const found = shown.picks.findIndex((pick) => pick.arm === wantedPick.arm && Math.abs(pick.begin_s - wantedPick.at) <= 1e-5 * Math.max(1, pick.begin_s));
      if (found >= 0) place = found;
    }
    wantedPick = null;
  }

  /** Say why a client was picked, or why not. */
  function ask(arm) {
    asked = arm;
    unknown = "";
    byId("why-client").value = Page.state.clients.name[arm];
    Clients.history(arm);
    if (shown) show();
    byId("why").scrollIntoView({ block: "start" });
  }

  /** Follow the latest round, if that is wanted. */
  function update() {
    const names = Page.state.clients.name, list = byId("client-names");
    if (list.children.length !== names.length) {
      list.replaceChildren(...names.map((name) => make("option", { value: name })));
    }
    const last = Page.state.top.round, unit = Page.state.run.buffered ? "step" : "round";
    setText(byId("why-title"), Page.state.run.buffered ? "Why this client got the free channel" : "Why this pick");
    setText(byId("why-unit"), unit === "step" ? "Step" : "Round");
    byId("why-before").ariaLabel = `The ${unit} before`;
    byId("why-after").ariaLabel = `The ${unit} after`;
    byId("why-round").max = last;
    if (asked != null) Clients.history(asked);
    if (shown && (shown.missing || shown.round > last)) shown = null; // there may be more by now
    if (round > last) round = last;
    if (last && (byId("why-follow").checked || !round)) load(last);
    else if (last) load(round);
    else {
      arrows();
      byId("why-chart").parentElement.hidden = true;
      setText(byId("why-summary"), `No ${unit} has ended yet.`);
    }
  }

  /** Load a round and show it; until it is there, box and sentence both keep the one before. */
  async function load(number) {
    round = number;
    if (loading) return;
    if (shown && shown.round === round) return arrows();
    loading = true;
    byId("why").ariaBusy = "true";
    const before = shown?.round;
    try {
      while (!shown || shown.round !== round) {
        const wanted = round;
        const found = await Page.round(wanted);
        if (wanted !== round) continue;
        shown = found || { round: wanted, missing: true };
        choosePick();
        show();
        if (before !== shown.round) toCut();
      }
    } finally {
      loading = false;
      byId("why").ariaBusy = "false";
    }
  }

  /** Scroll the table to the cut. */
  function toCut() {
    const row = byId("why-table").querySelector("tr.cut"), box = byId("why-table").parentElement;
    if (row) box.scrollTop = Math.max(0, row.offsetTop - box.clientHeight / 2);
  }

  /** Make the box name the round that is shown, unless somebody types in it. */
  function arrows() {
    const here = shown?.round ?? round;
    byId("why-before").disabled = here <= 1;
    byId("why-after").disabled = here >= Page.state.top.round;
    const typing = document.activeElement === byId("why-round") && !byId("why-follow").checked;
    if (!typing) byId("why-round").value = here || "";
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

  /** Offer the channels that were given away in the step. */
  function picks() {
    const box = byId("why-picks");
    box.hidden = !shown.buffered || !shown.picks.length;
    if (box.hidden) return;
    box.replaceChildren(...shown.picks.map((pick, i) => {
      const text = `${shown.names[pick.arm] ?? `client ${pick.arm}`} at ${Format.duration(pick.begin_s)}`;
      const button = make("button", { type: "button", "aria-pressed": String(i === place), title: pick.scores ? null : "its scores were not recorded" }, text);
      button.addEventListener("click", () => { byId("why-follow").checked = false; place = i; asked = null; unknown = ""; byId("why-client").value = ""; show(); });
      return button;
    }));
    box.querySelector("[aria-pressed=true]")?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }

  function show() {
    const { scores, selected, pick } = current(), head = byId("why-table").tHead, body = byId("why-table").tBodies[0];
    const figure = byId("why-chart").parentElement;
    arrows();
    head.replaceChildren();
    body.replaceChildren();
    figure.hidden = !scores;
    byId("why-picks").hidden = true;
    const called = Page.state.run.buffered ? "Step" : "Round";
    if (shown.missing) setText(byId("why-summary"), Page.saved ? `${called} ${shown.round} is not in this file: it has the last ones.` : `${called} ${shown.round} cannot be read.`);
    else setText(byId("why-summary"), summary());
    if (!shown.missing) picks();
    if (!scores) {
      if (!shown.missing) setText(byId("why-summary"), `${summary()} ${without()}`);
      say();
      return;
    }
    const parts = Object.keys(scores.parts), unit = scores.unit ? ` [${scores.unit}]` : "";
    const extra = [scores.tie_break ? "tie-break" : "", scores.owed ? (pick ? "owed" : "owed after") : ""].filter(Boolean);
    const outcome = pick ? [] : ["round trip", "outcome"];
    const columns = parts.length + extra.length + outcome.length + 3;
    const row = make("tr");
    for (const title of ["rank", "client", `score${unit}`, ...parts, ...extra, ...outcome]) {
      row.append(make("th", { scope: "col", title: MEANING[title] || null, class: title === "client" || title === "outcome" ? "left" : null }, title));
    }
    head.append(row);
    // The one that got a channel stands where its score puts it: others may have had to wait.
    const order = ranking(scores, pick ? [] : selected), picked = pick ? order.indexOf(pick.arm) + 1 : selected.length;
    const free = scores.available.filter(Boolean).length;
    const near = (arm, rank) => whole || arm === asked || Math.abs(rank - picked + 0.5) < BESIDE;
    let left = 0;
    order.slice(0, free).forEach((arm, rank) => {
      if (rank === picked) {
        more(body, left, "with better scores", columns);
        left = 0;
        body.append(cutRow(columns, free - picked));
      }
      if (near(arm, rank)) {
        more(body, left, rank < picked ? "with better scores" : "between", columns);
        left = 0;
        body.append(clientRow(arm, rank, parts));
      } else left += 1;
    });
    more(body, left, "with worse scores", columns);
    if (picked && picked === free) body.append(cutRow(columns, 0));
    const away = order.slice(free).map((arm) => shown.names[arm]);
    if (away.length) {
      const some = away.length > 10 && !whole ? `${away.slice(0, 10).join(", ")} and ${away.length - 10} more` : away.join(", ");
      body.append(make("tr", { class: "away" }, make("td", { colspan: columns, class: "wrap" }, `${pick ? "Not idle" : "Not available"}: ${some}`)));
    }
    const first = Math.max(0, Math.min(picked - IN_CHART, free - 2 * IN_CHART));
    const nearCut = order.slice(first, Math.min(free, Math.max(picked, first + IN_CHART) + IN_CHART));
    chart(asked == null || nearCut.includes(asked) || !scores.available[asked] ? nearCut : [...nearCut, asked], parts);
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
    const { scores, selected, pick } = current(), at = selected.indexOf(arm);
    const button = make("button", { type: "button" }, shown.names[arm]);
    button.addEventListener("click", () => ask(arm));
    const cells = [
      make("td", {}, `${rank + 1}${at >= 0 ? " ✓" : ""}`),
      make("th", { scope: "row", class: "left" }, button),
      make("td", {}, Format.number(scores.score[arm], 5)),
      ...parts.map((part) => make("td", {}, Format.number(scores.parts[part][arm]))),
      ...(scores.tie_break ? [make("td", {}, Format.number(scores.tie_break[arm], 4))] : []),
      ...(scores.owed ? [make("td", {}, Format.number(scores.owed[arm], 2))] : []),
      ...(pick ? [] : [
        make("td", {}, at >= 0 ? Format.seconds(shown.rtt_s[at]) : ""),
        make("td", { class: at >= 0 && !shown.completed[at] ? "left failed" : "left" }, at < 0 ? "" : shown.completed[at] ? "in time" : shown.reason[at] || "failed"),
      ]),
    ];
    return make("tr", { class: `${at >= 0 ? "picked" : ""}${arm === asked ? " asked" : ""}` }, ...cells);
  }

  function cutRow(columns, below) {
    const { scores, pick } = current();
    if (pick) return make("tr", { class: "cut" }, make("td", { colspan: columns }, below ? `${shown.names[pick.arm]} got the free channel` : `${shown.names[pick.arm]} got the free channel; no idle client had a worse score`));
    const cut = scores.cut == null ? "" : ` at ${Format.number(scores.cut, 5)}`;
    const tied = scores.tied.length ? `, ${scores.tied.length} clients tied there: ${decided(scores)}` : "";
    const text = scores.rule === "drawn" ? "below: not drawn" : `cut${cut}${tied}`;
    return make("tr", { class: "cut" }, make("td", { colspan: columns }, below ? text : `${text}; no client that was available is left out`));
  }

  /** Say what decided between clients of one score; of one client, with its number. */
  function decided(scores, arm = null) {
    const own = arm == null ? "" : ` (its own: ${Format.number(scores.tie_break?.[arm], 4)})`;
    if (!scores.tie_break) return "a lot decided";
    if (!scores.drawn.length) return `the larger tie-break decided${own}`;
    if (arm != null && !scores.drawn.includes(arm)) return `the larger tie-break decided${own}`;
    return `the larger tie-break decided${own}, and a lot between ${scores.drawn.length} that had the same`;
  }

  function without() {
    if (!Page.state.run.explained) return "Scores are not recorded: the run has --no-explain.";
    if (!shown.buffered) return "The scores of this round were not recorded.";
    if (!shown.picks.length) return "No channel was given away in it, or the run is of a version that did not record which.";
    return "The scores of this pick were not recorded: of a step with many picks the last ones are.";
  }

  function summary() {
    const { scores, selected } = current();
    if (shown.buffered) {
      const lost = shown.completed.filter((ok) => !ok).length, stale = Math.max(0, ...shown.staleness.map((each) => each ?? 0));
      const done = shown.selected.length - lost;
      const made = `${done} ${done === 1 ? "update" : "updates"}, at most ${stale} ${stale === 1 ? "step" : "steps"} stale${lost ? `; ${lost} lost` : ""}`;
      return `Step ${shown.round}${shown.no_step ? ` did not change the model (${shown.no_step})` : ""}: ${made}. ${shown.picks.length} ${shown.picks.length === 1 ? "channel was" : "channels were"} given away in its ${Format.seconds(shown.round_s)}.`;
    }
    const picked = selected.length;
    if (!picked) return `Round ${shown.round}: no client was picked${shown.no_step ? ` (${shown.no_step})` : ""}.`;
    const free = scores ? scores.available.filter(Boolean).length : null;
    const rule = !scores ? "" : { largest: " with the largest scores", smallest: " with the smallest scores", drawn: " by a random draw in which a larger score is likelier" }[scores.rule];
    const last = slowest(selected), delivered = shown.completed[shown.selected.indexOf(last)];
    const end = `${shown.names[last]} ${delivered ? "was the slowest" : "did not deliver"}`;
    return `Round ${shown.round}: ${picked} of ${free ?? "the"} available clients${rule}. It took ${Format.seconds(shown.round_s)}; ${end}.${lateText()}`;
  }

  /** Say which clients were not waited for, and which late updates of earlier rounds came. */
  function lateText() {
    const named = (arms) => `${arms.slice(0, 3).map((arm) => shown.names[arm]).join(", ")}${arms.length > 3 ? " …" : ""}`;
    const used = shown.late_updates.filter((each) => !each.reason).map((each) => each.arm), lost = shown.late_updates.length - used.length;
    let text = shown.late.length ? ` Not waited for: ${named(shown.late)}.` : "";
    if (used.length) text += ` Late ${used.length === 1 ? "update" : "updates"} used in its step: ${named(used)}.`;
    return lost ? `${text} Late and lost: ${lost}.` : text;
  }

  /** Return the client that decided how long the round took. */
  function slowest(selected) {
    if (shown.buffered) return selected[0];
    const times = shown.rtt_s.map((t, i) => (shown.completed[i] ? t ?? 0 : Infinity));
    return shown.selected[times.indexOf(Math.max(...times))];
  }

  function say() {
    const { selected } = current();
    // Of a round that stays on show, the client that decided its length is looked at first.
    if (asked == null && shown && !shown.missing && Page.state.run.state !== "running" && selected.length) Clients.history(slowest(selected));
    if (unknown) { setText(byId("why-sentence"), `No client is called ${unknown}.`); return; }
    const { scores, pick } = current(), arm = asked ?? pick?.arm;
    setText(byId("why-sentence"), arm == null || !scores ? "" : sentence(arm));
  }

  function sentence(arm) {
    const { scores, selected, pick } = current(), name = Page.state.clients.name[arm];
    const when = pick ? `at ${Format.duration(pick.begin_s)}, in step ${shown.round}` : `in round ${shown.round}`;
    const idle = pick ? "idle" : "available";
    if (arm >= scores.score.length) return `${name} had not joined yet ${when}.`;
    if (!scores.available[arm]) return `${name} was not ${idle} ${when}.`;
    const picked = selected.includes(arm), unit = scores.unit ? ` ${scores.unit}` : "";
    const free = scores.available.filter(Boolean).length, order = ranking(scores, pick ? [] : selected);
    const rank = order.indexOf(arm) + 1;
    const parts = Object.entries(scores.parts).map(([part, values]) => `${part} ${Format.number(values[arm])}`);
    const sum = `${Format.number(scores.score[arm], 5)}${unit}${parts.length > 1 ? ` = ${parts.join(" + ").replaceAll("+ −", "− ")}` : ""}`;
    const got = pick ? (picked ? "got the free channel" : "did not get the free channel") : picked ? "was picked" : "was not picked";
    const verdict = `${name} ${got} ${when}`;
    if (scores.rule === "drawn") return `${verdict}, by a random draw in which a larger score is likelier. Its score was ${sum}.`;
    let how = pick && free === 1 ? `the only idle client, with ${sum}` : `rank ${rank} of ${free} with ${sum}`;
    const others = scores.tied.length - 1;
    if (scores.tied.includes(arm)) how += `, tied with ${others} ${others === 1 ? "other" : "others"} at the cut; ${decided(scores, arm)}`;
    else if (!picked || (!pick && free > selected.length)) how += `; ${pick ? "the score that got it was" : "the cut was at"} ${Format.number(scores.cut, 5)}${unit}`;
    const first = scores.score[arm] === "inf" || scores.score[arm] === "-inf";
    const better = passedOver(scores, selected);
    const over = pick && better ? ` ${better} idle ${better === 1 ? "client" : "clients"} with a better score had to wait: clients that are owed much go first.` : "";
    return `${verdict}: ${how}.${first && picked ? " It comes first because it was never tried before." : ""}${over}`;
  }

  /** Return how many idle clients had a better score than the one that got the channel. */
  function passedOver(scores, [arm]) {
    if (scores.rule === "drawn" || scores.cut == null) return 0;
    const sign = scores.rule === "smallest" ? 1 : -1, cut = sign * Format.value(scores.score[arm]);
    return scores.score.filter((score, i) => scores.available[i] && !scores.tied.includes(i) && sign * Format.value(score) < cut).length;
  }

  /** Bars of the scores near the cut, split in their parts; a mark at the sum, which decides. */
  function chart(arms, parts) {
    const { scores, selected } = current(), element = byId("why-chart");
    const finite = (value) => (typeof value === "number" ? value : null);
    const cut = finite(scores.cut), unit = scores.unit ? ` [${scores.unit}]` : "";
    const untried = (arm) => typeof scores.score[arm] === "string";
    const lengths = arms.flatMap((arm) => {
      const values = parts.map((part) => finite(scores.parts[part][arm]) ?? 0);
      return [values.filter((v) => v > 0).reduce((a, b) => a + b, 0), values.filter((v) => v < 0).reduce((a, b) => a + b, 0)];
    }).filter((value) => value !== 0);
    const usual = Charts.limit(lengths, 0.8, 4);
    const top = usual == null ? null : Number(Math.max(usual, 1.2 * Math.abs(cut ?? 0)).toPrecision(2));
    const beyond = (arm) => top != null && Math.abs(finite(scores.score[arm]) ?? 0) > top;
    const cuts = top != null && lengths.some((value) => Math.abs(value) > top);
    setText(byId("why-note"), `The bars are the parts of a score, ◆ is their sum${cut == null ? "" : ", the line the score that just got in"}.${cuts ? " Some bars are cut off (▸), so that the others can be seen." : ""}`);
    element.style.height = `${Math.max(9, 5 + 1.35 * arms.length)}rem`;
    const never = arms.filter(untried).length;
    Charts.put(element, () => {
      const names = arms.map((arm) => `${selected.includes(arm) ? "✓ " : ""}${shown.names[arm]}${untried(arm) ? " (untried)" : ""}`);
      const mark = { color: Palette.of("score"), borderColor: Palette.of("card"), borderWidth: 1 };
      const series = parts.map((part, number) => ({ name: part, type: "bar", stack: "score", barMaxWidth: 18, itemStyle: { color: Palette.part(part), decal: Palette.pattern(number) }, data: arms.map((arm) => finite(scores.parts[part][arm])) }));
      const edge = (value) => (value > 0 ? top : -top);
      series.push({
        name: "score", type: "scatter", symbol: "diamond", symbolSize: 10, z: 5, itemStyle: mark,
        data: arms.map((arm, row) => {
          const value = finite(scores.score[arm]);
          if (value == null) return { value: [null, row] };
          if (!beyond(arm)) return { value: [value, row], real: value };
          return { value: [edge(value), row], real: value, symbol: "triangle", symbolRotate: value > 0 ? -90 : 90, symbolOffset: [value > 0 ? -6 : 6, 0], label: { show: true, position: value > 0 ? "left" : "right", color: Palette.of("ink"), textBorderColor: Palette.of("card"), textBorderWidth: 2, formatter: Format.number(value, 3) } };
        }),
        ...(cut == null ? {} : { markLine: { label: { formatter: "cut", position: "start", distance: 3 }, lineStyle: { type: "solid", width: 2, color: Palette.of("accent") }, data: [{ xAxis: cut }] } }),
      });
      const tell = (points) => {
        const arm = arms[points[0].dataIndex];
        return [shown.names[arm], ...parts.map((part) => `${part}: ${Format.number(scores.parts[part][arm])}`), `score: ${Format.number(scores.score[arm], 5)}${scores.unit ? ` ${scores.unit}` : ""}`].join("\n");
      };
      return {
        legend: { data: [...parts.map((name) => ({ name })), { name: "score", icon: "diamond" }] },
        grid: { top: 48, right: 24 },
        xAxis: { type: "value", name: `score${unit}`, ...(cuts ? { min: lengths.some((v) => v < 0) ? (Math.min(...lengths) < -top ? -top : undefined) : undefined, max: Math.max(...lengths) > top ? top : undefined } : {}) },
        yAxis: { type: "category", inverse: true, data: names, axisLabel: { width: 130, overflow: "truncate", interval: 0 }, axisTick: { show: false } },
        series,
        tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, formatter: tell },
      };
    }, `Scores of ${shown.buffered ? "step" : "round"} ${shown.round} by rank, in the parts ${parts.join(", ")}; the table below has the numbers.${never ? ` ${never} clients were never tried.` : ""}`,
    { click: (p) => { if (p.dataIndex != null) ask(arms[p.dataIndex]); }, csv: () => [["client", "score", ...parts], ...arms.map((arm) => [shown.names[arm], scores.score[arm], ...parts.map((part) => scores.parts[part][arm])])] });
  }

  return { begin, update, ask, go, goPick };
})();
