// What may be wrong on a page that is drawn: each function returns what it found.

function overlappingTexts() {
  const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !parent.checkVisibility() || parent.closest(".scroll")) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects()) texts.push([box, walker.currentNode.textContent.trim()]);
  }
  for (const plot of document.querySelectorAll(".plot")) texts.push([plot.getBoundingClientRect(), plot.id]);
  texts.sort((a, b) => a[0].top - b[0].top);
  const found = [];
  for (let i = 0; i < texts.length; i++) {
    for (let k = i + 1; k < texts.length && texts[k][0].top < texts[i][0].bottom - 4; k++) {
      const [a, b] = [texts[i][0], texts[k][0]];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1) found.push([texts[i][1], texts[k][1]]);
    }
  }
  return found.slice(0, 5);
}

function blankPlots() {
  const isBlank = (c) => c.width < 200 || !c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some((v) => v);
  const canvases = [...document.querySelectorAll(".plot canvas")].filter(isBlank);
  return [...canvases, ...document.querySelectorAll(".plot:empty")].map((one) => one.closest("section").id);
}

// Names of domains that are broken within a label: lines end at dots.
function brokenNames() {
  const nodes = [...document.querySelectorAll("#domains td.name")].flatMap((cell) => [...cell.childNodes]);
  return nodes.filter((node) => {
    if (node.nodeType !== Node.TEXT_NODE) return false;
    const range = document.createRange();
    range.selectNodeContents(node);
    return range.getClientRects().length > 1;
  }).map((node) => node.textContent);
}

function cutTables() {
  const cut = [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth);
  return cut.map((box) => `${box.querySelector("table").dataset.name}: ${box.scrollWidth} of ${box.clientWidth}`);
}

function cutPage() {
  const { scrollWidth, clientWidth } = document.documentElement;
  return scrollWidth > clientWidth ? [`${scrollWidth} of ${clientWidth}`] : [];
}

const frames = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const openSections = () => [...document.querySelectorAll(".section[open]")].map((one) => one.parentElement.id);

// What a reader sees: the page as it opens, after a click at a place of it, with all sections open, with all details
// open; and the table that a button offers.
async function look() {
  const found = { requests: performance.getEntriesByType("resource").length };
  found.opened = openSections();
  found.height = document.documentElement.scrollHeight;
  document.querySelector('nav a[href="#histograms"]').click();
  await frames();
  found.afterClick = openSections();
  document.querySelectorAll(".section").forEach((one) => (one.open = true));
  // Charts are drawn when the browser says that their sections are open.
  while (![...document.querySelectorAll(".plot")].every((plot) => plot.querySelector("canvas"))) await frames();
  found.plots = document.querySelectorAll(".plot canvas").length;
  found.wrong = [...blankPlots(), ...cutPage(), ...overlappingTexts(), ...brokenNames()];
  found.paper = getComputedStyle(document.body).backgroundColor;
  document.querySelectorAll("details").forEach((one) => (one.open = true));
  await frames();
  found.wrong.push(...cutTables(), ...cutPage());
  let csv;
  URL.createObjectURL = (blob) => ((csv = blob), "#");
  document.querySelector('button[title="subreddits.csv"]').click();
  found.csv = await csv.text();
  return found;
}
