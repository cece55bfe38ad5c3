// Draws the charts, and draws them anew when the reader's theme changes.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function draw() {
    const style = getComputedStyle(document.documentElement);
    for (const { id, data, layout } of charts) {
      const place = document.getElementById("chart-" + id);
      Plotly.react(place, coloured(data, "", style), coloured(layout, "", style), chartConfig);
    }
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }

  dark.addEventListener("change", draw);
  draw();
})();
