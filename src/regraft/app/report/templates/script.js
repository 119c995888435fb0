(() => {
  "use strict";
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  // Tooltips. Without this script the same words are native titles.
  const tip = document.getElementById("tip");
  const words = new WeakMap();
  const adopt = (element, text) => { words.set(element, text); element.classList.add("tipped"); };
  all("[title]").forEach((element) => {
    adopt(element, element.getAttribute("title"));
    element.removeAttribute("title");
  });
  all("svg title").forEach((title) => {
    const mark = title.parentNode;
    adopt(mark, title.textContent);
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", title.textContent);
    title.remove();
  });
  let shown = null;
  const hide = () => {
    if (shown) shown.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  };
  const show = (element) => {
    hide();
    shown = element;
    tip.textContent = words.get(element);
    tip.hidden = false;
    element.setAttribute("aria-describedby", "tip");
    const at = element.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = Math.min(Math.max(at.left + at.width / 2 - size.width / 2, 12), width - size.width - 12);
    const above = at.top - size.height - 9;
    tip.style.left = `${left}px`;
    tip.style.top = `${above >= 8 ? above : at.bottom + 9}px`;
  };
  const carrier = (event) => (event.target instanceof Element ? event.target.closest(".tipped") : null);
  for (const kind of ["pointerover", "focusin", "click"]) {
    document.addEventListener(kind, (event) => {
      const element = carrier(event);
      if (element) show(element);
      else if (kind !== "focusin") hide();
    });
  }
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // One tab stop for each chart or matrix; the arrow keys walk inside it.
  const walk = (items, columns) => {
    items.forEach((item, index) => {
      item.setAttribute("tabindex", index ? "-1" : "0");
      item.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
        const next = step && items[index + step];
        if (!next) return;
        event.preventDefault();
        item.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    });
  };
  all("svg[data-marks]").forEach((chart) => walk(all(".mark", chart), 1));
  all("table[data-grid]").forEach((table) => {
    const cells = all("tbody td.right, tbody td.wrong", table);
    walk(cells, Math.round(Math.sqrt(cells.length)));
  });
  all("[data-stop]").forEach((element) => element.setAttribute("tabindex", "0"));

  // Sortable tables: numbers start with the largest, words with the first.
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.hasAttribute("data-value") ? cell.getAttribute("data-value") : cell.textContent.trim();
  };
  all("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    const heads = all("thead th", table);
    const order = Array.from(body.rows);
    heads.forEach((head, column) => {
      const numeric = head.classList.contains("n");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const rising = now ? now === "descending" : !numeric;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", rising ? "ascending" : "descending");
        const sorted = order.slice().sort((a, b) => {
          const [x, y] = [key(a, column), key(b, column)];
          if (!numeric) return (rising ? 1 : -1) * x.localeCompare(y, undefined, { numeric: true });
          if (x === "" || y === "") return (x === "") - (y === "");
          return (rising ? 1 : -1) * (Number(x) - Number(y));
        });
        body.append(...sorted);
      });
    });
  });

  // Copy buttons, also where the clipboard interface is not allowed.
  const byHand = (source) => {
    const range = document.createRange();
    range.selectNodeContents(source);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    const done = document.execCommand("copy");
    if (done) selection.removeAllRanges();
    return done;
  };
  all("[data-copy]").forEach((button) => {
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      let done = false;
      try {
        await navigator.clipboard.writeText(source.textContent);
        done = true;
      } catch {
        done = byHand(source);
      }
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      window.setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  });

  // The section in view is marked in the list at the side, or on top where the page is narrow.
  const rail = document.querySelector(".rail");
  const links = new Map(all(".rail a").map((link) => [link.hash.slice(1), link]));
  if (links.size && "IntersectionObserver" in window) {
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        const link = links.get(entry.target.id);
        link.setAttribute("aria-current", "true");
        rail.scrollTo({ left: link.offsetLeft - (rail.clientWidth - link.offsetWidth) / 2 });
      }
    }, { rootMargin: "-15% 0px -75% 0px" });
    all("main > section").forEach((section) => watch.observe(section));
  }
})();
