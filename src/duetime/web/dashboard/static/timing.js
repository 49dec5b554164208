// Draws lateness and duration over time: two lines and a dot for each run, on a logarithmic axis.
(() => {
  "use strict";
  const zone = document.documentElement.dataset.zone;
  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function write(seconds) {
    if (seconds == null) return "–";
    if (seconds >= 60) return `${(seconds / 60).toFixed(1)} min`;
    if (seconds >= 1) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    const ms = seconds * 1000;
    return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
  }

  function clock(at, span) {
    const day = { day: "numeric", month: "short", timeZone: zone };
    const time = { hour: "2-digit", minute: "2-digit", timeZone: zone };
    const chosen = span > 5 * 86400 ? day : span > 86400 ? { ...day, ...time } : time;
    return new Date(at * 1000).toLocaleString("en-GB", chosen);
  }

  // Whole decades: uPlot counts its ticks up from the least value, which must be on its grid. Of a window without runs,
  // the least and the greatest are infinite.
  function decades(low, high) {
    const known = (value) => Number.isFinite(value) && value > 0;
    const first = Math.max(-4, Math.floor(Math.log10(known(low) ? low : 0.001)));
    const last = Math.max(first + 1, Math.ceil(Math.log10(known(high) ? high : 1)));
    return [10 ** first, 10 ** last];
  }

  function draw(place) {
    const lines = JSON.parse(place.dataset.lines);
    const dots = JSON.parse(place.dataset.dots);
    const name = place.dataset.plot;
    const least = (values) => values.map((value) => (value == null ? null : Math.max(value, 0.0001)));
    const data = uPlot.join([
      [lines.at, least(lines[`${name}_p50`]), least(lines[`${name}_p99`])],
      [dots.at, least(dots[name])],
    ]);
    drawn.get(place)?.destroy();
    place.replaceChildren();
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--muted"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const whole = (u, ticks) => ticks.map((one) => (Math.abs(Math.log10(one) % 1) < 1e-6 ? one : null));
    const plot = new uPlot({
      width: Math.max(300, place.clientWidth), height: 240,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), zone),
      scales: { y: { distr: 3, range: (u, low, high) => decades(low, high) } },
      axes: [{ ...axis, values: (u, ticks) => ticks.map((at) => clock(at, u.scales.x.max - u.scales.x.min)) }, { ...axis, size: 70, filter: whole, grid: { ...grid, filter: whole }, ticks: { ...grid, filter: whole }, values: (u, ticks) => ticks.map((one) => (one == null ? "" : write(one))) }],
      series: [
        { label: "at", value: (u, at) => (at == null ? "–" : clock(at, 0)) },
        { label: "p50", stroke: colour("--running"), width: 1.6, spanGaps: true, points: { show: false }, value: (u, v) => write(v) },
        { label: "p99", stroke: colour("--late"), width: 1.6, spanGaps: true, points: { show: false }, value: (u, v) => write(v) },
        { label: "a run", stroke: colour("--faint"), paths: () => null, points: { show: true, size: 4, fill: colour("--faint") }, value: (u, v) => write(v) },
      ],
    }, data, place);
    drawn.set(place, plot);
    place.dataset.shown = place.dataset.lines + place.dataset.dots;
  }
  const drawAll = (always) => {
    for (const place of document.querySelectorAll("[data-plot]")) {
      if (always || place.dataset.shown !== place.dataset.lines + place.dataset.dots) draw(place);
    }
  };
  drawAll(true);
  document.addEventListener("duetime:changed", () => drawAll(true));
  document.addEventListener("duetime:theme", () => drawAll(true));
  let late;
  addEventListener("resize", () => { clearTimeout(late); late = setTimeout(() => drawAll(true), 150); });
})();
