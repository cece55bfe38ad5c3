"use strict";
// Colours arrive as names of CSS variables, so that the style sheet is their only source.
function coloured(value, key, style) {
  if (Array.isArray(value)) return value.map((item) => coloured(item, key, style));
  if (value !== null && typeof value === "object") {
    const copy = {};
    for (const [name, item] of Object.entries(value)) copy[name] = coloured(item, name, style);
    return copy;
  }
  if (typeof value !== "string" || !/color(scale)?$/.test(key)) return value;
  return style.getPropertyValue("--" + value).trim() || value;
}
const chartConfig = {
  displaylogo: false, displayModeBar: false, responsive: true, showTips: false,
};
