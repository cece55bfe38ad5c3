// Draws the charts, copies commands, selects a window by dragging along one, and renews the view with new rows.
(() => {
  const source = document.currentScript.dataset.plotly;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function select(place) {
    place.on("plotly_selected", (event) => {
      const range = event && event.range && event.range.x;
      if (!range) return;
      const times = range.map((time) => String(time).replace(" ", "T").slice(0, 19));
      const words = new URLSearchParams(location.search);
      for (const name of ["last", "at", "table"]) words.delete(name);
      const [from, to] = times.map((time) => (time.length === 16 ? time + ":00" : time));
      words.set("from", from.length === 10 ? from + "T00:00:00" : from);
      words.set("to", to.length === 10 ? to + "T00:00:00" : to);
      if (words.get("from") < words.get("to")) location.search = words.toString();
    });
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const charts = JSON.parse(document.getElementById("charts").textContent);
    const narrow = window.matchMedia("(pointer: coarse)").matches;
    for (const { id, data, layout, brush } of charts) {
      const place = document.getElementById("chart-" + id);
      const own = coloured(layout, "", style);
      if (brush && !narrow) {
        own.dragmode = "select";
        own.selectdirection = "h";
      }
      const known = place.classList.contains("js-plotly-plot");
      Plotly.react(place, coloured(data, "", style), own, chartConfig);
      if (brush && !known) select(place);
    }
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }

  // Without a secure connection there is no clipboard, but what is selected can be copied.
  async function copy(button) {
    const place = document.getElementById(button.dataset.copies);
    try {
      await navigator.clipboard.writeText(place.textContent);
    } catch {
      getSelection().selectAllChildren(place);
      if (!document.execCommand("copy")) {
        button.textContent = "Selected: copy it by keyboard";
        return;
      }
      getSelection().removeAllRanges();
    }
    button.textContent = "Copied";
  }

  function copying() {
    const chosen = getSelection(), place = chosen.anchorNode;
    const element = place instanceof Element ? place : place && place.parentElement;
    return !chosen.isCollapsed && element.closest("main pre") !== null;
  }

  function showButtons() {
    for (const one of document.querySelectorAll("button[data-copies]")) one.hidden = false;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copies]");
    if (button) copy(button);
  });
  showButtons();

  // A table that is drawn anew must not lose the reader's place.
  function mark(element) {
    if (!element || !element.closest("main")) return null;
    if (element.href) return (one) => one.href === element.href;
    if (element.id) return (one) => one.id === element.id;
    return null;
  }

  // A page that is drawn anew must not take away what the reader has in hand.
  let pressed = false;
  for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
    document.addEventListener(name, (event) => { pressed = event.buttons > 0; }, true);
  }

  function inHand() {
    if (copying()) say("not renewed: text is selected");
    return paused || copying() || document.querySelector("main .select-outline") !== null;
  }

  document.addEventListener("input", (event) => {
    if (event.target.form) event.target.form.dataset.changed = "yes";
  });

  // Times move on in the links and forms above the view, too.
  function renewControls(news) {
    for (const name of ["#window-words", ".controls nav", ".controls form", ".window form"]) {
      const old = document.querySelector(name), fresh = news.querySelector(name);
      const inUse = old && (old.dataset.changed || old.contains(document.activeElement));
      if (fresh && old && !inUse) old.replaceWith(fresh);
    }
  }

  async function renew() {
    const signal = AbortSignal.timeout(60000);
    const answer = await fetch(location.href, { cache: "no-store", signal });
    const news = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) {
      const ended = answer.status === 401 || answer.status === 403;
      const why = news.querySelector(ended ? "body > p" : ".alarm");
      const what = ended ? "the session has ended" : "no answer";
      return say(why ? what + ": " + why.textContent : what);
    }
    const fresh = news.getElementById("main");
    while (pressed) await new Promise((done) => setTimeout(done, 100));
    if (!fresh || inHand()) return;
    const found = mark(document.activeElement);
    const sideways = [...document.querySelectorAll("main .scroll")].map((one) => one.scrollLeft);
    const top = window.scrollY;
    for (const place of document.querySelectorAll("main .chart")) {
      if (place.classList.contains("js-plotly-plot")) Plotly.purge(place);
    }
    document.getElementById("main").replaceChildren(...fresh.childNodes);
    document.querySelectorAll("main .scroll").forEach((one, number) => {
      one.scrollLeft = sideways[number] || 0;
    });
    renewControls(news);
    draw();
    showButtons();
    window.scrollTo(0, top);
    if (found) {
      const again = [...document.querySelectorAll("main a, main [id]")].find(found);
      if (again) again.focus({ preventScroll: true });
    }
    renewed = Date.now();
    say("renewed " + new Date(renewed).toISOString().slice(11, 19) + " UTC");
    document.documentElement.dataset.renewed = String(++renewals);
  }

  const state = document.getElementById("live-state");
  const pause = document.getElementById("pause");
  let paused = false, running = false, stream = null, renewals = 0;
  // When the server was heard last, and from when the page is.
  let heard = 0, renewed = Date.now();
  const silentMs = 45000, oldMs = 120000, freshMs = 10000;

  function say(words) { if (state) state.textContent = words; }

  async function renewIfFree() {
    if (running || inHand()) return;
    running = true;
    try { await renew(); } catch { say("no answer"); } finally { running = false; }
  }

  function listen() {
    quiet();
    heard = Date.now();
    stream = new EventSource("/updates");
    stream.addEventListener("alive", () => { heard = Date.now(); });
    stream.addEventListener("commit", () => {
      heard = Date.now();
      renewIfFree();
    });
    stream.onerror = () => {
      say("not connected; trying again");
      // The browser tries again if a connection is lost, but not if it was refused.
      if (!stream || stream.readyState !== EventSource.CLOSED) return;
      quiet();
      if (Date.now() - renewed > freshMs) renewIfFree(); // which says why, if it is refused as well
      setTimeout(() => { if (!paused && !document.hidden && !stream) listen(); }, 5000);
    };
    stream.onopen = () => {
      heard = Date.now();
      say("live");
      if (heard - renewed > freshMs) renewIfFree();
    };
  }

  function quiet() {
    if (stream) stream.close();
    stream = null;
  }

  // No commit may come because the agent is gone; no event, because the connection is.
  function lookAfter() {
    if (paused || document.hidden) return;
    const now = Date.now();
    if (!stream || now - heard > silentMs) listen();
    if (now - renewed > oldMs) renewIfFree();
  }

  function begin() {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      if (paused) { quiet(); say("paused"); } else listen();
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) quiet();
      else if (!paused && !stream) listen();
    });
    setInterval(lookAfter, 15000);
    listen();
  }

  // Tables first: what draws the charts is large, and comes when they have been painted.
  function load() {
    const plotly = document.createElement("script");
    plotly.src = source;
    plotly.onload = () => {
      dark.addEventListener("change", draw);
      draw();
      if (document.querySelector("main[data-live]")) begin();
    };
    document.head.append(plotly);
  }
  requestAnimationFrame(() => setTimeout(load, 0));
})();
