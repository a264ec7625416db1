// What a reader would stumble over on this page, by kind: for tests/rig/browser.py.
(() => {
  const shown = (element) => element.checkVisibility({
    opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true,
  }) && element.getClientRects().length > 0;
  const brief = (element) => element.outerHTML.slice(0, 160);
  const numbers = (colour) => {
    const parts = colour.match(/[\d.]+/g).map(Number);
    const scale = colour.startsWith("color(srgb") ? 255 : 1;
    return [parts[0] * scale, parts[1] * scale, parts[2] * scale, parts.length > 3 ? parts[3] : 1];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const background = (element) => {
    const layers = [];
    let picture = false;
    for (let each = element; each; each = each.parentElement) {
      const style = getComputedStyle(each);
      layers.push(numbers(style.backgroundColor));
      picture ||= style.backgroundImage !== "none";
      if (layers.at(-1)[3] === 1) break;
    }
    const scheme = getComputedStyle(document.documentElement).colorScheme;
    const paper = scheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches;
    const start = paper ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return [layers.reverse().reduce((below, top) => over(top, below), start), picture];
  };
  const opacity = (element) => {
    let all = 1;
    for (let each = element; each; each = each.parentElement) all *= getComputedStyle(each).opacity;
    return all;
  };

  const pale = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || !shown(element) || element.closest("[aria-hidden=true], script, style")) continue;
    const style = getComputedStyle(element);
    const [below, picture] = background(element);
    if (picture) continue;
    const ink = numbers(element instanceof SVGElement ? style.fill : style.color);
    ink[3] *= opacity(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = contrast(over(ink, below), below);
    if (ratio < (large ? 3 : 4.5) - 0.01) pale.push(`${ratio.toFixed(2)}: ${text.data.trim().slice(0, 60)} in ${brief(element)}`);
  }

  const wordless = [...document.querySelectorAll("img")]
    .filter((image) => !image.alt && image.getAttribute("role") !== "presentation").map(brief);
  for (const drawing of document.querySelectorAll("svg, canvas")) {
    const named = drawing.closest("[role=img], a, button, label, nav");
    if (!shown(drawing) || drawing.closest("[aria-hidden=true]")) continue;
    if (!named || !(named.ariaLabel || named.title || named.textContent.trim() || named.getAttribute("aria-labelledby")))
      wordless.push(brief(drawing));
  }
  const broken = [...document.images].filter((image) => image.complete && !image.naturalWidth).map(brief);

  const wide = [];
  const width = document.documentElement.clientWidth;
  if (document.scrollingElement.scrollWidth > width)
    for (const element of document.body.querySelectorAll("*"))
      if (shown(element) && element.getBoundingClientRect().right > width + 1 && !element.querySelector("*"))
        wide.push(brief(element));
  if (document.scrollingElement.scrollWidth > width && !wide.length) wide.push(`${document.scrollingElement.scrollWidth} > ${width}`);

  const twice = [...document.querySelectorAll("[id]")].map((each) => each.id)
    .filter((name, place, all) => all.indexOf(name) !== place);
  const plain = [];
  if (!document.documentElement.lang) plain.push("no language");
  if (!document.title) plain.push("no title");
  if (document.querySelectorAll("h1").length !== 1) plain.push(`${document.querySelectorAll("h1").length} main headings`);
  return {pale, wordless, broken, wide: wide.slice(0, 5), twice, plain};
})()
