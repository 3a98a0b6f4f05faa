"use strict";

// Draws the figures of the page in the colours of its style sheet, and again when those or the width change.

const figures = JSON.parse(document.getElementById("figures").textContent);
const PRINT_PIXELS = 680;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function themed(figure, width) {
  const ink = colour("ink"), faint = colour("faint"), line = colour("line");
  const layout = structuredClone(figure.layout);
  for (const name of Object.keys(layout).filter((key) => key.includes("axis"))) {
    Object.assign(layout[name], { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line });
  }
  for (const shape of layout.shapes || []) shape.line.color = ink;
  const data = figure.data.map((trace) => {
    const own = colour("series-" + trace.meta);
    return Object.assign({}, trace, { marker: { color: own }, line: Object.assign({ color: own }, trace.line) });
  });
  Object.assign(layout, {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: ink },
    hoverlabel: { bgcolor: colour("raised"), bordercolor: line, font: { color: ink } },
    legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0, font: { color: faint } },
    margin: { l: 8, r: 8, t: figure.data.length > 1 ? 40 : 8, b: 8 },
    dragmode: false, // or a finger that scrolls the page would draw a box
    width,
  });
  return { data, layout };
}

function draw(width) {
  for (const [id, figure] of Object.entries(figures)) {
    const place = document.getElementById(id);
    if (!place) continue;
    const { data, layout } = themed(figure, width && place.closest(".grid") ? width / 2 - 8 : width);
    Plotly.react(place, data, layout, { responsive: true, displayModeBar: false });
  }
}

for (const place of document.querySelectorAll(".plot")) {
  if (!(place.id in figures)) place.closest("figure").remove();
}
draw();

const funnel = document.getElementById("plot-funnel");
if (funnel) {
  funnel.on("plotly_click", ({ points }) => {
    const stage = document.getElementById("rejected-" + points[0].y);
    if (stage) stage.scrollIntoView({ behavior: "smooth" });
  });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
matchMedia("print").addEventListener("change", (media) => draw(media.matches ? PRINT_PIXELS : undefined));
