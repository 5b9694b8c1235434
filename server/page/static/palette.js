"use strict";

/**
 * Colours by meaning. Their values, for light, dark and paper, are the CSS variables at the top of
 * page.css; nothing else on the page has a colour of its own.
 */
const Palette = (() => {
  const MEANINGS = {
    ink: "--ink", soft: "--soft", line: "--line", card: "--card", accent: "--accent",
    bad: "--bad", good: "--good", ours: "--c-ours", random: "--c-random", faint: "--c-faint",
    target: "--c-target", floor: "--c-floor", failed: "--c-failed", score: "--c-score",
    onLight: "--c-on-light", onDark: "--c-on-dark",
  };
  // Parts of scores, in the order of their colours.
  const PARTS = {
    mean: "--c-time", time: "--c-time", failures: "--c-failed", bonus: "--c-bonus", draw: "--c-draw",
    queue: "--c-floor", floor: "--c-floor", accuracy: "--c-accuracy", loss: "--c-loss",
    turn: "--c-accuracy", weight: "--c-accuracy", staleness: "--c-draw", chance: "--c-random",
  };
  const SERIES = ["--c-1", "--c-2", "--c-3", "--c-4", "--c-5", "--c-6", "--c-7"];
  const DASHES = ["solid", "dashed", "dotted"];
  const STEPS = ["--heat-0", "--heat-1", "--heat-2"];

  function value(variable) {
    return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  }

  return {
    of: (meaning) => value(MEANINGS[meaning]),
    part: (name) => value(PARTS[name] || "--c-random"),
    /** Colour and dash of the n-th of many lines: no two of the first 21 are alike. */
    series: (n) => ({ color: value(SERIES[n % SERIES.length]), type: DASHES[Math.floor(n / SERIES.length) % DASHES.length] }),
    variable: (n) => SERIES[n % SERIES.length],
    steps: () => STEPS.map(value),
  };
})();
