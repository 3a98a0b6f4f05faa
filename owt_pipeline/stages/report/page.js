"use strict";

// Draws the charts in the colours of the style sheet, offers each table as CSV, and searches the domains.

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const percent = (value) => (100 * value).toFixed(1).replace(/\.0$/, "") + " %";
const specs = read("charts"), drawn = {};

// Dotted lines at places between or on the columns, each named at its top.
const marks = (spec) => ({
  id: "marks",
  afterDatasetsDraw({ ctx, chartArea: area, scales: { x } }) {
    const step = spec.labels.length > 1 ? x.getPixelForValue(1) - x.getPixelForValue(0) : area.width;
    ctx.save();
    Object.assign(ctx, { strokeStyle: colour("ink"), fillStyle: colour("faint"), font: "11px system-ui, sans-serif" });
    ctx.setLineDash([2, 3]);
    let free = -Infinity; // up to where names are drawn: one that would cover another is left out
    for (const mark of spec.marks || []) {
      const at = x.getPixelForValue(0) + mark.at * step;
      ctx.beginPath();
      ctx.moveTo(at, area.top);
      ctx.lineTo(at, area.bottom);
      ctx.stroke();
      ctx.textAlign = at > area.left + 0.85 * area.width ? "right" : at < area.left + 0.15 * area.width ? "left" : "center";
      const width = ctx.measureText(mark.name).width;
      const left = at - { left: 0, center: width / 2, right: width }[ctx.textAlign];
      if (left < free) continue;
      ctx.fillText(mark.name, at, area.top - 4);
      free = left + width + 4;
    }
    ctx.restore();
  },
});

function configuration(spec) {
  const ink = colour("ink"), faint = colour("faint"), line = colour("line");
  const shown = (value) => (spec.percent ? percent(value) : value.toLocaleString("en"));
  const axis = (title, more) => ({
    title: { display: !!title, text: title, color: faint },
    border: { color: line },
    ...more,
    ticks: { color: faint, precision: spec.kind === "line" ? undefined : 0, ...more.ticks },
  });
  const curved = spec.series.some((series) => series.right);
  const datasets = spec.series.map((series, place) => ({
    label: series.name,
    data: series.values.map((value) => (spec.kind === "line" ? value : value || null)), // minBarLength is for no zero
    type: series.right || spec.kind === "line" ? "line" : "bar",
    yAxisID: series.right ? "right" : "y",
    order: series.right ? 0 : 1,
    backgroundColor: colour("series-" + (1 + (place % 5))),
    borderColor: colour("series-" + (1 + (place % 5))),
    borderWidth: series.right || spec.kind === "line" ? 2 : 0,
    pointRadius: spec.labels.length > 1 ? 0 : 3,
    spanGaps: true,
    categoryPercentage: 0.95,
    barPercentage: 0.95,
    minBarLength: 2, // three rows are seen next to a million
  }));
  return {
    type: "bar",
    data: { labels: spec.labels, datasets },
    plugins: [marks(spec)],
    options: {
      animation: false,
      responsive: true,
      maintainAspectRatio: false,
      layout: { padding: { top: 4 } },
      interaction: { mode: "index", intersect: false },
      scales: {
        x: axis(spec.x, { stacked: !!spec.stacked, grid: { display: false }, ticks: { autoSkip: true, maxRotation: spec.small ? 0 : 45, font: { size: 11 } } }),
        y: axis(spec.y, {
          stacked: !!spec.stacked,
          beginAtZero: !spec.floating,
          grid: { color: line },
          ticks: spec.percent ? { callback: percent, precision: undefined } : { callback: (value) => value.toLocaleString("en") },
        }),
        ...(curved && { right: axis("probability", { position: "right", min: 0, max: 1, grid: { display: false }, ticks: { precision: undefined } }) }),
      },
      plugins: {
        legend: {
          align: "start",
          title: { display: !!(spec.marks || []).length, text: " ", font: { size: 6 } }, // room for the marks' names
          labels: { color: ink, boxWidth: 12, boxHeight: 12 },
        },
        tooltip: { callbacks: { label: (item) => ` ${item.dataset.label}: ${item.dataset.yAxisID === "right" ? item.raw.toFixed(3) : shown(item.raw)}` } },
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
  document.querySelector("#command span").textContent = run;
}

const FEW = 20;

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
for (const [name, spec] of Object.entries(specs)) {
  const place = document.getElementById("plot-" + name);
  const rows = () => [[spec.x || "value", ...spec.series.map((s) => s.name)], ...spec.labels.map((label, k) => [label, ...spec.series.map((s) => s.values[k])])];
  if (place && !spec.small) offer(place, name, rows);
}

const search = document.getElementById("search");
if (search) {
  const all = read("all-domains"), body = document.querySelector("#found tbody"), most = 50;
  const find = () => {
    const wanted = search.value.trim().toLowerCase();
    const matches = wanted ? all.filter(([name]) => name.includes(wanted)) : [];
    body.replaceChildren(...matches.slice(0, most).map(([name, documents, urls]) => {
      const row = document.createElement("tr");
      for (const value of [name, documents, urls]) {
        const cell = row.insertCell();
        const shown = typeof value === "number" ? value.toLocaleString("en") : value ?? "–";
        cell.append(...shown.split(/(?<=\.)/).flatMap((part) => [part, document.createElement("wbr")]));
        cell.className = value === name ? "name" : "number";
        if (value !== null) cell.dataset.v = value;
      }
      return row;
    }));
    document.getElementById("matches").textContent = wanted ? `${matches.length} match${matches.length > most ? `, ${most} shown` : ""}` : "";
    document.getElementById("found").hidden = !matches.length;
  };
  search.addEventListener("input", find);
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
