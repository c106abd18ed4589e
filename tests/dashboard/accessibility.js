// What an automatic check can find: names, labels, structure, contrast. Returns complaints.
() => {
  const found = [];
  const visible = (element) => {
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    return box.width > 0 && box.height > 0 && style.visibility !== "hidden" && !element.closest(".sr-only");
  };
  const where = (element) => `${element.tagName.toLowerCase()}${element.className?.baseVal ?? (element.className ? "." + element.className : "")} “${element.textContent.trim().slice(0, 40)}”`;
  const name = (element) => {
    const labelled = element.getAttribute("aria-labelledby");
    if (labelled) return document.getElementById(labelled)?.textContent.trim();
    const label = element.getAttribute("aria-label") ?? element.title;
    if (label) return label.trim();
    if (element.labels?.length) return element.labels[0].textContent.trim();
    return element.textContent.trim() || element.querySelector("img[alt]")?.alt;
  };
  for (const element of document.querySelectorAll("a[href], button, input, select, textarea, summary, [role=img], dialog, [tabindex='0']")) {
    if (visible(element) && !name(element)) found.push(`no name: ${where(element)}`);
    if (element.tagName === "A" && !element.hasAttribute("href")) found.push(`a link that goes nowhere: ${where(element)}`);
  }
  for (const image of document.querySelectorAll("img:not([alt])")) found.push(`no alt: ${image.src}`);
  for (const cell of document.querySelectorAll("th:not([scope])")) found.push(`no scope: ${where(cell)}`);
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((id, place) => ids.indexOf(id) !== place))) found.push(`id twice: ${id}`);
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(visible).map((each) => Number(each.tagName[1]));
  if (levels.filter((each) => each === 1).length !== 1) found.push(`h1: ${levels}`);
  levels.forEach((each, place) => { if (place && each > levels[place - 1] + 1) found.push(`a heading level is left out: ${levels}`); });
  if (!document.documentElement.lang) found.push("no language");
  if (!document.title.includes("FlowFabric")) found.push(`title: ${document.title}`);
  for (const landmark of ["main", "nav", "header"]) if (document.querySelectorAll(landmark).length !== 1) found.push(`landmark ${landmark}`);

  const colour = (text) => {
    const numbers = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    return text.startsWith("color(srgb") ? [...numbers.slice(0, 3).map((each) => each * 255), numbers[3] ?? 1] : [numbers[0], numbers[1], numbers[2], numbers[3] ?? 1];
  };
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255).map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)).reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const value = colour(getComputedStyle(each).backgroundColor);
      if (value[3] > 0.98) return value;
    }
    return [255, 255, 255, 1];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || seen.has(element) || !visible(element) || element.closest("svg, noscript, script, :disabled, .skip")) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const [a, b] = [light(colour(style.color)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 18.66 || (parseFloat(style.fontSize) >= 14 * 1.333 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${where(element)}`);
  }
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) found.push(`${wide} px wider than the screen`);
  return found;
}
