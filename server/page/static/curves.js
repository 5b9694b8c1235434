"use strict";

/** The curves of a run, over rounds or time: zoomed together, smoothed, with one crosshair. */
const Curves = (() => {
  const BARS = 40; // clients that are shown as bars; more are points
  let range = null; // first and last round, or none: all
  let finer = null; // the curves of that range, as the server has them
  let fetching = "";
  const choice = { x: "time", part: 1, smooth: 0 };

  function begin() {
    try {
      Object.assign(choice, JSON.parse(localStorage.getItem("curves") ?? "{}"));
    } catch { /* a file or a browser that keeps nothing */ }
    const smooth = byId("smooth");
    for (const each of document.querySelectorAll("input[name=x]")) {
      each.checked = each.value === choice.x;
      each.addEventListener("change", () => { choice.x = each.value; chosen(); });
    }
    smooth.value = choice.smooth;
    smooth.addEventListener("input", () => { choice.smooth = Number(smooth.value); chosen(); });
    byId("range").value = String(choice.part);
    byId("range").addEventListener("change", () => { range = null; choice.part = Number(byId("range").value); chosen(); });
    byId("whole").addEventListener("click", () => drag(null, null));
  }

  function chosen() {
    try {
      localStorage.setItem("curves", JSON.stringify(choice));
    } catch { /* as above */ }
    update();
  }

  /** Return the rounds that are shown, or none: all of them. */
  function span(s) {
    if (range) return range;
    return choice.part < 1 && s.top.round > 20 ? [Math.ceil(s.top.round * (1 - choice.part)) + 1, s.top.round] : null;
  }

  function drag(from, to) {
    const s = Page.state, r = shown(s).rounds;
    if (from == null) {
      range = null;
      choice.part = 1;
      byId("range").value = "1";
    } else {
      const x = choice.x === "time" ? r.time_s : r.round;
      const first = x.findIndex((value) => value >= from), last = x.findLastIndex((value) => value <= to);
      if (first < 0 || last < first) return;
      range = [Math.max(1, r.round[first] - r.width + 1), r.round[last]];
      if (range[1] - range[0] < 2) range = [Math.max(1, range[0] - 1), range[1] + 1];
    }
    chosen();
  }

  function shown(s) {
    const wanted = span(s);
    return wanted && finer && finer.key === wanted.join() ? finer : s;
  }

  /** Fetch a range with all its points, where the run has more than fit into the whole. */
  async function refine(s) {
    const wanted = span(s);
    if (!wanted || Page.saved || s.rounds.width === 1) return;
    const key = wanted.join(), version = `${key} ${Math.min(wanted[1], s.top.round)}`;
    if (fetching === version || (finer && finer.version === version)) return;
    fetching = version;
    const found = await Page.ask(`curves/${wanted[0]}/${wanted[1]}`);
    if (found && fetching === version) {
      finer = { ...found, key, version };
      update();
    }
  }

  function update() {
    const s = Page.state;
    if (!s) return;
    refine(s);
    const wanted = span(s), view = { ...s, ...(shown(s) === s ? {} : finer) };
    const unit = s.run.buffered ? "step" : "round", x = choice.x === "time" ? (s.run.simulated ? "virtual time [s]" : "time [s]") : unit;
    setText(byId("x-rounds"), `${unit}s`);
    const bounds = wanted ? ends(s, wanted) : { max: "dataMax" };
    const xAxis = { type: "value", name: x, ...bounds };
    byId("whole").hidden = !wanted;
    setText(byId("range-text"), wanted ? `${unit}s ${wanted[0]} to ${wanted[1]}` : "");
    accuracy(view, xAxis);
    rounds(view, xAxis);
    regret(view, xAxis);
    shares(s);
    heat(s);
  }

  function ends(s, [first, last]) {
    if (choice.x !== "time") return { min: first, max: last };
    const r = shown(s).rounds, before = r.round.findLastIndex((each) => each < first);
    const until = r.round.findIndex((each) => each >= last);
    const least = before >= 0 ? r.time_s[before] : Math.max(0, r.time_s[0] - r.mean_s[0]);
    return { min: Number(least.toPrecision(4)), max: Number(r.time_s.at(until < 0 ? -1 : until).toPrecision(6)) };
  }

  const on = (each) => (choice.x === "time" ? each.time_s : each.round);
  const inside = (s) => {
    const wanted = span(s);
    return (round) => !wanted || (round >= wanted[0] && round <= wanted[1]);
  };

  /** Return a moving average: each point has a weight of 1 - weight, the older ones ever less. */
  function smoothed(values, weight) {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = weight * sum + (1 - weight) * value;
      total = weight * total + (1 - weight);
      return sum / total;
    });
  }

  function accuracy(s, xAxis) {
    const a = s.accuracy, target = s.run.target_accuracy, what = s.run.buffered ? "step" : "round";
    const label = a.round.length ? `Accuracy ${a.accuracy.at(-1).toFixed(4)} in ${what} ${a.round.at(-1)}, best ${Math.max(...a.accuracy).toFixed(4)}.` : "Nothing was evaluated yet.";
    setText(byId("accuracy-empty"), a.round.length ? "" : "Nothing was evaluated yet.");
    Charts.put(byId("c-accuracy"), () => {
      const goal = target ? { markLine: { lineStyle: { color: Palette.of("target"), width: 1.5 }, label: { formatter: "target", position: "insideEndTop" }, data: [{ yAxis: target }] } } : {};
      const colour = Palette.of("ours"), raw = Charts.pairs(on(a), a.accuracy), known = choice.smooth > 0;
      return {
        xAxis, yAxis: { type: "value", name: "accuracy", nameGap: 40, scale: true, ...(target ? { max: (v) => Math.max(v.max, Math.min(1, target * 1.02)), axisLabel: { showMaxLabel: false } } : {}) },
        series: [
          Charts.line(known ? "as measured" : "accuracy", raw, { ...goal, lineStyle: { color: colour, width: known ? 1 : 2.5, opacity: known ? 0.35 : 1 }, itemStyle: { color: colour, opacity: known ? 0.35 : 1 } }),
          ...(known ? [Charts.line("smoothed", Charts.pairs(on(a), smoothed(a.accuracy, choice.smooth)), { showSymbol: false, lineStyle: { color: colour, width: 2.5 }, itemStyle: { color: colour } })] : []),
        ],
        tooltip: { trigger: "axis", valueFormatter: (value) => (value == null ? "–" : value.toFixed(4)) },
      };
    }, label, { drag, group: "curves", csv: () => [["round", "time_s", "accuracy", "loss"], ...a.round.map((_, i) => [a.round[i], a.time_s[i], a.accuracy[i], a.loss[i]])] });
  }

  function rounds(s, xAxis) {
    const r = s.rounds, names = Page.state.clients.name, several = r.width > 1, here = inside(Page.state);
    const what = s.run.buffered ? "step" : "round", top = Charts.limit(r.longest_s, 0.97);
    setText(byId("rounds-title"), s.run.buffered ? "Length of a step" : "Length of a round, and who was slowest");
    const beyond = top == null ? [] : r.longest_s.filter((value, i) => value > top && here(r.longest_round[i]));
    const counts = new Map();
    r.slowest.forEach((arm) => counts.set(arm, (counts.get(arm) || 0) + 1));
    const often = [...counts].sort((a, b) => b[1] - a[1])[0];
    const cut = beyond.length ? `, ${beyond.length} above the scale (▲), up to ${Format.seconds(Math.max(...beyond))}` : "";
    setText(byId("rounds-note"), !r.round.length ? `No ${what} has ended yet.` : `${several ? `The longest of every ${r.width} ${what}s, and their mean` : `Each ${what}, and its moving mean`}${cut}.`);
    const label = r.round.length ? `Last ${what} ${Format.seconds(Page.state.top.round_s)}, deadline ${Format.seconds(s.run.tau_max_s)}; most often the slowest: ${names[often[0]] ?? "none"}.` : `No ${what}s yet.`;
    const longestX = choice.x === "time" ? r.longest_time_s : r.longest_round;
    Charts.put(byId("c-rounds"), () => {
      const points = r.longest_s.map((value, i) => ({ value: [longestX[i], top != null && value > top ? top : value], name: names[r.slowest[i]] ?? "", real: value, round: r.longest_round[i], ...(top != null && value > top ? { symbol: "triangle", symbolSize: 9 } : {}) }));
      const deadline = s.run.tau_max_s ? { markLine: { lineStyle: { color: Palette.of("target"), width: 1.5 }, label: { formatter: "deadline", position: "insideEndBottom" }, data: [{ yAxis: s.run.tau_max_s }] } } : {};
      return {
        legend: {}, xAxis, yAxis: { type: "value", name: `${what} [s]`, nameGap: 40, ...(top == null ? {} : { max: Number((1.03 * top).toPrecision(2)) }) },
        series: [
          { name: several ? "longest" : what, type: "scatter", symbolSize: 4, data: points, itemStyle: { color: Palette.of("faint") }, ...deadline },
          Charts.line("mean", Charts.pairs(on(r), smoothed(r.mean_s, several ? choice.smooth : Math.max(choice.smooth, 0.9))), { showSymbol: false, lineStyle: { color: Palette.of("ours"), width: several && choice.smooth < 0.5 ? 1.25 : 2.5 }, itemStyle: { color: Palette.of("ours") } }),
        ],
        tooltip: { formatter: (p) => (p.seriesType === "line" ? `mean ${Format.seconds(p.value[1])}` : `${what} ${p.data.round}: ${Format.seconds(p.data.real)}${p.name ? `\n${s.run.buffered ? "longest work" : "slowest"}: ${p.name}` : ""}`) },
      };
    }, label, { drag, group: "curves", click: (p) => { if (p.data?.round) Why.go(p.data.round); },
      csv: () => [["round", "end_s", "mean_s", "longest_s", "longest_round", "slowest"], ...r.round.map((_, i) => [r.round[i], r.time_s[i], r.mean_s[i], r.longest_s[i], r.longest_round[i], names[r.slowest[i]] ?? ""])] });
  }

  function regret(s, xAxis) {
    const found = s.regret;
    byId("regret-figure").hidden = !found;
    if (!found) return;
    Charts.put(byId("c-regret"), () => ({
      xAxis, yAxis: { type: "value", name: "regret [s]", nameGap: 40 },
      series: [Charts.line("regret", Charts.pairs(on(found), found.regret_s), { showSymbol: false, lineStyle: { color: Palette.of("ours"), width: 2.5 }, itemStyle: { color: Palette.of("ours") } })],
      tooltip: { trigger: "axis", valueFormatter: Format.seconds },
    }), `Regret grows to ${Format.seconds(found.regret_s.at(-1))} in round ${found.round.at(-1)}.`,
    { drag, group: "curves", csv: () => [["round", "time_s", "regret_s"], ...found.round.map((_, i) => [found.round[i], found.time_s[i], found.regret_s[i]])] });
  }

  function shares(s) {
    const c = s.clients, arms = c.name.map((_, i) => i), what = s.run.buffered ? "updates" : "rounds";
    const floors = c.floor.some((floor) => floor);
    const short = (i) => (c.floor[i] ?? 0) - (c.share[i] ?? 0);
    const late = arms.filter((i) => short(i) > 0.01).sort((a, b) => short(b) - short(a)).map((i) => c.name[i]);
    const label = floors ? (late.length ? `Below their floor: ${late.slice(0, 10).join(", ")}.` : "Every client has its floor.") : "The policy keeps no floors.";
    setText(byId("shares-note"), arms.length ? (late.length ? `${late.length} below their floor: ${late.slice(0, 3).join(", ")}${late.length > 3 ? " …" : ""}.` : label) : "");
    const table = () => [["client", "share", "floor", "mean_s"], ...arms.map((i) => [c.name[i], c.share[i], c.floor[i], c.mean_s[i]])];
    const many = arms.length > BARS;
    const tell = (i) => `${c.name[i]}\nshare ${Format.share(c.share[i])}${c.floor[i] == null ? "" : `, floor ${Format.share(c.floor[i])}`}\nround trip ${Format.seconds(c.mean_s[i])}`;
    Charts.put(byId("c-shares"), () => {
      const bar = { color: Palette.of("ours") }, floor = { color: Palette.of("floor"), borderColor: Palette.of("card"), borderWidth: 1 }, below = { color: Palette.of("failed"), decal: Palette.pattern(1) };
      const series = many
        ? [
          { name: "client", type: "scatter", symbolSize: 5, itemStyle: { ...bar, opacity: 0.55 }, data: arms.filter((i) => c.mean_s[i] != null).map((i) => ({ value: [c.mean_s[i], c.share[i]], arm: i, ...(short(i) > 0.01 ? { itemStyle: { ...below, opacity: 1 } } : {}) })) },
          ...(floors ? [{ name: "floor", type: "scatter", symbol: "rect", symbolSize: [8, 2], itemStyle: { color: floor.color }, data: arms.filter((i) => c.mean_s[i] != null).map((i) => ({ value: [c.mean_s[i], c.floor[i]], arm: i })) }] : []),
        ]
        : [
          { name: `share of ${what}`, type: "bar", barMaxWidth: 34, itemStyle: bar, data: arms.map((i) => ({ value: c.share[i], arm: i, ...(short(i) > 0.01 ? { itemStyle: below } : {}) })) },
          ...(floors ? [{ name: "floor", type: "scatter", symbol: "rect", symbolSize: [22, 5], itemStyle: floor, data: arms.map((i) => ({ value: c.floor[i], arm: i })) }] : []),
        ];
      return {
        legend: {},
        xAxis: many ? { type: "value", name: "mean round trip [s]", scale: true } : { type: "category", name: "client", nameGap: 30, data: c.name, axisLabel: { interval: "auto", width: 90, overflow: "truncate" } },
        yAxis: { type: "value", name: `share of ${what}`, nameGap: 40, axisLabel: { formatter: (value) => `${Number((100 * value).toPrecision(3))} %` } },
        series, tooltip: { formatter: (p) => tell(p.data.arm) },
      };
    }, label, { csv: table, click: (p) => { if (p.data?.arm != null) Why.ask(p.data.arm); } });
  }

  function heat(s) {
    const h = s.heat, names = s.clients.name, width = h.width || 1, what = s.run.buffered ? "steps" : "rounds";
    const grouped = h.rows.some((row) => row.length > 1);
    const rows = h.rows.map((row) => (row.length === 1 ? names[row[0]] : `${names[row[0]]} … ${names[row.at(-1)]}`));
    setText(byId("heat-note"), !h.round.length ? "" : `Percent of ${width > 1 ? `every ${width} ${what}` : `each ${what.slice(0, -1)}`}; the fastest ${grouped ? "groups of clients " : "clients "}at the bottom.`);
    byId("c-heat").style.height = `${Math.min(26, 8 + 0.9 * Math.max(rows.length, 6))}rem`;
    const percent = h.percent.flatMap((row, y) => row.map((value, x) => [x, y, value]));
    const marks = rows.length <= 40 ? null : { 0: "fastest", [Math.floor(rows.length / 2)]: "median", [rows.length - 1]: "slowest" };
    const most = Math.max(10, ...h.percent.map((row) => Math.max(...row)));
    Charts.put(byId("c-heat"), () => ({
      grid: { bottom: 30 },
      xAxis: { type: "category", name: what.slice(0, -1), nameGap: 24, data: h.round, splitArea: { show: false } },
      yAxis: { type: "category", data: rows, axisTick: { show: !marks }, axisLabel: marks ? { interval: (i) => i in marks, formatter: (_, i) => marks[i] } : { interval: 0, width: 100, overflow: "truncate" } },
      visualMap: { min: 0, max: most, calculable: false, orient: "horizontal", right: 10, bottom: 0, itemHeight: 90, itemWidth: 12, text: [`${most} %`, "0 %"], inRange: { color: Palette.steps() } },
      series: [{ type: "heatmap", data: percent, progressive: 0 }],
      tooltip: { formatter: (p) => `${rows[p.value[1]]}\n${what} from ${h.round[p.value[0]]} on: ${p.value[2]} %` },
    }), `Heat map of selections: ${h.rows.length} rows, ${what} 1 to ${s.top.round}.`,
    { csv: () => [["clients", ...h.round.map((each) => `from ${each}`)], ...h.percent.map((row, y) => [rows[y], ...row])] });
  }

  return { begin, update };
})();
