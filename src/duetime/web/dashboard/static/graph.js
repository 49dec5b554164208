// Draws the graph of a run: the layout is dagre's, the colours are the theme's.
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const SHAPES = { pending: "○", running: "◐", waiting: "◆", retrying: "↻", completed: "●", failed: "✕", skipped: "✕" };

  function make(name, attributes, text) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  const noteOf = (step) => [step.state, step.note].filter(Boolean).join(" · ");

  function draw() {
    const place = document.getElementById("graph");
    if (!place || place.dataset.drawn === place.dataset.graph) return;
    const steps = JSON.parse(place.dataset.graph);
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 46, marginx: 6, marginy: 6 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const step of steps) graph.setNode(step.name, { width: 44 + 7.2 * Math.max(Math.min(step.name.length, 40), noteOf(step).length), height: 44, step });
    for (const step of steps) for (const before of step.after) if (graph.hasNode(before)) graph.setEdge(before, step.name);
    dagre.layout(graph);
    const size = graph.graph();
    const svg = make("svg", { class: "chart graph", viewBox: `0 0 ${size.width} ${size.height}`, width: size.width, height: size.height, role: "img", "aria-label": `A graph of ${steps.length} steps` });
    for (const edge of graph.edges()) {
      const points = graph.edge(edge).points.map((p) => `${p.x.toFixed(1)} ${p.y.toFixed(1)}`);
      svg.append(make("path", { class: "edge", d: "M" + points.join(" L") }));
    }
    for (const name of graph.nodes()) {
      const { x, y, width, height, step } = graph.node(name);
      const box = make("g", { class: `node s-${step.state}`, transform: `translate(${(x - width / 2).toFixed(1)} ${(y - height / 2).toFixed(1)})` });
      box.append(make("title", {}, `${step.name}: ${step.state}`));
      box.append(make("rect", { width, height, rx: 8 }));
      box.append(make("text", { class: "sign", x: 12, y: 19 }, SHAPES[step.state] || "○"));
      box.append(make("text", { class: "strong", x: 28, y: 19 }, step.name.length > 40 ? step.name.slice(0, 39) + "…" : step.name));
      box.append(make("text", { x: 28, y: 35 }, noteOf(step)));
      svg.append(box);
    }
    place.replaceChildren(svg);
    place.dataset.drawn = place.dataset.graph;
  }
  draw();
  document.addEventListener("duetime:changed", draw);
})();
