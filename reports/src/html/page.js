"use strict";
(() => {
  const all = (query, of = document) => [...of.querySelectorAll(query)];
  const make = (tag, set = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), set);
    made.append(...inside);
    return made;
  };
  const root = document.documentElement;
  root.classList.add("js");

  // Light or dark: as the system says, until a reader says otherwise.
  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const told = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.onclick = () => { root.dataset.theme = dark() ? "light" : "dark"; told(); };
  told();

  // A figure: switches of its series, and a wider picture.
  for (const figure of all("figure")) {
    for (const key of all(".keys li", figure)) {
      const button = make("button", { type: "button" }, ...key.childNodes);
      button.setAttribute("aria-pressed", "true");
      button.onclick = () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        for (const part of all(`.picture [data-s="${key.dataset.s}"]`, figure)) part.classList.toggle("off", !shown);
      };
      key.append(button);
    }
    const scroll = figure.querySelector(".scroll");
    if (!scroll || !scroll.querySelector("svg")) continue;
    let zoom = 1;
    const by = (factor) => () => {
      zoom = Math.min(8, Math.max(1, zoom * factor));
      const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / scroll.scrollWidth;
      scroll.style.setProperty("--zoom", zoom);
      scroll.scrollLeft = middle * scroll.scrollWidth - scroll.clientWidth / 2;
    };
    const tool = (text, label, factor) => {
      const button = make("button", { type: "button", textContent: text, onclick: by(factor) });
      button.setAttribute("aria-label", label);
      return button;
    };
    scroll.before(make("div", { className: "tools" }, tool("\u2212", "Zoom out", 0.5), tool("+", "Zoom in", 2)));
  }

  // Values under the pointer: all that stand at the nearest place.
  const tip = make("div", { id: "tip", hidden: true });
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  for (const picture of all(".picture, .machine")) {
    const marks = all("[data-x]", picture);
    picture.onpointerleave = () => { tip.hidden = true; };
    picture.onpointermove = (event) => {
      const direct = event.target.closest("[data-t]");
      const box = picture.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * picture.viewBox.baseVal.width;
      const shown = marks.filter((mark) => !mark.closest(".off"));
      const far = (mark) => Math.abs(Number(mark.dataset.x) - x);
      const near = Math.min(...shown.map(far));
      const alike = direct && !direct.matches(".mark") ? [direct] : near > 24 ? [] : shown.filter((mark) => far(mark) < near + 0.3);
      tip.textContent = [...new Set(alike.map((mark) => mark.dataset.t))].slice(0, 12).join("\n");
      tip.hidden = !tip.textContent;
      const { offsetWidth: wide, offsetHeight: high } = tip;
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - wide - 8))}px`;
      tip.style.top = `${event.clientY + 18 + high > innerHeight ? event.clientY - high - 12 : event.clientY + 18}px`;
    };
  }

  // A machine, a time at a time: how busy each link is then.
  const steps = 5;
  for (const machine of all(".machine")) {
    const times = machine.dataset.times.split("|");
    const parts = all("[data-u]", machine).map((part) => [part, part.dataset.u.split(" ").map(Number)]);
    const show = (time) => {
      for (const [part, busy] of parts) {
        const percent = busy[time];
        if (part.matches(".wire")) {
          part.setAttribute("class", `wire h${percent > 0 ? Math.ceil(percent * steps / 100) : 0}`);
          part.dataset.t = `${part.dataset.n}: ${percent}% of its rate used, ${times[time]}`;
        } else {
          part.textContent = `${percent}%`;
        }
      }
    };
    show(0);
    // Where the picture is wider than the screen, what is busiest comes first.
    const wires = parts.filter(([part]) => part.matches(".wire"));
    const [busiest] = wires.sort((a, b) => b[1][0] - a[1][0])[0] || [];
    if (busiest) {
      const { parentElement: scroll, viewBox } = machine;
      const box = busiest.getBBox();
      scroll.scrollLeft = (box.x + box.width / 2) / viewBox.baseVal.width * scroll.scrollWidth - scroll.clientWidth / 2;
    }
    if (times.length > 1) {
      const slider = make("input", { type: "range", min: 0, max: times.length - 1, value: 0 });
      const when = make("output", { className: "step" });
      slider.setAttribute("aria-label", "Time of the call");
      const move = () => {
        show(Number(slider.value));
        when.textContent = times[slider.value];
        slider.setAttribute("aria-valuetext", times[slider.value]);
      };
      const go = (by) => () => { slider.value = Number(slider.value) + by; move(); };
      slider.oninput = move;
      machine.parentElement.before(make("div", { className: "slide" },
        make("button", { type: "button", textContent: "Back", onclick: go(-1) }), slider,
        make("button", { type: "button", textContent: "Next", onclick: go(1) })), when);
      move();
      addEventListener("beforeprint", () => show(0));
      addEventListener("afterprint", move);
    }
  }

  // A schedule, a step at a time.
  for (const player of all(".player")) {
    const frames = all(".frame", player);
    const slider = make("input", { type: "range", min: 1, max: frames.length, value: 1 });
    slider.setAttribute("aria-label", "Step of the schedule");
    const show = () => frames.forEach((frame, index) => frame.classList.toggle("off", index !== Number(slider.value) - 1));
    const go = (by) => () => { slider.value = Number(slider.value) + by; show(); };
    slider.oninput = show;
    player.before(make("div", { className: "slide" },
      make("button", { type: "button", textContent: "Back", onclick: go(-1) }), slider,
      make("button", { type: "button", textContent: "Next", onclick: go(1) })));
    show();
  }

  // A table: sorted by a column, and a page of rows at a time; all of them on paper.
  let paper = false;
  const begin = (table) => {
    const heads = all("thead th", table);
    const size = 200;
    const body = table.tBodies[0];
    let rows = [...body.rows];
    let page = 0;
    const pages = Math.ceil(rows.length / size);
    const where = make("span");
    const show = () => {
      body.replaceChildren(...(paper ? rows : rows.slice(page * size, (page + 1) * size)));
      where.textContent = `Rows ${page * size + 1} to ${Math.min(rows.length, (page + 1) * size)} of ${rows.length}`;
    };
    const value = (row, column) => {
      const cell = row.cells[column];
      const text = cell.textContent.trim();
      if (text === "-" || text === "") return null;
      // A range of sizes goes by its first.
      const [, count, unit] = text.match(/^([\d.]+) ?([KMGTPE]i)?B(?:\.\..*)?$/) ?? [];
      const number = count ? count * 1024 ** " KMGTPE".indexOf(unit?.[0] ?? " ") : Number(text);
      return Number.isNaN(number) ? text : number;
    };
    const before = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      button.onclick = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = rows.map((row) => [value(row, column), row]);
        keyed.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : down ? before(b, a) : before(a, b));
        rows = keyed.map(([, row]) => row);
        page = 0;
        show();
      };
      head.append(button);
    });
    if (pages > 1) {
      const turn = (by) => () => { page = Math.min(pages - 1, Math.max(0, page + by)); show(); };
      table.closest(".scroll").before(make("div", { className: "tools" }, where,
        make("button", { type: "button", textContent: "Back", onclick: turn(-1) }),
        make("button", { type: "button", textContent: "Next", onclick: turn(1) })));
      show();
      addEventListener("beforeprint", show);
      addEventListener("afterprint", show);
    }
  };
  // Paper folds nothing away.
  addEventListener("beforeprint", () => {
    paper = true;
    for (const fold of all("details")) fold.open = true;
  });
  addEventListener("afterprint", () => { paper = false; });
  // What is folded away waits: a page of many rows opens at once.
  for (const table of all("table")) {
    const fold = table.closest("details");
    if (fold && !fold.open) fold.addEventListener("toggle", () => begin(table), { once: true });
    else begin(table);
  }
})();
