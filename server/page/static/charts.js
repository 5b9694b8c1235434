"use strict";

/** The kit of all charts, drawn by Apache ECharts on canvases; each has a sentence for screen readers. */
const Charts = (() => {
  const charts = new Map(); // element -> { element, chart, text, build, visible }
  const PAPER_PX = 680, PAPER_HIGH_PX = 400;
  const visible = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const found = charts.get(entry.target);
      if (!found) continue;
      found.visible = entry.isIntersecting;
      draw(found);
    }
  }, { rootMargin: "200px" });
  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) charts.get(entry.target)?.chart?.resize();
  });
  let paper = false;

  /**
   * Show a chart in an element, as soon as it is in sight.
   *
   * @param element where; it gets the label
   * @param option of ECharts, as a function, since colours may change
   * @param label what it shows, in a sentence
   * @param more csv: () => rows; click: (params) => void; drag: (from, to) => void, in x values;
   *   group: charts with one crosshair
   */
  function put(element, option, label, more = {}) {
    element.setAttribute("aria-label", label);
    let found = charts.get(element);
    if (!found) {
      found = { element, chart: null, visible: false };
      charts.set(element, found);
      visible.observe(element);
      sizes.observe(element);
    }
    Object.assign(found, { build: option, more });
    button(found);
    const text = JSON.stringify(option());
    if (text === found.text) return;
    found.text = text;
    found.stale = true;
    draw(found);
  }

  /** Give the figure a button that downloads what its chart shows. */
  function button(found) {
    const caption = found.element.closest("figure")?.querySelector("figcaption");
    if (!found.more.csv || !caption || caption.querySelector("button")) return;
    const element = make("button", { type: "button", class: "small", title: "Download what this chart shows" }, "CSV");
    element.addEventListener("click", () => Csv.save(`${found.element.id.replace(/^c-/, "")}.csv`, found.more.csv()));
    caption.append(element);
  }

  function axis(each) {
    const soft = Palette.of("soft"), line = Palette.of("line");
    const numeric = each.type === "value" ? { formatter: (value) => String(Number(value.toPrecision(4))) } : {};
    const titled = each.name ? { nameLocation: "middle", nameGap: each.nameGap ?? 26 } : {};
    return {
      ...titled, ...each, nameTextStyle: { color: soft, fontSize: 12 },
      axisLabel: { color: soft, hideOverlap: true, ...(each.max === "dataMax" ? { showMaxLabel: false } : {}), ...numeric, ...each.axisLabel },
      axisLine: { lineStyle: { color: line }, ...each.axisLine }, axisTick: { lineStyle: { color: line }, ...each.axisTick },
      splitLine: { lineStyle: { color: line, opacity: 0.6 }, ...each.splitLine },
    };
  }

  function draw(found) {
    if (!found.visible || !found.stale) return;
    if (!found.chart) begin(found);
    found.stale = false;
    const ink = Palette.of("ink"), option = found.build(), touch = matchMedia("(pointer: coarse)").matches;
    found.chart.setOption({
      animation: false,
      textStyle: { color: ink, fontFamily: getComputedStyle(document.body).fontFamily },
      ...option,
      grid: { left: 4, right: 18, top: option.legend ? 34 : 14, bottom: 4, outerBoundsMode: "same", outerBoundsContain: "all", outerBounds: { left: 4, right: 10, top: 4, bottom: 4 }, ...option.grid },
      xAxis: axis(option.xAxis),
      yAxis: axis(option.yAxis),
      // ECharts rounds the place of a line to two decimals unless it is told not to.
      series: option.series.map((each) => ({
        ...each,
        ...(each.markLine ? { markLine: { silent: true, symbol: "none", precision: -1, ...each.markLine, label: { color: ink, textBorderWidth: 0, ...each.markLine.label } } } : {}),
        ...(paper ? { progressive: 0 } : {}),
      })),
      legend: option.legend && { textStyle: { color: ink }, type: "scroll", top: 0, left: 0, itemWidth: 18, itemHeight: 10, icon: "roundRect", pageIconColor: ink, pageTextStyle: { color: ink }, ...option.legend },
      visualMap: option.visualMap && { textStyle: { color: Palette.of("soft") }, ...option.visualMap },
      tooltip: option.tooltip && { renderMode: "richText", confine: true, backgroundColor: Palette.of("card"), borderColor: Palette.of("line"), textStyle: { color: ink, fontSize: 13 }, triggerOn: touch ? "click" : "mousemove|click", ...option.tooltip },
    }, true);
    if (found.more.group) {
      found.chart.group = found.more.group;
      echarts.connect(found.more.group);
    }
  }

  function begin(found) {
    found.chart = echarts.init(found.element, null, paper ? { width: PAPER_PX, height: Math.min(PAPER_HIGH_PX, found.element.clientHeight) } : undefined);
    found.chart.on("click", (params) => found.more.click?.(params));
    dragging(found);
  }

  /** Let the mouse drag over a span of the x axis, as Grafana does; a double click takes it back. */
  function dragging(found) {
    const zr = found.chart.getZr();
    let from = null, band = null;
    const inside = (event) => found.more.drag && found.chart.containPixel("grid", [event.offsetX, event.offsetY]);
    const end = () => {
      if (band) zr.remove(band);
      from = band = null;
    };
    zr.on("mousedown", (event) => {
      if (inside(event) && event.event.pointerType !== "touch" && !event.event.touches) from = event.offsetX;
    });
    zr.on("mousemove", (event) => {
      if (from == null) return;
      if (!band) {
        const height = found.chart.getHeight();
        band = new echarts.graphic.Rect({ shape: { x: from, y: 0, width: 0, height }, style: { fill: Palette.of("accent"), opacity: 0.15 }, silent: true, z: 100 });
        zr.add(band);
      }
      band.attr({ shape: { x: Math.min(from, event.offsetX), width: Math.abs(event.offsetX - from) } });
    });
    zr.on("mouseup", (event) => {
      if (from == null) return;
      const pixels = [from, event.offsetX].sort((a, b) => a - b);
      end();
      if (pixels[1] - pixels[0] < 6) return;
      found.more.drag(...pixels.map((x) => found.chart.convertFromPixel({ xAxisIndex: 0 }, x)));
    });
    zr.on("globalout", end);
    zr.on("dblclick", (event) => { if (inside(event)) found.more.drag(null, null); });
  }

  function line(name, points, more = {}) {
    return { name, type: "line", data: points, showSymbol: points.length < 30, symbolSize: 5, ...more };
  }

  function pairs(x, y) {
    return x.map((each, i) => [each, y[i]]);
  }

  /** Return where to cut an axis, so that few values far from all others do not flatten the rest. */
  function limit(values, share = 0.95, factor = 3) {
    const sorted = values.filter((value) => Number.isFinite(value)).map(Math.abs).sort((a, b) => a - b);
    if (sorted.length < 4) return null;
    const usual = sorted[Math.min(Math.ceil(share * sorted.length), sorted.length - 1) - 1];
    return usual > 0 && sorted.at(-1) > factor * usual ? 1.5 * usual : null;
  }

  function redraw() {
    for (const found of charts.values()) {
      found.stale = Boolean(found.build);
      draw(found);
    }
  }

  // On paper everything is in sight, drawn whole, dark on white and as wide as the paper.
  addEventListener("beforeprint", () => {
    paper = true;
    document.documentElement.dataset.paper = "";
    for (const found of charts.values()) {
      if (!found.build || found.element.closest("[hidden]")) continue;
      Object.assign(found, { wasVisible: found.visible, visible: true, stale: true });
      found.chart?.resize({ width: PAPER_PX, height: Math.min(PAPER_HIGH_PX, found.element.clientHeight) });
      draw(found);
      // One canvas, since a browser prints neither several on top of each other nor half of a chart.
      const canvas = found.chart.renderToCanvas({ pixelRatio: 2, backgroundColor: Palette.of("card") });
      canvas.removeAttribute("style"); // which lays it over all else
      canvas.className = "paper";
      found.element.append(canvas);
    }
  });
  addEventListener("afterprint", () => {
    paper = false;
    delete document.documentElement.dataset.paper;
    for (const { chart, element } of charts.values()) {
      element.querySelector("canvas.paper")?.remove();
      chart?.resize({ width: "auto", height: "auto" });
    }
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  return { put, line, pairs, limit };
})();
