"use strict";

/** The channels of a buffered run over time: which client had which, how long, how stale it was. */
const Channels = (() => {
  const MOST = 40; // channels that are drawn
  const SPANS = { 20: 20, 60: 60, 600: 600 };

  function begin() {
    byId("channel-span").addEventListener("change", () => { if (Page.state) update(); });
  }

  function update() {
    const s = Page.state, c = s.channels, names = s.clients.name;
    byId("channels").hidden = !s.run.buffered;
    byId("channels-link").hidden = !s.run.buffered;
    if (!c) return;
    const lanes = Math.min(MOST, Math.max(0, ...c.channel) + 1), now = s.top.time_s ?? 0;
    // Of as many of the last pieces as fit, those that a lane of this length can show.
    const ends = c.end_s.map((end) => end ?? now), wanted = SPANS[byId("channel-span").value] * (lanes > 12 ? 3 : 1);
    const from = Math.max(0, c.begin_s.length - wanted), least = Math.min(now, ...c.begin_s.slice(from));
    const rows = [];
    for (let i = 0; i < c.arm.length; i++) {
      if (ends[i] > least && c.channel[i] < lanes) rows.push(i);
    }
    const failed = rows.filter((i) => c.reason[i]).length, open = rows.filter((i) => c.step[i] == null).length;
    const most = Math.max(1, ...rows.map((i) => c.staleness[i] ?? 0));
    setText(byId("channels-note"), `${rows.length} pieces of work on ${lanes} channels${lanes < s.run.num_selected ? ` of ${s.run.num_selected}` : ""}: ${failed} failed, ${open} under way. The stronger the colour, the staler the model that the client began from (at most ${most} ${most === 1 ? "step" : "steps"}).`);
    const element = byId("c-channels");
    element.style.height = `${Math.min(34, 5 + (lanes > 20 ? 0.7 : 1.7) * lanes)}rem`;
    const steps = stepsBetween(s, least, now);
    Charts.put(element, () => {
      const ramp = Palette.steps(), card = Palette.of("card");
      const colour = (i) => {
        if (c.reason[i]) return Palette.of("failed");
        const share = (c.staleness[i] ?? 0) / most;
        return echarts.color.lerp(0.25 + 0.6 * share, ramp);
      };
      const data = rows.map((i) => ({ value: [c.begin_s[i], c.channel[i], ends[i]], i, colour: c.step[i] == null ? card : colour(i) }));
      return {
        grid: { right: 14 },
        xAxis: { type: "value", name: s.run.simulated ? "virtual time [s]" : "time [s]", min: least, max: now, axisLabel: { showMinLabel: false, showMaxLabel: false } },
        yAxis: { type: "category", inverse: true, name: "channel", nameGap: 28, data: Array.from({ length: lanes }, (_, i) => String(i + 1)), axisLabel: { interval: lanes > 20 ? 4 : 0 }, splitLine: { show: false } },
        series: [{
          type: "custom", clip: true, data, encode: { x: [0, 2], y: 1 },
          renderItem: (params, api) => piece(params, api, data[params.dataIndex], names[c.arm[data[params.dataIndex].i]] ?? ""),
          markLine: { symbol: "none", label: { show: false }, lineStyle: { color: Palette.of("soft"), opacity: 0.35, type: "solid", width: 1 }, data: steps.map((x) => ({ xAxis: x })) },
        }],
        tooltip: { formatter: (p) => (p.data.i == null ? "" : tell(c, p.data.i, names)) },
      };
    }, `Channels over time: ${rows.length} pieces of work on ${lanes} channels, ${failed} failed.`,
    { click: (p) => { const i = p.data?.i; if (i != null) Why.goPick(c.picked_in[i], c.arm[i], c.begin_s[i], c.step[i]); },
      csv: () => [["channel", "client", "begin_s", "end_s", "picked_in", "step", "staleness", "failure"], ...c.arm.map((arm, i) => [c.channel[i] + 1, names[arm] ?? "", c.begin_s[i], c.end_s[i], c.picked_in[i], c.step[i], c.staleness[i], c.reason[i]])] });
  }

  /** Return when the model changed, where that is not too often to be seen. */
  function stepsBetween(s, from, to) {
    if (s.rounds.width > 1) return [];
    const found = s.rounds.time_s.filter((time) => time > from && time < to);
    return found.length > 80 ? [] : found;
  }

  function piece(params, api, item, name) {
    const [x, y] = api.coord([item.value[0], item.value[1]]), [end] = api.coord([item.value[2], item.value[1]]);
    const height = Math.min(26, Math.max(2, 0.74 * api.size([0, 1])[1]));
    const box = echarts.graphic.clipRectByRect({ x, y: y - height / 2, width: Math.max(1.5, end - x - 1), height }, { x: params.coordSys.x, y: params.coordSys.y, width: params.coordSys.width, height: params.coordSys.height });
    if (!box) return null;
    const most = Math.floor((box.width - 8) / 6.4), fits = most > 3 && height > 11;
    const text = name.length > most ? `${name.slice(0, most - 1)}…` : name, ink = Palette.of(echarts.color.lum(item.colour, 1) > 0.45 ? "onLight" : "onDark");
    return {
      type: "rect", shape: { ...box, r: Math.min(3, height / 4) },
      style: { fill: item.colour, stroke: Palette.of("soft"), lineWidth: 0.6 },
      // Also where there is no room for it, or that of an earlier drawing would stay.
      textContent: { style: { text: fits ? text : "", fill: ink, fontSize: 11 } }, textConfig: { position: "insideLeft", distance: 4 },
      emphasis: { style: { stroke: ink, lineWidth: 1.5 } },
    };
  }

  function tell(c, i, names) {
    const lines = [`${names[c.arm[i]] ?? ""} on channel ${c.channel[i] + 1}`, `from ${Format.duration(c.begin_s[i])}`];
    if (c.step[i] == null) return [...lines, "under way"].join("\n");
    lines.push(`took ${Format.seconds(c.end_s[i] - c.begin_s[i])}`);
    lines.push(c.reason[i] ? `failed: ${c.reason[i]}` : `update of step ${c.step[i]}, ${c.staleness[i] ?? 0} steps stale`);
    return [...lines, "click: why it got the channel"].join("\n");
  }

  return { begin, update };
})();
