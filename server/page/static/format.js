"use strict";

/** How numbers and elements are made; texts of clients never become markup. */
const Format = {
  seconds(value) {
    if (value == null) return "–";
    if (value < 1e-5) return "0 s";
    if (value < 0.0995) return `${(1000 * value).toPrecision(2)} ms`;
    return `${value.toPrecision(3)} s`;
  },

  duration(value) {
    if (value == null) return "–";
    if (value < 100) return Format.seconds(value);
    const whole = Math.round(value);
    const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    if (h >= 48) return `${Math.floor(h / 24)} d ${h % 24} h`;
    return h ? `${h} h ${m} min` : `${m} min ${s} s`;
  },

  number(value, digits = 3) {
    if (value == null) return "–";
    if (value === "inf") return "∞";
    if (value === "-inf") return "−∞";
    const size = Math.abs(value);
    if (size < 1e-9) return "0";
    if (size < 1e-4 || size >= 1e6) return value.toExponential(1).replaceAll("-", "−");
    return value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size)))).replace("-", "−");
  },

  share(value) {
    return value == null ? "–" : `${(100 * value).toFixed(1)} %`;
  },

  /** What order and sums need: infinities as numbers, the unknown as NaN. */
  value(value) {
    return value === "inf" ? Infinity : value === "-inf" ? -Infinity : value == null ? NaN : value;
  },

  ago(epoch) {
    const seconds = Math.max(0, Date.now() / 1000 - epoch);
    return `${Format.duration(Math.max(1, Math.round(seconds)))} ago`;
  },
};

function byId(id) {
  return document.getElementById(id);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Return an element with attributes and children; a child that is no element is a text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value != null) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** Tables as files. */
const Csv = {
  /** Return rows as CSV; a name that a spreadsheet would take for a formula gets an apostrophe. */
  text(rows) {
    const field = (value) => {
      if (value == null) return "";
      const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
  },

  save(name, rows) {
    const address = URL.createObjectURL(new Blob([Csv.text(rows)], { type: "text/csv" }));
    const link = make("a", { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  },
};
