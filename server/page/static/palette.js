"use strict";

/**
 * Colours by meaning. Their values, for light, dark and paper, are CSS variables: those of
 * flower_scheduling/palette.py, which the server puts before page.css, and the few at its top.
 */
const Palette = (() => {
  const MEANINGS = {
    ink: "--ink", soft: "--soft", line: "--line", card: "--card", accent: "--accent",
    bad: "--failed", good: "--ok", ours: "--c-ours", random: "--c-random", faint: "--c-faint",
    target: "--ink", floor: "--ink", failed: "--failed", score: "--c-score",
    onLight: "--c-on-light", onDark: "--c-on-dark",
  };
  const SERIES = [0, 1, 2, 3, 4, 5, 6].map((n) => `--series-${n}`);
  const DASHES = ["solid", "dashed", "dotted"];
  const STEPS = [0, 1, 2, 3, 4, 5].map((n) => `--heat-${n}`);

  // Patterns of stacked parts, as rotation and lengths of strokes and gaps: what is told by hue alone is lost in grey.
  const PATTERNS = [null, { rotation: Math.PI / 4, dashArrayX: [1, 0], dashArrayY: [2, 4] }, { rotation: -Math.PI / 4, dashArrayX: [1, 0], dashArrayY: [1, 3] }, { dashArrayX: [[3, 3], [0, 3, 3, 0]], dashArrayY: [3, 0] }, { dashArrayX: [1, 0], dashArrayY: [1, 3] }];

  function value(variable) {
    return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  }

  return {
    of: (meaning) => value(MEANINGS[meaning]),
    part: (name) => value(`--part-${name}`) || value("--c-random"),
    /** Pattern of the n-th part of a stack, in the colour of the ground; the first has none. */
    pattern: (n) => PATTERNS[n % PATTERNS.length] && { symbol: "rect", ...PATTERNS[n % PATTERNS.length], color: value("--card") },
    /** Colour and dash of the n-th of many lines: no two of the first 21 are alike, and neighbours differ in grey. */
    series: (n) => ({ color: value(SERIES[n % SERIES.length]), type: DASHES[n % DASHES.length] }),
    variable: (n) => SERIES[n % SERIES.length],
    steps: () => STEPS.map(value),
  };
})();
