// The dashboard works without it; this adds live updates, keys, the theme switch and the viewer's zone.
(() => {
  "use strict";
  const root = document.documentElement;
  const base = root.dataset.root || "";
  const $ = (selector) => document.querySelector(selector);

  // Live: the server says when something changed, and the page is fetched again and merged in, so
  // that focus, scroll, selections and open boxes stay.
  let paused = sessionStorage.getItem("duetime-paused") === "yes";
  let waiting = false;
  let last = 0;
  const LEAST_MS = 1000;

  const isBusy = () =>
    document.querySelector("dialog[open]") || document.querySelector("[data-chosen]") ||
    document.querySelector("[data-changed]") || document.hidden || String(getSelection()).length > 0;

  async function refresh() {
    if (paused || waiting || isBusy()) return;
    waiting = true;
    const pause = Math.max(0, last + LEAST_MS - performance.now());
    await new Promise((done) => setTimeout(done, pause));
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html", "x-live": "1" } });
      if (answer.ok && !answer.redirected && !isBusy() && !paused) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        keepSaid(page);
        for (const part of ["main", "nav"]) {
          const old = document.getElementById(part);
          const fresh = page.getElementById(part);
          if (old && fresh) Idiomorph.morph(old, fresh, { ignoreActiveValue: true, callbacks: { beforeAttributeUpdated: keep } });
        }
        document.dispatchEvent(new Event("duetime:changed"));
      }
    } catch { /* The next event tries again. */ }
    last = performance.now();
    waiting = false;
  }
  // What an action did is said once by the server, and stays until the next page.
  function keepSaid(page) {
    const said = document.querySelector("#main > .said[role=status]");
    if (said && !page.querySelector("#main > .said[role=status]")) page.getElementById("main")?.prepend(said.cloneNode(true));
  }
  const keep = (name, node) => !(name === "open" || name === "data-chosen" || (name === "class" && node.id === "nav"));

  function showLive(state) {
    const pill = $("#live");
    if (!pill) return;
    pill.setAttribute("aria-pressed", String(paused));
    pill.classList.toggle("lost", state === "lost" && !paused);
    pill.querySelector(".word").textContent = paused ? "paused" : state === "lost" ? "not connected" : "live";
  }
  if ($("#live")) {
    // Only while somebody can see the page: a browser opens few connections to one server, and tabs in
    // the background would use them up.
    let source = null;
    const listen = () => {
      source?.close();
      source = null;
      if (document.hidden) return;
      source = new EventSource(base + "/live");
      source.addEventListener("changed", refresh);
      source.onopen = () => showLive("live");
      source.onerror = () => showLive("lost");
    };
    listen();
    addEventListener("pagehide", () => source?.close());
    document.addEventListener("visibilitychange", () => { listen(); if (!document.hidden) refresh(); });
    $("#live").addEventListener("click", () => {
      paused = !paused;
      sessionStorage.setItem("duetime-paused", paused ? "yes" : "no");
      showLive("live");
      refresh();
    });
    showLive("live");
  }

  // The viewer's zone: the server writes times in it.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const known = document.cookie.match(/(?:^|; )duetime_zone=([^;]*)/);
  if (zone && (!known || decodeURIComponent(known[1]) !== zone)) {
    document.cookie = `duetime_zone=${encodeURIComponent(zone)}; path=${base || "/"}; max-age=31536000; samesite=lax`;
    if (!known || root.dataset.zone !== zone) refresh();
  }

  // A chart that is wider than its panel begins at now.
  for (const line of document.querySelectorAll(".scroll svg.chart line.now")) {
    const box = line.closest(".scroll");
    const svg = line.ownerSVGElement;
    const x = (Number(line.getAttribute("x1")) / svg.viewBox.baseVal.width) * box.scrollWidth;
    box.scrollLeft = x - box.clientWidth / 2;
  }

  // Theme
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-theme-switch], [data-menu], [data-open], [data-close], [data-copy], [data-select-all]");
    if (!target) return;
    if ("themeSwitch" in target.dataset) {
      root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
      localStorage.setItem("duetime-theme", root.dataset.theme);
      document.dispatchEvent(new Event("duetime:theme"));
    } else if ("menu" in target.dataset) {
      const open = $("#nav").classList.toggle("open");
      target.setAttribute("aria-expanded", String(open));
    } else if (target.dataset.open) {
      document.getElementById(target.dataset.open).showModal();
    } else if ("close" in target.dataset) {
      target.closest("dialog").close();
    } else if (target.dataset.copy !== undefined) {
      navigator.clipboard.writeText(target.dataset.copy).then(() => {
        const word = target.textContent;
        target.textContent = "Copied";
        setTimeout(() => { target.textContent = word; }, 1200);
      });
    } else if ("selectAll" in target.dataset) {
      for (const box of document.querySelectorAll("input[data-select]")) { box.checked = target.checked; mark(box); }
    }
  });
  const mark = (box) => box.closest("tr")?.toggleAttribute("data-chosen", box.checked);
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-select]")) mark(event.target);
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("input", (event) => {
    if (event.target.matches("main textarea, main input:not([data-select])")) event.target.setAttribute("data-changed", "");
  });
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm || event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
    // The filter is the URL: without the fields that are empty.
    if (event.target.method === "get") for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
  });
  document.addEventListener("click", (event) => {
    if ($("#nav")?.classList.contains("open") && !event.target.closest("#nav, [data-menu]")) $("#nav").classList.remove("open");
  });

  // Keys
  const places = { n: "/", j: "/jobs", s: "/schedules", r: "/reminders", f: "/flows", q: "/queues", w: "/workers", a: "/audit" };
  let goes = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (performance.now() - goes < 1200 && places[event.key]) { goes = 0; location.href = base + places[event.key]; return; }
    goes = 0;
    if (event.key === "/") { event.preventDefault(); $("#search")?.focus(); }
    else if (event.key === "?") $("#keys")?.showModal();
    else if (event.key === "g") goes = performance.now();
    else if (event.key === "p") $("#live")?.click();
    else if (event.key === "t") $("[data-theme-switch]")?.click();
    else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  });
  function move(by) {
    const links = [...document.querySelectorAll("main [data-row]")];
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    links[Math.min(Math.max(at + by, 0), links.length - 1)].focus();
  }
})();
