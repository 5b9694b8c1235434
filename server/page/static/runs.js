"use strict";

/** The runs of a folder: listed, overlaid and compared. */
(() => {
  const MOST = 7; // runs that are shown at first: one for each colour
  const shown = new Map(); // id -> number of its colour and dash
  let state = null, column = -1, falling = true, fetching = false, again = false, first = true;

  const best = (run) => Math.max(-Infinity, ...run.curve.accuracy);
  const perRound = (run) => (run.round && run.time_s != null ? run.time_s / run.round : null);
  const saved = (run) => (run.random ? (run.random.random_s - run.random.ours_s) / Math.max(run.random.random_s, 1e-12) : null);
  const clear = (run) => run.random && run.random.unknown < 0.1 && (run.random.low_s > run.random.ours_s || run.random.high_s < run.random.ours_s);
  const COLUMNS = [
    { title: "run", key: (r) => r.name },
    { title: "policy", key: (r) => r.policy, left: true },
    { title: "state", key: (r) => r.state, text: (r) => (r.error ? `${r.state}: ${r.error}` : r.state), left: true },
    { title: "clients", key: (r) => r.num_clients, text: (r) => `${r.num_selected ?? "–"} of ${r.num_clients}`, hint: "clients a round, or channels, of all" },
    { title: "rounds or steps", key: (r) => r.round, text: (r) => `${r.round}${r.buffered ? " steps" : ""}` },
    { title: "time", key: (r) => r.time_s, text: (r) => Format.duration(r.time_s) },
    { title: "per round or step", key: perRound, text: (r) => Format.seconds(perRound(r)), less: true },
    { title: "as many rounds, against random", key: saved, text: (r) => (saved(r) == null ? "–" : clear(r) ? `${saved(r) > 0 ? "−" : "+"}${Math.round(100 * Math.abs(saved(r)))} %` : "unclear"), hint: "its time against what random selection would have taken for as many rounds, or buffered updates, estimated" },
    { title: "best accuracy", key: (r) => r.best_accuracy, text: (r) => r.best_accuracy?.toFixed(4) ?? "–", more: true },
    { title: "time to target", key: (r) => toTarget(r) ?? null, text: (r) => (toTarget(r) == null ? "not reached" : Format.duration(toTarget(r))), less: true },
    { title: "to target, against random", key: savedToTarget, text: (r) => (savedToTarget(r) == null ? "–" : `${savedToTarget(r) > 0 ? "−" : "+"}${Math.round(100 * Math.abs(savedToTarget(r)))} %`), hint: "its time to the target against that of the shown run at random" },
    { title: "alarms", key: (r) => r.num_alarms, text: (r) => String(r.num_alarms) },
  ];

  /** Return the target that is given, or else what most of the shown runs have reached. */
  function target() {
    const given = Number(byId("target").value);
    if (given > 0) return given;
    const reached = state.runs.filter((r) => shown.has(r.id) && r.curve.accuracy.length).map(best).sort((a, b) => b - a);
    return reached.length ? Math.floor(100 * reached[Math.ceil(reached.length / 2) - 1]) / 100 : null;
  }

  function toTarget(run) {
    const wanted = target();
    const at = wanted == null ? -1 : run.curve.accuracy.findIndex((each) => each >= wanted);
    return at < 0 ? null : run.curve.time_s[at];
  }

  /** Return the share of time to the target that a run saved against the first shown run at random in rounds. */
  function savedToTarget(run) {
    const base = state.runs.find((r) => shown.has(r.id) && r.policy === "random" && !r.buffered);
    if (!base || base.id === run.id || toTarget(base) == null || toTarget(run) == null) return null;
    return 1 - toTarget(run) / Math.max(toTarget(base), 1e-12);
  }

  async function load() {
    if (fetching) { again = true; return; }
    fetching = true;
    try {
      const answer = await fetch("state", { cache: "no-cache" });
      if (answer.ok) show(await answer.json());
    } catch {
      notice("This page's server does not answer: what is shown is its last state.");
    } finally {
      fetching = false;
      if (again) { again = false; load(); }
    }
  }

  function notice(text) {
    byId("notice").hidden = !text;
    setText(byId("notice"), text);
  }

  function show(next) {
    if (next.error) { notice(`The folder cannot be read (${next.error}).`); return; }
    state = next;
    const left = [state.pending ? `reading ${state.pending} more` : "", state.left_out ? `${state.left_out} older ones are left out` : ""].filter(Boolean);
    notice(left.join("; "));
    setText(byId("name"), state.name);
    setText(byId("what"), `${state.runs.length} ${state.runs.length === 1 ? "run" : "runs"}`);
    document.title = `Runs in ${state.name}`;
    for (const id of shown.keys()) {
      if (!state.runs.some((run) => run.id === id)) shown.delete(id);
    }
    if (first) {
      for (const run of state.runs) if (run.curve.round.length && shown.size < MOST) add(run.id);
      first = state.pending > 0;
    }
    update();
  }

  /** Show a run in the first colour that is free. */
  function add(id) {
    if (shown.has(id)) return;
    const used = new Set(shown.values());
    let number = 0;
    while (used.has(number)) number += 1;
    shown.set(id, number);
  }

  function update() {
    curves();
    table();
    differences();
  }

  function curves() {
    const x = document.querySelector("input[name=x]:checked").value, wanted = target();
    const runs = state.runs.filter((run) => shown.has(run.id) && run.curve.round.length);
    const reached = runs.filter((run) => toTarget(run) != null).sort((a, b) => toTarget(a) - toTarget(b));
    const unit = runs.length && runs.every((run) => run.buffered) ? "step" : "round";
    const verdict = wanted == null ? "" : `Accuracy ${wanted} was reached by ${reached.length} of ${runs.length}${reached.length ? `, first by ${reached[0].name} after ${Format.duration(toTarget(reached[0]))}` : ""}.`;
    setText(byId("compare-note"), runs.length ? verdict : "Choose runs in the table.");
    Charts.put(byId("c-compare"), () => ({
      legend: { icon: undefined, itemWidth: 26 },
      xAxis: { type: "value", name: x === "round" ? unit : "time [s]", max: "dataMax" },
      yAxis: { type: "value", name: "accuracy", nameGap: 40, scale: true },
      series: runs.map((run, i) => {
        const style = Palette.series(shown.get(run.id));
        return {
          name: run.name, type: "line", showSymbol: run.curve.round.length < 30, symbolSize: 4, lineStyle: { ...style, width: 2 }, itemStyle: { color: style.color },
          data: run.curve[x].map((each, j) => [each, run.curve.accuracy[j]]),
          ...(i || wanted == null ? {} : { markLine: { lineStyle: { color: Palette.of("target"), width: 1.5 }, label: { formatter: "target", position: "insideEndTop" }, data: [{ yAxis: wanted }] } }),
        };
      }),
      tooltip: { trigger: "item", formatter: (p) => `${p.seriesName}\n${x === "round" ? `${unit} ${p.value[0]}` : Format.duration(p.value[0])}: ${p.value[1].toFixed(4)}` },
    }), `Accuracy of ${runs.length} runs. ${verdict}`, {
      csv: () => [["run", "round", "time_s", "accuracy"], ...runs.flatMap((run) => run.curve.round.map((_, j) => [run.name, run.curve.round[j], run.curve.time_s[j], run.curve.accuracy[j]]))],
    });
  }

  function ordered() {
    const wanted = byId("runs-search").value.trim().toLowerCase();
    const found = state.runs.filter((run) => !wanted || `${run.name} ${run.policy} ${run.state}`.toLowerCase().includes(wanted));
    if (column < 0) return found;
    const key = COLUMNS[column].key, none = (value) => value == null || value === "";
    return found.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (none(x) || none(y)) return none(x) - none(y);
      const order = typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
      return falling ? -order : order;
    });
  }

  function table() {
    const body = byId("runs-table").tBodies[0], focused = document.activeElement?.id;
    const runs = ordered();
    const tops = COLUMNS.map((each) => {
      const values = runs.filter((run) => shown.has(run.id)).map(each.key).filter((value) => value != null);
      return values.length < 2 ? null : each.more ? Math.max(...values) : each.less ? Math.min(...values) : null;
    });
    body.replaceChildren(...runs.map((run) => {
      const number = shown.get(run.id);
      const box = make("input", { type: "checkbox", id: `show-${run.id}`, "aria-label": `show ${run.name}` });
      box.checked = number != null;
      box.addEventListener("change", () => { if (box.checked) add(run.id); else shown.delete(run.id); update(); });
      const key = number == null ? "" : make("span", { class: `key s${number % 7} ${["", "dashed", "dotted"][number % 3]}` });
      const cells = COLUMNS.map((each, i) => {
        const text = each.text ? each.text(run) : String(each.key(run) ?? "–");
        if (!i) return make("th", { scope: "row", class: "left" }, key, make("a", { href: `run/${run.id}/` }, text));
        return make("td", { class: `${each.left ? "left" : ""}${tops[i] != null && shown.has(run.id) && each.key(run) === tops[i] ? " best" : ""}` }, text);
      });
      return make("tr", { class: number == null ? "away" : null }, make("td", {}, box), ...cells);
    }));
    if (focused?.startsWith("show-")) byId(focused)?.focus();
    [...byId("runs-table").tHead.rows[0].cells].slice(1).forEach((cell, i) => {
      if (i === column) cell.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
      setText(cell.firstChild, COLUMNS[i].title + (i === column ? (falling ? " ▾" : " ▴") : ""));
    });
  }

  /** Show the settings that are not the same in all shown runs. */
  function differences() {
    const runs = state.runs.filter((run) => shown.has(run.id));
    const keys = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].filter((key) => key !== "run-dir");
    const differ = keys.filter((key) => new Set(runs.map((run) => JSON.stringify(run.settings[key]))).size > 1).sort();
    byId("differ").hidden = runs.length < 2;
    const head = make("tr", {}, make("th", { scope: "col", class: "left" }, "setting"), ...runs.map((run) => make("th", { scope: "col", class: "left" }, run.name)));
    byId("differ-table").tHead.replaceChildren(head);
    byId("differ-table").tBodies[0].replaceChildren(...(differ.length
      ? differ.map((key) => make("tr", {}, make("th", { scope: "row", class: "left" }, key), ...runs.map((run) => make("td", { class: "left" }, String(run.settings[key] ?? "–")))))
      : [make("tr", {}, make("td", { colspan: runs.length + 1, class: "left" }, "None."))]));
  }

  const head = make("tr", {}, make("th", { scope: "col" }, make("span", { class: "quiet" }, "shown")));
  COLUMNS.forEach((each, i) => {
    const button = make("button", { type: "button", title: each.hint }, each.title);
    button.addEventListener("click", () => { falling = column === i ? !falling : i > 2; column = i; table(); });
    head.append(make("th", { scope: "col", class: !i || each.left ? "left" : null }, button));
  });
  byId("runs-table").tHead.append(head);
  byId("runs-form").addEventListener("submit", (event) => event.preventDefault());
  byId("runs-form").addEventListener("input", () => { if (state) update(); });
  byId("runs-search").addEventListener("input", table);
  byId("none").addEventListener("click", () => { shown.clear(); update(); });
  byId("all").addEventListener("click", () => { ordered().forEach((run) => add(run.id)); update(); });
  byId("runs-csv").addEventListener("click", () => Csv.save("runs.csv", [COLUMNS.map((each) => each.title), ...ordered().map((run) => COLUMNS.map((each) => each.key(run)))]));
  const events = new EventSource("events");
  events.onmessage = () => { if (!document.hidden) load(); };
  events.onerror = () => setTimeout(load, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
  load();
})();
