"use strict";
(() => {
  const { charts, looks } = JSON.parse(document.getElementById("data").textContent);
  const byLabel = new Map(looks.map((look) => [look.label, look]));
  const hidden = new Set();
  let game = "";
  let cited = false;
  const drawn = new Map(); // element -> label and kind of each of its traces; null: of the paper
  const mostWithSpread = 8; // labels; the bands of more are a fog
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const isDark = () => prefersDark.matches && !printing;
  const colourOf = (look) => (isDark() ? look.dark : look.colour);
  const pageColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shownLabels = () => looks.length - hidden.size;
  const isVisible = ({ label, spread }) => (label === null ? cited : !hidden.has(label) && (!spread || shownLabels() <= mostWithSpread));

  // plotly reads a little HTML in text; labels come from files and are to be shown as they are.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text) => (text.length > 24 ? `${text.slice(0, 11)}…${text.slice(-12)}` : text);
  const faded = (colour, alpha) => {
    const value = parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${alpha})`;
  };

  // A folded axis: linear up to the edge, logarithmic beyond, where a decade has a fixed height.
  const folded = (scale) => (y) => {
    if (y === null || Math.abs(y) <= scale.edge) return y;
    return Math.sign(y) * (scale.edge + scale.decade * Math.log10(Math.abs(y) / scale.edge));
  };
  const heightsOf = (chart) => (chart.scale.kind === "folded" ? folded(chart.scale) : (y) => y);
  const compact = (y) => (Math.abs(y) >= 1e6 ? `${y / 1e6}M` : Math.abs(y) >= 1e3 ? `${y / 1e3}K` : String(y));

  function curve(chart, series, look) {
    const shared = { legendgroup: series.label, showlegend: false, meta: [plain(look.name)] };
    const traces = [], colour = colourOf(look), height = heightsOf(chart);
    if (series.low) {
      const inside = series.x.map((_, i) => i).filter((i) => series.low[i] !== null && series.high[i] !== null);
      const there = inside.map((i) => [series.x[i], series.high[i]]);
      const back = inside.map((i) => [series.x[i], series.low[i]]).reverse();
      const outline = there.concat(back);
      traces.push({
        ...shared, spread: true, type: "scatter", mode: "lines", x: outline.map((p) => p[0]), y: outline.map((p) => height(p[1])),
        fill: "toself", fillcolor: faded(colour, isDark() ? 0.22 : 0.14), line: { width: 0 }, hoverinfo: "skip",
      });
    }
    if (series.runs && series.runs.length > 1) {
      const x = [], y = [], seeds = [];
      for (const run of series.runs) {
        x.push(...run.x, null);
        y.push(...run.y, null);
        seeds.push(...run.y.map((value) => [run.seed, value]), null);
      }
      traces.push({
        ...shared, spread: true, type: "scatter", mode: "lines", x, y: y.map(height), customdata: seeds,
        line: { color: faded(colour, 0.35), width: 1 },
        hovertemplate: "%{meta[0]}, seed %{customdata[0]}<br>step %{x:,}: %{customdata[1]:.4~g}<extra></extra>",
      });
    }
    const ending = series.n ? `<br>n = %{customdata[0]} ${chart.of}` : "";
    const where = chart.x === "interactions" ? "step %{x:,}" : `${chart.x} %{x}`;
    traces.push({
      ...shared, type: "scatter", mode: series.x.length > 40 ? "lines" : "lines+markers",
      x: series.x, y: series.y.map(height), customdata: series.y.map((value, i) => [series.n ? series.n[i] : 0, value]),
      line: { color: colour, width: 2, dash: look.dash },
      marker: { color: colour, size: 6, symbol: look.marker },
      hovertemplate: `<b>%{meta[0]}</b><br>${where}<br>${plain(chart.y)} %{customdata[1]:.4~g}${ending}<extra></extra>`,
    });
    return traces;
  }

  function interval(chart, series, look) {
    const known = series.low[0] !== null;
    const range = known ? `<br>95%: ${series.low[0]} to ${series.high[0]}` : "<br>no interval: one run per game";
    return [{
      type: "scatter", mode: "markers", showlegend: false, meta: [plain(look.name)],
      x: series.x, y: [series.label], marker: { color: colourOf(look), size: 9, symbol: look.marker },
      error_x: known ? {
        type: "data", symmetric: false, color: colourOf(look), thickness: 2, width: 5,
        array: [series.high[0] - series.x[0]], arrayminus: [series.x[0] - series.low[0]],
      } : { visible: false },
      hovertemplate: `<b>%{meta[0]}</b><br>${plain(chart.x)} %{x:.4~g}${range}<extra></extra>`,
    }];
  }

  function draw(element) {
    const chart = charts[Number(element.dataset.chart)];
    const traces = [], about = [];
    for (const series of chart.series) {
      const look = byLabel.get(series.label);
      for (const trace of (chart.kind === "interval" ? interval : curve)(chart, series, look)) {
        about.push({ label: series.label, spread: Boolean(trace.spread) });
        delete trace.spread;
        trace.visible = isVisible(about.at(-1));
        traces.push(trace);
      }
    }
    const lengths = chart.series.flatMap((series) => series.x);
    for (const line of chart.cited) {
      traces.push({
        type: "scatter", mode: "lines", showlegend: false, visible: cited, meta: [plain(line.name)],
        x: [0, Math.max(line.step, ...lengths) / 2, Math.max(line.step, ...lengths)], y: [line.y, line.y, line.y].map(heightsOf(chart)),
        customdata: [line.y, line.y, line.y],
        line: { color: colourOf(line), width: 1.5, dash: "2px,3px" }, hovertemplate: "%{meta[0]}: %{customdata:.4~g}<extra></extra>",
      });
      about.push({ label: null, spread: false });
    }
    drawn.set(element, about);
    const soft = pageColour("--soft"), text = pageColour("--text");
    const axis = { automargin: true, gridcolor: faded(soft.startsWith("#") ? soft : "#808080", 0.22), zerolinecolor: soft, linecolor: soft, ticks: "outside", tickcolor: soft };
    const { kind, edge, ticks } = chart.scale;
    const scales = {
      log: { type: "log", dtick: "D2", tickformat: "~r" },
      folded: kind === "folded" ? { tickvals: ticks.map(heightsOf(chart)), ticktext: ticks.map((tick) => (Math.abs(tick) > edge ? `log ${compact(tick)}` : compact(tick))) } : {},
    };
    const steps = chart.x === "interactions" ? { tickformat: "~s", rangemode: "tozero" } : {};
    const names = chart.series.map((series) => series.label);
    if (chart.kind === "interval") element.style.height = `${70 + 22 * names.length}px`;
    const layout = {
      margin: { l: 44, r: 14, t: 8, b: 40 }, hovermode: "closest", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { size: 11, color: text }, hoverlabel: { align: "left", namelength: -1 },
      xaxis: { ...axis, ...steps, title: { text: plain(chart.x), standoff: 6 } },
      yaxis: chart.kind === "interval"
        ? { ...axis, type: "category", autorange: "reversed", tickvals: names, ticktext: names.map((name) => plain(short(byLabel.get(name).name))) }
        : { ...axis, ...scales[kind] }, // what it shows is the heading of the chart or of its row
    };
    Plotly.react(element, traces, layout, { responsive: true, displayModeBar: false });
  }

  function apply() {
    for (const chip of document.querySelectorAll(".chip[data-label]")) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.label)));
    document.getElementById("cited")?.setAttribute("aria-pressed", String(cited));
    for (const entry of document.querySelectorAll("[data-env], tr[data-label], .legend [data-label]")) {
      const { env, label } = entry.dataset;
      entry.hidden = (game !== "" && env !== undefined && env !== game) || (label !== undefined && hidden.has(label));
    }
    for (const [element, about] of drawn) Plotly.restyle(element, { visible: about.map(isVisible) });
  }

  function toggle(label) {
    if (!hidden.delete(label)) hidden.add(label);
    apply();
  }

  function only(label) {
    hidden.clear();
    for (const look of looks) if (look.label !== label) hidden.add(look.label);
    apply();
  }

  function sort(table, column, button) {
    const head = button.closest("th");
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const keyed = Array.from(body.rows, (row) => {
      const cell = row.cells[column];
      const text = cell.textContent.trim();
      return { row, text, number: cell.dataset.v === undefined ? NaN : Number(cell.dataset.v) };
    });
    keyed.sort((a, b) => {
      if ((a.text === "") !== (b.text === "")) return a.text === "" ? 1 : -1; // empty ones last, both ways
      const numbers = !Number.isNaN(a.number) && !Number.isNaN(b.number);
      return direction * (numbers ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true }));
    });
    body.append(...keyed.map((entry) => entry.row));
  }

  for (const chip of document.querySelectorAll(".chip[data-label]")) {
    chip.addEventListener("click", () => toggle(chip.dataset.label));
    chip.addEventListener("dblclick", () => only(chip.dataset.label));
  }
  document.getElementById("all")?.addEventListener("click", () => { hidden.clear(); apply(); });
  document.getElementById("cited")?.addEventListener("click", () => { cited = !cited; apply(); });
  document.getElementById("game")?.addEventListener("change", (event) => { game = event.target.value; apply(); });
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => sort(table, column, button)));
  }
  // Charts are drawn when they come near the window: a study of 26 games has hundreds.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        draw(entry.target);
        watcher.unobserve(entry.target);
      }
    }
  }, { rootMargin: "600px" });
  const elements = document.querySelectorAll(".chart");
  elements.forEach((element) => watcher.observe(element));
  prefersDark.addEventListener("change", () => drawn.forEach((_, element) => draw(element)));
  window.addEventListener("beforeprint", () => { printing = true; elements.forEach(draw); }); // on white paper
  window.addEventListener("afterprint", () => { printing = false; drawn.forEach((_, element) => draw(element)); });
})();
