// Tries every page in a frame as a reader would, and writes what is wrong.
"use strict";
const wrong = [];
let tried = 0;

function luminance([r, g, b]) {
  const linear = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}
// WCAG 2.2, 1.4.3.
function contrast(a, b) {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (light + 0.05) / (dark + 0.05);
}
const channels = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);

// The colour behind an element, with what lies over it mixed in.
function behind(element, view) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const [r, g, b, a = 1] = channels(view.getComputedStyle(at).backgroundColor);
    if (a > 0) layers.push([r, g, b, a]);
    if (a === 1) break;
  }
  return layers.reverse().reduce((under, [r, g, b, a]) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a)), [255, 255, 255]);
}

// Words of a map stand on a tint of the colour of their box.
function tinted(text, view, paper) {
  const cell = text.parentElement.querySelector(":scope > rect.cell");
  if (!cell) return paper;
  const style = view.getComputedStyle(cell);
  const share = Number(style.fillOpacity);
  return channels(style.fill).slice(0, 3).map((c, i) => c * share + paper[i] * (1 - share));
}

function readable(where, doc, view) {
  for (const element of doc.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.matches("script, style, title, desc") || !element.getClientRects().length) continue;
    const style = view.getComputedStyle(element);
    const svg = element.closest("svg");
    const ink = channels(svg ? style.fill : style.color).slice(0, 3);
    const html = svg ? svg.parentElement : element;
    const paper = svg ? tinted(element, view, behind(html, view)) : behind(html, view);
    const is = contrast(ink, paper);
    if (is < 4.5) wrong.push(`${where}: contrast ${is.toFixed(2)} of "${element.textContent.slice(0, 30)}"`);
  }
}

// The first of a kind that is shown: a phone has pictures of its own.
const shown = (of, query) => [...of.querySelectorAll(query)].find((one) => one.getClientRects().length);

function judge(frame) {
  const [doc, view] = [frame.contentDocument, frame.contentWindow];
  const where = `at ${frame.width} px`;
  const check = (holds, what) => { if (!holds) wrong.push(`${where}: ${what}`); };

  const requests = view.performance.getEntriesByType("resource").map((entry) => entry.name);
  check(requests.length === 0, `requests ${requests}`);
  check(doc.documentElement.classList.contains("js"), "the script did not run");
  check(doc.documentElement.scrollWidth <= frame.clientWidth, `wider than the screen: ${doc.documentElement.scrollWidth}`);

  const ids = [...doc.querySelectorAll("[id]")].map((element) => element.id);
  check(new Set(ids).size === ids.length, "an id is there twice");
  for (const element of doc.querySelectorAll("[aria-labelledby]")) {
    for (const id of element.getAttribute("aria-labelledby").split(" ")) check(doc.getElementById(id), `no label ${id}`);
  }
  check(doc.querySelectorAll("main, header, footer").length === 3, "landmarks");
  for (const table of doc.querySelectorAll("table")) check(table.caption, "a table without caption");
  for (const button of doc.querySelectorAll("button")) {
    check(button.textContent.trim() || button.ariaLabel, "a button without a name");
  }
  for (const picture of doc.querySelectorAll("svg.picture")) {
    const box = picture.getBoundingClientRect();
    for (const text of picture.querySelectorAll("text")) {
      const is = text.getBoundingClientRect();
      const inside = is.left >= box.left - 2 && is.right <= box.right + 2 && is.bottom <= box.bottom + 2;
      check(inside, `words leave their picture: "${text.textContent}"`);
    }
    const ticks = [...picture.querySelectorAll("text.tick[text-anchor=middle]")].map((text) => text.getBoundingClientRect());
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom && a.width && b.width;
    check(!ticks.some((a, i) => ticks.slice(i + 1).some((b) => meet(a, b))), "words beside an axis overlap");
  }

  const button = doc.getElementById("theme");
  for (let theme = 0; theme < 2; theme += 1) {
    readable(`${where}, ${doc.documentElement.dataset.theme ?? "first"} theme`, doc, view);
    const before = view.getComputedStyle(doc.documentElement).backgroundColor;
    button.click();
    check(view.getComputedStyle(doc.documentElement).backgroundColor !== before, "the theme does not change");
  }

  const key = doc.querySelector("figure .keys button");
  if (key) {
    const part = doc.querySelector("figure .keys").closest("figure").querySelector(`.picture [data-s="${key.parentElement.dataset.s}"]`);
    key.click();
    check(part && view.getComputedStyle(part).display === "none", "a switch hides nothing");
    key.click();
    check(part && view.getComputedStyle(part).display !== "none", "a switch shows nothing");
  }
  const zoom = doc.querySelector("figure .tools button[aria-label='Zoom in']");
  if (zoom) {
    const picture = shown(zoom.closest("figure"), ".scroll svg");
    const before = picture.getBoundingClientRect().width;
    zoom.click();
    const grown = picture.getBoundingClientRect().width > before * 1.2;
    check(grown, "zoom does not enlarge");
  }
  const mark = shown(doc, ".picture [data-t]");
  const drawn = [...doc.querySelectorAll("figure")].filter((figure) => figure.querySelector(".picture"));
  check(drawn.every((figure) => [...figure.querySelectorAll(".picture")].filter((one) => one.getClientRects().length).length === 1),
    "a figure does not show one picture");
  if (mark) {
    const box = mark.getBoundingClientRect();
    mark.dispatchEvent(new view.PointerEvent("pointermove", { bubbles: true, clientX: box.left + 1, clientY: box.top + 1 }));
    const tip = doc.getElementById("tip");
    check(!tip.hidden && tip.textContent, "no value under the pointer");
  }
  for (const fold of doc.querySelectorAll("details")) {
    fold.open = true;
    fold.dispatchEvent(new view.Event("toggle"));
  }
  for (const table of doc.querySelectorAll("table")) {
    const column = [...table.querySelectorAll("thead th")].findIndex((head) => head.classList.contains("n"));
    if (column < 0 || table.tBodies[0].rows.length < 2) continue;
    const head = table.querySelectorAll("thead th")[column];
    const cell = (row) => row.cells[column];
    const sizes = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
    const value = (text) => Number(text.split(" ")[0]) * (text.includes(" ") ? sizes[text.split(" ")[1]] ?? NaN : 1);
    const values = () => [...table.tBodies[0].rows].map((row) => value(cell(row).textContent));
    for (const down of [false, true]) {
      head.querySelector("button").click();
      const shown = values().filter((value) => !Number.isNaN(value));
      const sorted = shown.every((value, i) => i === 0 || (down ? shown[i - 1] >= value : shown[i - 1] <= value));
      check(sorted, `"${head.textContent}" does not sort`);
      check(head.getAttribute("aria-sort") === (down ? "descending" : "ascending"), "aria-sort");
    }
  }
  const machine = doc.querySelector(".machine");
  if (machine) {
    const wires = [...machine.querySelectorAll(".wire")];
    check(wires.some((wire) => wire.dataset.t), "a link does not say how busy it is");
    const times = machine.dataset.times.split("|");
    const time = machine.closest("figure").querySelector(".slide input");
    check(Boolean(time) === times.length > 1, "the times of the machine have no slider");
    for (const at of time ? times.keys() : []) {
      time.value = at;
      time.dispatchEvent(new view.Event("input"));
      const said = wires.every((wire) => wire.dataset.t.endsWith(`${wire.dataset.u.split(" ")[at]}% of its rate used, ${times[at]}`));
      check(said, `the machine does not follow its slider at ${times[at]}`);
      check(machine.closest("figure").querySelector("output").textContent === times[at], "the slider does not say its time");
    }
  }
  const slider = doc.querySelector(".slide:has(+ .player) input");
  if (slider) {
    const shown = () => [...doc.querySelectorAll(".player .frame")].map((frame) => view.getComputedStyle(frame).display !== "none");
    check(shown().indexOf(true) === 0 && shown().filter(Boolean).length === 1, "not one step is shown");
    slider.value = slider.max;
    slider.dispatchEvent(new view.Event("input"));
    check(shown().lastIndexOf(true) === Number(slider.max) - 1, "the slider does not move");
  }
  tried += 1;
}

// The rules of axe-core, in both themes, where the harness brings them.
async function rules(frame, source) {
  const [doc, view] = [frame.contentDocument, frame.contentWindow];
  const script = doc.createElement("script");
  script.textContent = source;
  doc.head.append(script);
  for (const theme of ["light", "dark"]) {
    doc.documentElement.dataset.theme = theme;
    const { violations } = await view.axe.run(doc);
    for (const { id, nodes } of violations) {
      wrong.push(`at ${frame.width} px, ${theme} theme: axe ${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
    }
  }
}

addEventListener("load", async () => {
  const axe = document.getElementById("axe")?.textContent;
  for (const frame of document.querySelectorAll("iframe")) {
    try {
      judge(frame);
      if (axe) await rules(frame, axe);
    } catch (error) {
      wrong.push(`${error}`);
    }
  }
  document.getElementById("found").textContent = [...new Set(wrong), `tried ${tried} pages`].join("\n");
});
