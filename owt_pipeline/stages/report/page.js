"use strict";

// Draws the charts in the colours of the style sheet, and offers each table as CSV.

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const percent = (value) => (100 * value).toFixed(1).replace(/\.0$/, "") + " %";
const specs = read("charts"), drawn = {};

function configuration(spec) {
  const ink = colour("ink"), faint = colour("faint"), line = colour("line");
  const shown = (value) => (spec.percent ? percent(value) : value.toLocaleString("en"));
  const axis = (title, more) => ({
    title: { display: !!title, text: title, color: faint },
    border: { color: line },
    ...more,
    ticks: { color: faint, precision: 0, ...more.ticks },
  });
  const datasets = spec.series.map((series, place) => ({
    label: series.name,
    data: series.values.map((value) => value || null), // minBarLength is for no zero
    backgroundColor: colour("series-" + (1 + (place % 5))),
    categoryPercentage: 0.95,
    barPercentage: 0.95,
    minBarLength: 2, // three rows are seen next to a million
  }));
  return {
    type: "bar",
    data: { labels: spec.labels, datasets },
    options: {
      animation: false,
      responsive: true,
      maintainAspectRatio: false,
      layout: { padding: { top: 4 } },
      interaction: { mode: "index", intersect: false },
      scales: {
        x: axis(spec.x, { stacked: !!spec.stacked, grid: { display: false }, ticks: { autoSkip: true, maxRotation: spec.small ? 0 : 45, font: { size: 11 } } }),
        y: axis("", {
          stacked: !!spec.stacked,
          beginAtZero: true,
          grid: { color: line },
          ticks: spec.percent ? { callback: percent, precision: undefined } : { callback: (value) => value.toLocaleString("en") },
        }),
      },
      plugins: {
        legend: {
          align: "start",
          labels: { color: ink, boxWidth: 12, boxHeight: 12 },
        },
        tooltip: { callbacks: { label: (item) => ` ${item.dataset.label}: ${shown(item.raw)}` } },
      },
    },
  };
}

// Draws the charts that are shown: those that are not drawn yet, or all, `anew`.
function draw(anew) {
  for (const [name, spec] of Object.entries(specs)) {
    const place = document.getElementById("plot-" + name);
    if (!place || !place.clientWidth || (drawn[name] && !anew)) continue;
    if (drawn[name]) drawn[name].destroy();
    const canvas = place.querySelector("canvas") || place.appendChild(document.createElement("canvas"));
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", place.closest("figure").querySelector("figcaption").textContent);
    drawn[name] = new Chart(canvas, configuration(spec));
  }
}

function csv(rows) {
  const cell = (value) => (/[",\n]/.test(value) ? '"' + value.replaceAll('"', '""') + '"' : value);
  return rows.map((row) => row.map((value) => cell(String(value ?? ""))).join(",")).join("\r\n") + "\r\n";
}

function offer(before, name, rows) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "CSV";
  button.title = name + ".csv";
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff" + csv(rows())], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  before.after(button);
}

// The run's name is that of its folder, which the page does not hold: the same run gives the same page everywhere.
const run = decodeURIComponent(location.pathname.split("/").at(-3) || "");
if (run) {
  document.title = `${run}: corpus report`;
  document.getElementById("name").textContent = ` of ${run}`;
}

const FEW = 10;

for (const table of document.querySelectorAll("table[data-name]")) {
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  table.classList.toggle("wide", titles.length > 4 && table.rows.length <= FEW); // its rows become lists on a narrow screen
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, k) => (cell.dataset.title = titles[k]));
  const rest = [...table.tBodies[0].rows].slice(FEW);
  if (rest.length > FEW / 4) {
    const more = document.createElement("button");
    const show = (shown) => {
      for (const row of rest) row.hidden = !shown;
      more.textContent = shown ? `Show the first ${FEW}` : `Show all ${FEW + rest.length}`;
      more.onclick = () => show(!shown);
    };
    more.type = "button";
    show(false);
    table.parentElement.after(more);
  }
  const cells = (row) => [...row.cells].map((cell) => cell.dataset.v ?? cell.textContent.trim());
  offer(table.parentElement, table.dataset.name, () => [...table.rows].map(cells));
}
// On a narrow screen a section opens on demand, but for the first ones.
const sections = [...document.querySelectorAll(".section")];
const unfold = (id) => sections.filter((one) => one.parentElement.id === id).forEach((one) => (one.open = true));
if (matchMedia("(max-width: 36rem)").matches) sections.slice(3).forEach((one) => (one.open = false));
unfold(location.hash.slice(1));
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => unfold(link.hash.slice(1)));

draw();
document.addEventListener("toggle", () => draw(), true);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
matchMedia("print").addEventListener("change", ({ matches }) => {
  if (matches) sections.forEach((one) => (one.open = true));
  draw(true);
});
