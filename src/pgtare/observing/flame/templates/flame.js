"use strict";
// Draws each flame graph from its data: zoom, search, keyboard. Names are only ever set as text.
(() => {
  const ROW = 18, CHAR = 6.6, SVG = "http://www.w3.org/2000/svg";

  function tree(data) {
    const all = [];
    const path = [];
    for (const [depth, name, after, before] of data.nodes) {
      const node = {
        name: data.names[name], after, before: before || 0, depth, children: [], x: 0, parent: null,
        width: data.compared ? (after + before) / 2 : after,
      };
      path.length = depth;
      if (depth) { node.parent = path[depth - 1]; node.parent.children.push(node); }
      path.push(node);
      all.push(node);
    }
    for (const node of all) {
      let x = node.x;
      for (const child of node.children) { child.x = x; x += child.width; }
    }
    return all;
  }

  function colour(node, root, compared) {
    if (compared) {
      const a = root.after ? node.after / root.after : 0;
      const b = root.before ? node.before / root.before : 0;
      const change = a + b ? (a - b) / (a + b) : 0;
      const light = 92 - 34 * Math.min(1, Math.abs(change));
      if (Math.abs(change) < 0.02) return "hsl(0 0% 88%)";
      return change > 0 ? `hsl(8 85% ${light}%)` : `hsl(212 80% ${light}%)`;
    }
    let hash = 0;
    for (const c of node.name) hash = (hash * 31 + c.codePointAt(0)) % 997;
    const shade = hash % 14;
    if (node.name.startsWith("wait: ")) return `hsl(285 55% ${74 + shade}%)`;
    if (node.name.startsWith("statement: ")) return `hsl(150 45% ${72 + shade}%)`;
    if (node.name.startsWith("woken by ")) return `hsl(200 70% ${76 + shade}%)`;
    if (node.name.endsWith("_[k]")) return `hsl(32 90% ${68 + shade}%)`;
    return `hsl(52 85% ${66 + shade}%)`;
  }

  function number(value) {
    return value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
  }

  function start(figure) {
    const data = JSON.parse(figure.querySelector(".flame-data").textContent);
    const nodes = tree(data), root = nodes[0];
    const view = figure.querySelector(".flame-view");
    const description = figure.querySelector(".flame-description");
    const search = figure.querySelector("input"), found = figure.querySelector("output");
    const deepest = nodes.reduce((most, n) => Math.max(most, n.depth), 0);
    let zoomed = root, focused = root, pattern = "";
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-label", "flame graph; arrow keys move between frames, Enter zooms in");
    svg.setAttribute("tabindex", "0");
    view.append(svg);

    function describe(node) {
      const share = (value, whole) => whole ? (100 * value / whole) : 0;
      if (data.compared) {
        const a = share(node.after, root.after), b = share(node.before, root.before);
        return `${node.name}: ${number(b)} % before, ${number(a)} % after, `
          + `${a >= b ? "+" : "−"}${number(Math.abs(a - b))} points`;
      }
      const own = node.after - node.children.reduce((sum, c) => sum + c.after, 0);
      return `${node.name}: ${number(node.after)} ms, `
        + `${number(share(node.after, root.after))} %, in itself ${number(Math.max(0, own))} ms`;
    }

    function matches(node) {
      return pattern && node.name.toLowerCase().includes(pattern);
    }

    function draw() {
      const width = Math.max(200, view.clientWidth), height = (deepest + 1) * ROW;
      svg.setAttribute("width", width);
      svg.setAttribute("height", height);
      svg.replaceChildren();
      const scale = zoomed.width ? width / zoomed.width : 0;
      for (const node of nodes) {
        const above = node.depth < zoomed.depth;
        const x = above ? 0 : (node.x - zoomed.x) * scale;
        const w = above ? width : node.width * scale;
        if (above) {
          if (!(node.x <= zoomed.x + 1e-9 && node.x + node.width >= zoomed.x + zoomed.width - 1e-9)) continue;
        } else if (node.x < zoomed.x - 1e-9 || node.x + node.width > zoomed.x + zoomed.width + 1e-9) continue;
        if (w < 0.4) continue;
        const group = document.createElementNS(SVG, "g");
        group.classList.add("frame");
        if (above) group.classList.add("above");
        if (matches(node)) group.classList.add("match");
        if (node === focused) group.classList.add("focused");
        const rect = document.createElementNS(SVG, "rect");
        rect.setAttribute("x", x);
        rect.setAttribute("y", height - (node.depth + 1) * ROW);
        rect.setAttribute("width", Math.max(0.4, w - 0.5));
        rect.setAttribute("height", ROW - 1);
        rect.setAttribute("fill", colour(node, root, data.compared));
        const title = document.createElementNS(SVG, "title");
        title.textContent = describe(node);
        group.append(rect, title);
        const room = Math.floor((w - 6) / CHAR);
        if (room >= 3) {
          const text = document.createElementNS(SVG, "text");
          text.setAttribute("x", x + 3);
          text.setAttribute("y", height - node.depth * ROW - 5);
          const shown = Array.from(node.name);
          text.textContent = shown.length <= room ? node.name : shown.slice(0, room - 1).join("") + "…";
          group.append(text);
        }
        group.addEventListener("click", () => { focused = node; zoom(node); });
        group.addEventListener("mouseenter", () => { description.textContent = describe(node); });
        svg.append(group);
      }
    }

    function zoom(node) {
      zoomed = node;
      description.textContent = describe(node);
      draw();
    }

    function focus(node) {
      if (!node) return;
      focused = node;
      if (node.depth < zoomed.depth || node.x < zoomed.x - 1e-9
          || node.x + node.width > zoomed.x + zoomed.width + 1e-9) zoomed = node.parent || root;
      description.textContent = describe(node);
      draw();
    }

    function look() {
      pattern = search.value.trim().toLowerCase();
      let sum = 0;
      const seek = (node) => {
        if (matches(node)) { sum += node.width; return; }
        node.children.forEach(seek);
      };
      seek(root);
      found.textContent = pattern ? `${number(root.width ? 100 * sum / root.width : 0)} % match` : "";
      draw();
    }

    function sibling(node, step) {
      if (!node.parent) return null;
      const row = nodes.filter((n) => n.depth === node.depth);
      return row[row.indexOf(node) + step];
    }

    svg.addEventListener("keydown", (event) => {
      const widest = () => focused.children.reduce((m, n) => (m && m.width >= n.width ? m : n), null);
      const act = {
        ArrowUp: () => focus(widest()),
        ArrowDown: () => focus(focused.parent),
        ArrowLeft: () => focus(sibling(focused, -1)),
        ArrowRight: () => focus(sibling(focused, 1)),
        Enter: () => zoom(focused),
        Escape: () => { focused = root; zoom(root); },
        "/": () => search.focus(),
      }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    search.addEventListener("input", look);
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { search.value = ""; look(); svg.focus(); }
    });
    figure.querySelector("button").addEventListener("click", () => { focused = root; zoom(root); });
    new ResizeObserver(draw).observe(view);
    draw();
  }

  document.querySelectorAll("figure.flame").forEach(start);
  document.documentElement.dataset.flames = "drawn";
  document.documentElement.dataset.drawn ||= "flames";
})();
