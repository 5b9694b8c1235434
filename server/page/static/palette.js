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

  function value(variable) {
    return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  }

  return {
    of: (meaning) => value(MEANINGS[meaning]),
    part: (name) => value(`--part-${name}`) || value("--c-random"),
    /** Colour and dash of the n-th of many lines: no two of the first 21 are alike. */
    series: (n) => ({ color: value(SERIES[n % SERIES.length]), type: DASHES[Math.floor(n / SERIES.length) % DASHES.length] }),
    variable: (n) => SERIES[n % SERIES.length],
    steps: () => STEPS.map(value),
  };
})();
