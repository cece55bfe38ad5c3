"use strict";
// Draws the charts, and draws them anew when the reader's theme changes.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const config = { displaylogo: false, displayModeBar: false, responsive: true, showTips: false };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

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

  function draw() {
    const style = getComputedStyle(document.documentElement);
    for (const { id, data, layout } of charts) {
      const place = document.getElementById("chart-" + id);
      Plotly.react(place, coloured(data, "", style), coloured(layout, "", style), config);
    }
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }

  dark.addEventListener("change", draw);
  draw();
})();
