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
