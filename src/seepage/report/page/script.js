"use strict";

// Charts: what a mark says, on hover and by arrow keys, and marks of one person lit together.
(() => {
  const tip = document.getElementById("tip");

  const show = (mark) => {
    for (const lit of document.querySelectorAll(".lit")) lit.classList.remove("lit");
    tip.hidden = !mark;
    if (!mark) return;
    const key = mark.dataset.key;
    const same = key ? document.querySelectorAll(`[data-key="${CSS.escape(key)}"]`) : [mark];
    for (const other of same) other.classList.add("lit");
    tip.textContent = mark.dataset.tip;
    const box = mark.getBoundingClientRect();
    const left = Math.min(box.left + box.width / 2, innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
  };

  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest("[data-tip]");
    if (mark || !tip.hidden) show(mark);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show(null);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const chart = event.target.closest("svg[tabindex]");
    if (!step || !chart) return;
    event.preventDefault();
    const marks = [...chart.querySelectorAll("[data-tip]")];
    const at = marks.findIndex((mark) => mark.dataset.tip === tip.textContent && !tip.hidden);
    if (marks.length) show(marks[(at + step + marks.length) % marks.length]);
  });
  document.addEventListener("focusout", () => show(null));
})();

// Paper cannot be unfolded.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});

// The table: filtered and sorted from the address, so that what one sees can be passed on.
(() => {
  const source = document.getElementById("data");
  if (!source) return;
  const { numbers, words, rows } = JSON.parse(source.textContent);
  const table = document.getElementById("results");
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const input = document.getElementById("filter");
  const more = document.getElementById("more");
  const PAGE = 200;
  const size = { "exact": Infinity, "inf": Infinity, "-inf": -Infinity };
  const values = words.map((word) => size[word] ?? Number.parseFloat(word));
  const texts = words.map((word) => word.toLowerCase());
  const searched = rows.map((row) => row.map((cell) => texts[cell]).join("\n"));
  let found = rows;
  let shown = 0;

  const cell = (row, index) => {
    const made = document.createElement(index ? "td" : "th");
    if (!index) made.scope = "row";
    if (numbers[index]) made.className = "number";
    made.textContent = words[row[index]];
    return made;
  };
  const append = () => {
    const part = document.createDocumentFragment();
    for (const row of found.slice(shown, shown + PAGE)) {
      const line = document.createElement("tr");
      line.append(...row.map((_, index) => cell(row, index)));
      part.append(line);
    }
    body.append(part);
    shown = Math.min(shown + PAGE, found.length);
    more.hidden = shown === found.length;
    document.getElementById("count").textContent = `${shown} of ${found.length} rows shown`;
  };

  const compare = (column, sign) => (a, b) => {
    if (!numbers[column]) return sign * texts[a[column]].localeCompare(texts[b[column]]);
    const [x, y] = [values[a[column]], values[b[column]]];
    // What has no number comes last, whichever way one sorts.
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return x === y ? 0 : sign * (x < y ? -1 : 1);
  };
  const asked = () => new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  const apply = () => {
    const query = asked();
    const filter = query.get("filter") ?? "";
    const sort = query.get("sort") ?? "";
    const needles = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const column = headings.findIndex((heading) => heading.textContent === sort.replace(/^-/, ""));
    const sign = sort.startsWith("-") ? -1 : 1;
    found = rows.filter((_, i) => needles.every((needle) => searched[i].includes(needle)));
    if (column >= 0) found.sort(compare(column, sign));
    headings.forEach((heading, index) => {
      if (index === column) heading.ariaSort = sign > 0 ? "ascending" : "descending";
      else heading.removeAttribute("aria-sort");
    });
    if (input.value !== filter) input.value = filter;
    body.replaceChildren();
    shown = 0;
    append();
  };
  const ask = (changes) => {
    const query = { filter: "", sort: "", ...Object.fromEntries(asked()), ...changes };
    const parts = ["filter", "sort"].filter((name) => query[name]);
    const hash = parts.map((name) => `${name}=${encodeURIComponent(query[name])}`).join("&");
    history.replaceState(null, "", `#${hash || "records"}`);
    apply();
  };

  input.addEventListener("input", () => ask({ filter: input.value }));
  more.addEventListener("click", append);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  headings.forEach((heading, index) => {
    heading.firstElementChild.addEventListener("click", () => {
      const name = heading.textContent;
      const first = numbers[index] ? `-${name}` : name;
      const second = numbers[index] ? name : `-${name}`;
      ask({ sort: asked().get("sort") === first ? second : first });
    });
  });
  const follow = () => {
    apply();
    const query = asked();
    if (query.has("filter") || query.has("sort")) table.closest("section").scrollIntoView();
  };
  addEventListener("hashchange", follow);
  follow();
})();
