"use strict";
(() => {
  const { charts, looks } = JSON.parse(document.getElementById("data").textContent);
  const byLabel = new Map(looks.map((look) => [look.label, look]));
  const hidden = new Set();
  let game = "";
  let cited = false;
  const drawn = new Map(); // element -> the label of each of its traces; null: of the paper

  // plotly reads a little HTML in text; labels come from files and are to be shown as they are.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text) => (text.length > 24 ? `${text.slice(0, 11)}…${text.slice(-12)}` : text);
  const faded = (colour, alpha) => {
    const value = parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${alpha})`;
  };

  function curve(chart, series, look) {
    const shared = { legendgroup: series.label, showlegend: false, meta: [plain(series.label)] };
    const traces = [];
    if (series.low) {
      const inside = series.x.map((_, i) => i).filter((i) => series.low[i] !== null && series.high[i] !== null);
      const there = inside.map((i) => [series.x[i], series.high[i]]);
      const back = inside.map((i) => [series.x[i], series.low[i]]).reverse();
      const outline = there.concat(back);
      traces.push({
        ...shared, type: "scatter", mode: "lines", x: outline.map((p) => p[0]), y: outline.map((p) => p[1]),
        fill: "toself", fillcolor: faded(look.colour, 0.14), line: { width: 0 }, hoverinfo: "skip",
      });
    }
    if (series.runs && series.runs.length > 1) {
      const x = [], y = [], seeds = [];
      for (const run of series.runs) {
        x.push(...run.x, null);
        y.push(...run.y, null);
        seeds.push(...run.x.map(() => run.seed), null);
      }
      traces.push({
        ...shared, type: "scatter", mode: "lines", x, y, customdata: seeds,
        line: { color: faded(look.colour, 0.35), width: 1 },
        hovertemplate: "%{meta[0]}, seed %{customdata}<br>step %{x:,}: %{y:.4~g}<extra></extra>",
      });
    }
    const ending = series.n ? `<br>n = %{customdata} ${chart.of}` : "";
    const where = chart.x === "interactions" ? "step %{x:,}" : `${chart.x} %{x}`;
    traces.push({
      ...shared, type: "scatter", mode: series.x.length > 40 ? "lines" : "lines+markers",
      x: series.x, y: series.y, customdata: series.n,
      line: { color: look.colour, width: 2, dash: look.dash },
      marker: { color: look.colour, size: 6, symbol: look.marker },
      hovertemplate: `<b>%{meta[0]}</b><br>${where}<br>${plain(chart.y)} %{y:.4~g}${ending}<extra></extra>`,
    });
    return traces;
  }

  function interval(chart, series, look) {
    const known = series.low[0] !== null;
    const range = known ? `<br>95%: ${series.low[0]} to ${series.high[0]}` : "<br>no interval: one run per game";
    return [{
      type: "scatter", mode: "markers", showlegend: false, meta: [plain(series.label)],
      x: series.x, y: [series.label], marker: { color: look.colour, size: 9, symbol: look.marker },
      error_x: known ? {
        type: "data", symmetric: false, color: look.colour, thickness: 2, width: 5,
        array: [series.high[0] - series.x[0]], arrayminus: [series.x[0] - series.low[0]],
      } : { visible: false },
      hovertemplate: `<b>%{meta[0]}</b><br>${plain(chart.x)} %{x:.4~g}${range}<extra></extra>`,
    }];
  }

  function draw(element) {
    if (drawn.has(element)) return;
    const chart = charts[Number(element.dataset.chart)];
    const traces = [], labels = [];
    for (const series of chart.series) {
      const look = byLabel.get(series.label);
      for (const trace of (chart.kind === "interval" ? interval : curve)(chart, series, look)) {
        trace.visible = !hidden.has(series.label);
        traces.push(trace);
        labels.push(series.label);
      }
    }
    const lengths = chart.series.flatMap((series) => series.x);
    for (const line of chart.cited) {
      traces.push({
        type: "scatter", mode: "lines", showlegend: false, visible: cited, meta: [plain(line.name)],
        x: [0, Math.max(line.step, ...lengths) / 2, Math.max(line.step, ...lengths)], y: [line.y, line.y, line.y],
        line: { color: line.colour, width: 1.5, dash: "2px,3px" }, hovertemplate: "%{meta[0]}: %{y:.4~g}<extra></extra>",
      });
      labels.push(null);
    }
    drawn.set(element, labels);
    const axis = { automargin: true, gridcolor: "#e5e8ec", zerolinecolor: "#8c959f", linecolor: "#8c959f", ticks: "outside", tickcolor: "#8c959f" };
    const steps = chart.x === "interactions" ? { tickformat: "~s", rangemode: "tozero" } : {};
    const names = chart.series.map((series) => series.label);
    if (chart.kind === "interval") element.style.height = `${Math.max(260, 70 + 18 * names.length)}px`;
    const layout = {
      margin: { l: 44, r: 14, t: 8, b: 40 }, hovermode: "closest", paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff",
      font: { size: 11, color: "#1b1f24" }, hoverlabel: { align: "left", namelength: -1 },
      xaxis: { ...axis, ...steps, title: { text: plain(chart.x), standoff: 6 } },
      yaxis: chart.kind === "interval"
        ? { ...axis, type: "category", autorange: "reversed", tickvals: names, ticktext: names.map((name) => plain(short(name))) }
        : axis, // what it shows is the heading of the chart or of its row
    };
    Plotly.newPlot(element, traces, layout, { responsive: true, displayModeBar: false });
  }

  function apply() {
    for (const chip of document.querySelectorAll(".chip[data-label]")) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.label)));
    document.getElementById("cited")?.setAttribute("aria-pressed", String(cited));
    for (const entry of document.querySelectorAll("[data-env], tr[data-label], .legend [data-label]")) {
      const { env, label } = entry.dataset;
      entry.hidden = (game !== "" && env !== undefined && env !== game) || (label !== undefined && hidden.has(label));
    }
    for (const [element, labels] of drawn) Plotly.restyle(element, { visible: labels.map((label) => (label === null ? cited : !hidden.has(label))) });
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
  window.addEventListener("beforeprint", () => elements.forEach(draw));
})();
