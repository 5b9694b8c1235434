"use strict";

/** The charts, drawn by Apache ECharts on canvases; each has a sentence for screen readers. */
const Charts = (() => {
  // Colours are custom properties, which the palette of flower_scheduling defines for light and dark.
  const SERIES = [0, 1, 2, 3, 4, 5, 6].map((number) => `--series-${number}`);
  const HEAT = [0, 1, 2, 3, 4, 5].map((number) => `--heat-${number}`);
  const BARS = 60;
  const charts = new Map(); // element -> { chart, option, due }
  const visible = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const found = charts.get(entry.target);
      if (!found) continue;
      found.visible = entry.isIntersecting;
      draw(found);
    }
  });
  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) charts.get(entry.target)?.chart?.resize();
  });

  /** Return the value of a custom property as it is now. */
  function style(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /** Show an option in an element, as soon as it is in sight. */
  function put(element, option, label, tell = null) {
    element.setAttribute("aria-label", label);
    let found = charts.get(element);
    if (!found) {
      found = { element, chart: null, visible: false };
      charts.set(element, found);
      visible.observe(element);
      sizes.observe(element);
    }
    const text = JSON.stringify(option);
    if (text === found.text) return;
    found.text = text;
    found.option = tell ? { ...option, tooltip: { ...option.tooltip, formatter: tell } } : option;
    draw(found);
  }

  function draw(found) {
    if (!found.visible || !found.option) return;
    if (!found.chart) found.chart = echarts.init(found.element);
    const ink = style("--ink"), line = style("--line"), soft = style("--soft");
    const axis = (each) => ({
      ...each, nameTextStyle: { color: soft }, axisLabel: { color: soft, hideOverlap: true, ...(each.type === "value" ? { formatter: (value) => String(Number(value.toPrecision(4))) } : {}), ...each.axisLabel },
      axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } },
    });
    const option = found.option;
    found.chart.setOption({
      animation: false,
      color: SERIES.map(style),
      textStyle: { color: ink },
      grid: { left: 8, right: 16, top: option.legend ? 40 : 30, bottom: 8, containLabel: true },
      ...option,
      xAxis: axis(option.xAxis),
      yAxis: axis(option.yAxis),
      series: option.series.map(({ colour, ...each }) => ({
        ...each,
        ...(colour ? { itemStyle: { color: style(colour) } } : {}),
        ...(each.markLine ? { markLine: { silent: true, symbol: "none", ...each.markLine, label: { color: ink, textBorderWidth: 0, ...each.markLine.label } } } : {}),
      })),
      legend: option.legend && { textStyle: { color: ink }, type: "scroll", top: 0, ...option.legend },
      visualMap: option.visualMap && { textStyle: { color: soft }, inRange: { color: HEAT.map(style) }, ...option.visualMap },
      tooltip: { renderMode: "richText", confine: true, backgroundColor: style("--card"), textStyle: { color: ink }, ...option.tooltip },
    }, true);
    found.option = null;
    found.last = option;
  }

  function line(name, points, more = {}) {
    return { name, type: "line", data: points, showSymbol: points.length < 30, ...more };
  }

  function pairs(x, y) {
    return x.map((each, i) => [each, y[i]]);
  }

  function update() {
    const s = Page.state, time = s.run.simulated ? "virtual time [s]" : "time [s]";
    accuracy(s, "c-accuracy", s.accuracy.round, "round");
    accuracy(s, "c-accuracy-time", s.accuracy.time_s, time);
    rounds(s);
    shares(s);
    heat(s);
    const regret = s.regret;
    byId("regret-figure").hidden = !regret;
    if (regret) {
      put(byId("c-regret"), {
        xAxis: { type: "value", name: "round", nameLocation: "middle", nameGap: 26, max: "dataMax" },
        yAxis: { type: "value", name: "regret [s]" },
        series: [line("regret", pairs(regret.round, regret.regret_s))],
        tooltip: { trigger: "axis" },
      }, `Regret grows to ${Format.seconds(regret.regret_s.at(-1))} in round ${regret.round.at(-1)}.`);
    }
  }

  function accuracy(s, id, x, name) {
    const a = s.accuracy, target = s.run.target_accuracy;
    const goal = target ? { markLine: { label: { formatter: "target" }, data: [{ yAxis: target }] } } : {};
    const label = a.round.length ? `Accuracy ${a.accuracy.at(-1).toFixed(4)} in round ${a.round.at(-1)}, best ${Math.max(...a.accuracy).toFixed(4)}.` : "Nothing was evaluated yet.";
    put(byId(id), {
      xAxis: { type: "value", name, nameLocation: "middle", nameGap: 26, max: "dataMax" },
      yAxis: { type: "value", name: "accuracy", scale: true },
      series: [line("accuracy", pairs(x, a.accuracy), goal)],
      tooltip: { trigger: "axis" },
    }, label);
  }

  function rounds(s) {
    const r = s.rounds, names = s.clients.name, several = r.round.length && s.top.round > r.round.length;
    const slow = r.round.map((_, i) => ({ value: [r.longest_round[i], r.longest_s[i]], name: names[r.slowest[i]] ?? "" }));
    const series = [{
      name: several ? "longest, with its slowest client" : "round, with its slowest client", type: "scatter", symbolSize: 4, data: slow,
      markLine: s.run.tau_max_s ? { label: { formatter: "deadline", position: "insideEndTop" }, data: [{ yAxis: s.run.tau_max_s }] } : undefined,
    }];
    if (several) series.push(line("mean", pairs(r.round, r.mean_s), { showSymbol: false }));
    const counts = new Map();
    r.slowest.forEach((arm) => counts.set(arm, (counts.get(arm) || 0) + 1));
    const often = [...counts].sort((a, b) => b[1] - a[1])[0];
    const tell = (p) => `round ${p.value[0]}\n${Format.seconds(p.value[1])}${p.name ? `\nslowest: ${p.name}` : ""}`;
    put(byId("c-rounds"), {
      legend: {},
      xAxis: { type: "value", name: "round", nameLocation: "middle", nameGap: 26, max: "dataMax" },
      yAxis: { type: "value", name: "s" },
      series,
      tooltip: {},
    }, r.round.length ? `Last round ${Format.seconds(s.top.round_s)}, deadline ${Format.seconds(s.run.tau_max_s)}; most often the slowest: ${names[often[0]] ?? "nobody"}.` : "No rounds yet.", tell);
  }

  function shares(s) {
    const c = s.clients;
    let arms = c.name.map((_, i) => i);
    const short = (i) => (c.floor[i] ?? 0) - (c.share[i] ?? 0);
    if (arms.length > BARS) arms = arms.sort((a, b) => short(b) - short(a)).slice(0, BARS);
    const floors = c.floor.some((floor) => floor != null);
    const late = arms.filter((i) => short(i) > 0.01).map((i) => c.name[i]);
    put(byId("c-shares"), {
      legend: {},
      xAxis: { type: "category", data: arms.map((i) => c.name[i]) },
      yAxis: { type: "value", name: "share" },
      series: [
        { name: "share of rounds", type: "bar", colour: "--ok", data: arms.map((i) => c.share[i]) },
        ...(floors ? [{ name: "floor", type: "scatter", colour: "--ink", symbol: "rect", symbolSize: [14, 3], data: arms.map((i) => c.floor[i]) }] : []),
      ],
      tooltip: { trigger: "axis" },
    }, floors ? (late.length ? `Below their floor: ${late.slice(0, 10).join(", ")}.` : "Every client has its floor.") : "The policy keeps no floors.");
  }

  function heat(s) {
    const h = s.heat, names = s.clients.name, width = h.width || 1;
    const grouped = h.rows.some((row) => row.length > 1);
    const rows = h.rows.map((row) => (row.length === 1 ? names[row[0]] : `${names[row[0]]} … ${names[row.at(-1)]}`));
    setText(byId("heat-caption"), `Who was selected when: percent of ${width > 1 ? `${width} rounds` : "each round"}, the fastest ${grouped ? "groups of clients " : ""}at the bottom`);
    put(byId("c-heat"), {
      grid: { left: 8, right: 16, top: 10, bottom: 40, containLabel: true },
      xAxis: { type: "category", data: h.round, splitArea: { show: false } },
      yAxis: { type: "category", data: rows, axisLabel: { width: 110, overflow: "truncate" } },
      visualMap: { min: 0, max: Math.max(10, ...h.percent.map((row) => Math.max(...row))), calculable: false, orient: "horizontal", left: "center", bottom: 0, itemHeight: 90 },
      series: [{ type: "heatmap", data: h.percent.flatMap((row, y) => row.map((value, x) => [x, y, value])), progressive: 2000 }],
      tooltip: {},
    }, `Heat map of selections: ${h.rows.length} rows, rounds 1 to ${s.top.round}.`);
  }

  /** Bars of a round's scores, split in their parts. */
  function scores(element, arms, shown, parts) {
    const found = shown.scores, names = arms.map((arm) => `${shown.selected.includes(arm) ? "✓ " : ""}${shown.names[arm]}`);
    const finite = (value) => (typeof value === "number" ? value : null);
    const untried = arms.filter((arm) => typeof found.score[arm] === "string").length;
    const cut = finite(found.cut);
    const series = parts.map((part) => ({ name: part, type: "bar", stack: "score", colour: `--part-${part}`, data: arms.map((arm) => finite(found.parts[part][arm])) }));
    if (series.length && cut != null) {
      series[0].markLine = { label: { formatter: "cut", position: "start", distance: 2 }, lineStyle: { type: "solid", width: 2 }, data: [{ xAxis: cut }] };
    }
    element.style.height = `${Math.max(9, 4 + 1.35 * arms.length)}rem`;
    put(element, {
      legend: {},
      grid: { left: 8, right: 40, top: 48, bottom: 8, containLabel: true },
      xAxis: { type: "value", name: found.unit },
      yAxis: { type: "category", inverse: true, data: names, axisLabel: { width: 130, overflow: "truncate", interval: 0 } },
      series,
      tooltip: { trigger: "axis", axisPointer: { type: "shadow" } },
    }, `Scores of round ${shown.round} by rank, in the parts ${parts.join(", ")}; the table below has the numbers.${untried ? ` ${untried} clients were never tried.` : ""}`);
  }

  // On paper everything is in sight.
  addEventListener("beforeprint", () => {
    for (const found of charts.values()) {
      found.visible = true;
      draw(found);
    }
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const found of charts.values()) {
      found.option = found.option || found.last;
      draw(found);
    }
  });

  return { update, scores };
})();
