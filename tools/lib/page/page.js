// The page around the charts: filter, legends, tiles, facts and the list of rows.
"use strict";

const el = (id) => document.getElementById(id);
const has = (field) => unique(OWN.map((row) => row[field]).filter((value) => value !== null));
const first = (values, wanted) => wanted.find((value) => values.includes(value)) ?? values[0];
const choices = {
  kernel: has("kernel"),
  cache: has("cache"),
  threads: has("threads").sort().reverse(),
  mode: Object.keys(MODES).filter((mode) => has("impl").includes(mode)),
  storage: STORAGES.filter((s) => has("storage").includes(s))
};

const filter = {
  kernel: first(choices.kernel, ["decode"]),
  cache: first(choices.cache, ["cold"]),
  threads: first(choices.threads, ["all"]),
  mode: first(choices.mode, ["kvroof"]),
  fraction: "read",
  storages: new Set(MANY ? [first(choices.storage, ["f16", "bf16", "f32"])] : choices.storage),
  machines: new Set(DATA.map((_, index) => index)),
  variant: null,
};

const inFilter = (row) => row.kernel === filter.kernel && row.cache === filter.cache &&
    row.threads === filter.threads && filter.machines.has(row.machine);
const ofMode = (row) => row.impl === filter.mode;
const shownRows = () => OWN.filter((row) => inFilter(row) && ofMode(row) && filter.storages.has(row.storage));
const variants = () =>
    unique(OWN.filter((row) => row.kernel === filter.kernel && ofMode(row)).map((row) => row.variant));

function control(label, options, pressed, press) {
  if (options.length < 2) return null;
  const box = document.createElement("div");
  box.className = "control";
  box.innerHTML = `<span>${label}</span><div class="choices" role="group" aria-label="${label}"></div>`;
  for (const [value, text] of options) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-pressed", String(pressed(value)));
    button.onclick = () => {
      press(value);
      render();
    };
    box.lastChild.append(button);
  }
  return box;
}

const single = (name) => [(value) => filter[name] === value, (value) => {
  filter[name] = value;
}];

function toggle(set, value, all) {
  if (set.size === all.length && all.length > 1) {
    set.clear();
    set.add(value);
  }  // the first press on a full set picks one
  else if (!set.has(value))
    set.add(value);
  else if (set.size > 1)
    set.delete(value);
  else
    all.forEach((other) => set.add(other));
}

function drawControls() {
  const pairs = (values) => values.map((value) => [value, value]);
  const machines = DATA.map((_, index) => index);
  const several = filter.machines.size > 1;
  if (!variants().includes(filter.variant)) filter.variant = variants()[0];
  el("controls")
      .replaceChildren(
          ...[control("kernel", pairs(choices.kernel), ...single("kernel")),
              control("cache", pairs(choices.cache), ...single("cache")),
              control("threads", pairs(choices.threads), ...single("threads")),
              control("mode", choices.mode.map((mode) => [mode, MODES[mode]]), ...single("mode")),
              control(
                  "storage", pairs(choices.storage), (s) => filter.storages.has(s),
                  (s) => {
                    if (several) {
                      filter.storages.clear();
                      filter.storages.add(s);
                    } else
                      toggle(filter.storages, s, choices.storage);
                  }),
              control("fraction", [["read", "read roof"], ["attain", "attainable"]], ...single("fraction")),
              control(
                  "machine", machines.map((i) => [i, DATA[i].name]), (i) => filter.machines.has(i),
                  (i) => {
                    toggle(filter.machines, i, machines);
                    if (filter.machines.size > 1 && filter.storages.size > 1)
                      filter.storages = new Set([first(choices.storage, ["f16", "bf16", "f32"])]);
                  }),
  ].filter(Boolean));
  el("time-controls").replaceChildren(...[control("shape", pairs(variants()), ...single("variant"))].filter(Boolean));
}

function swatch(color, symbol, dash) {
  const shape = {
    circle: '<circle cx="13" cy="7" r="3.6"/>',
    square: '<rect x="9.6" y="3.6" width="6.8" height="6.8"/>',
    diamond: '<path d="M13 2.6 17.4 7 13 11.4 8.6 7Z"/>',
    "triangle-up": '<path d="M13 2.8 17 10.2 9 10.2Z"/>',
    x: '<path d="M9.8 3.8 16.2 10.2M16.2 3.8 9.8 10.2" stroke-width="3" stroke="currentColor"/>'
  }[symbol] ??
      "";
  return `<svg width="26" height="14" fill="${color}" style="color:${color}" aria-hidden="true">
      <path d="M0 7H26" stroke="${
      color}" stroke-width="2" stroke-dasharray="${dash ?? ""}"/>${shape}</svg>`;
}

function legend(id, entries) {
  el(id).innerHTML = entries.map(([mark, text]) => `<span>${mark}${escapeHtml(text)}</span>`).join("");
}

function seriesLegend(rows) {
  if (unique(rows.map((row) => row.machine)).length > 1) {
    return unique(rows.map((row) => row.machine))
        .map((i) => [swatch(css(DATA[i].color), DATA[i].symbol), DATA[i].name]);
  }
  return STORAGES.filter((s) => rows.some((row) => row.storage === s))
      .map((s) => [swatch(css(`--${s}`), SYMBOLS[s]), s]);
}

const CONFIG = {
  displayModeBar: false,
  responsive: false  // that hears of the window only; a plot's room also changes with scroll bars and columns
};

function fit(plot) {
  if (!plot.data || !plot.clientWidth || document.body.classList.contains("printing")) return;
  const {width, height} = plot._fullLayout;
  if (width !== plot.clientWidth || height !== plot.clientHeight) Plotly.Plots.resize(plot);
}

const room = new ResizeObserver((changes) => changes.forEach(({target}) => fit(target)));

function panels(id, list) {
  const home = el(id);
  while (home.children.length > list.length) home.lastChild.remove();
  list.forEach(({title, chart}, index) => {
    let panel = home.children[index];
    if (!panel) {
      panel = document.createElement("div");
      panel.className = "panel";
      panel.innerHTML = '<h3></h3><div class="plot"></div>';
      home.append(panel);
      room.observe(panel.lastChild);
    }
    const plot = panel.lastChild;
    panel.firstChild.textContent = title;
    panel.firstChild.hidden = !title;
    if (!chart.traces.length) {
      if (plot.data) Plotly.purge(plot);
      plot.innerHTML = '<div class="empty">No measured rows here.</div>';
      return;
    }
    if (!plot.data) plot.innerHTML = "";
    const fresh = !plot.data;
    if (document.body.classList.contains("printing"))
      Object.assign(chart.layout, {width: plot.clientWidth, height: plot.clientHeight});
    Plotly.react(plot, chart.traces, chart.layout, CONFIG);
    fit(plot);
    if (fresh) plot.on("plotly_click", (event) => event.points[0].customdata && showRow(event.points[0].customdata));
  });
}

function drawFraction(rows) {
  legend("fraction-legend", seriesLegend(rows));
  panels(
      "fraction",
      variants().map(
          (variant) =>
              ({title: variant, chart: fractionChart(rows.filter((row) => row.variant === variant), filter)})));
}

function drawRoofline(rows) {
  const sizes = unique(rows.map((row) => row.T));
  const more = sizes.length > 1 ? [["", "larger marks: longer context"]] : [];
  legend("roofline-legend", [...seriesLegend(rows), ...more]);
  panels("roofline", [{
           title: "",
           chart: rooflineChart(
               rows, filter, el("roofline").clientWidth - 22, matchMedia("(max-width: 640px)").matches ? 400 : 460)
         }]);
}

// Of several machines, those that measured something here; all of them where none did.
function withRows(facets) {
  const found = facets.filter(([, rows]) => rows.some((row) => row.ns !== null));
  return found.length ? found : facets;
}

function drawTime() {
  const rows =
      ALL
          .filter((row) => inFilter(row) && row.variant === filter.variant && filter.storages.has(row.storage));
  legend(
      "time-legend",
      Object.keys(IMPLS)
          .filter((impl) => rows.some((row) => row.impl === impl && row.ns !== null))
          .map(
              (impl) =>
                  [swatch(css(`--${impl}`), "circle", {dash: "6 3", dashdot: "6 3 2 3", dot: "2 3"}[DASHES[impl]]),
                   IMPLS[impl]])
          .concat([[swatch(css("--faint"), "", "2 3"), "the bytes at the read roof"]]));
  const facets = filter.machines.size > 1 ?
      withRows([...filter.machines].map((i) => [DATA[i].name, rows.filter((row) => row.machine === i)])) :
      STORAGES.filter((s) => filter.storages.has(s)).map((s) => [s, rows.filter((row) => row.storage === s)]);
  panels(
      "time",
      facets.map(([title, members]) => ({title: `${filter.variant}: ${title}`, chart: timeChart(members, rows)})));
}

function drawHalving() {
  const rows = OWN.filter((row) => inFilter(row) && ofMode(row));
  const paired = rows.filter((row) => row.half !== null && row.storage !== "f32");
  el("halving-section").hidden = !paired.length;
  if (!paired.length) return;
  legend(
      "halving-legend",
      STORAGES.slice(1)
          .filter((s) => paired.some((row) => row.storage === s))
          .map((s) => [swatch(css(`--${s}`), SYMBOLS[s]), `${s} over f32`]));
  const facets = filter.machines.size > 1 ?
      withRows([...filter.machines].map(
          (i) =>
              [`${filter.variant}: ${DATA[i].name}`,
               rows.filter((row) => row.machine === i && row.variant === filter.variant)])) :
      variants().map((variant) => [variant, rows.filter((row) => row.variant === variant)]);
  panels("halving", facets.map(([title, members]) => ({title, chart: halvingChart(members)})));
}

function showRow(row) {
  const card = el("row");
  card.hidden = false;
  card.innerHTML =
      `<div class="actions"><button class="quiet" type="button">copy command</button>
      <button class="quiet" type="button">close</button></div>
    <b>${escapeHtml(rowTitle(row))}</b>${isOwn(row) ? "" : `, ${escapeHtml(IMPLS[row.impl] ?? row.impl)}`}${
          MANY ? `, ${escapeHtml(DATA[row.machine].name)}` : ""}<br>
    ${rowLines(row).map(escapeHtml).join("<br>")}<code>${escapeHtml(command(row))}</code>`;
  const [copy, close] = card.querySelectorAll("button");
  copy.onclick = () => navigator.clipboard?.writeText(command(row)).then(() => {
    copy.textContent = "copied";
  });
  close.onclick = () => {
    card.hidden = true;
  };
}

function doubts(row) {
  const status = row.status === "ok" ? [] : [`${row.status.replace("_", " ")}: ${row.reason}`];
  return row.above ? [`above its ${row.above} roof`, ...status] : status;
}

const ROW_COLUMNS = [
  ["machine", (row) => (MANY ? DATA[row.machine].name : null)],
  ["shape", (row) => row.variant],
  ["storage", (row) => row.storage],
  ["T", (row) => row.T, true],
  ["by", (row) => IMPLS[row.impl] ?? row.impl],
  ["of read roof", (row) => row.read?.toFixed(2), true],
  ["of attainable", (row) => row.attain?.toFixed(2), true],
  ["GB/s", (row) => row.gb?.toFixed(1), true],
  ["time", (row) => (row.ns === null ? null : duration(row.ns)), true],
  ["over kvroof", (row) => (row.ratio === null ? null : significant(row.ratio)), true],
  ["", (row) => doubts(row).join(", ")],
];

function drawRows() {
  if (!el("rows").open) return;
  const rows = ALL.filter((row) => inFilter(row) && filter.storages.has(row.storage));
  const columns = ROW_COLUMNS.filter(([name]) => MANY || name !== "machine");
  const cell = (row, [name, value, number]) =>
      `<td class="${number ? "number" : name ? "" : "warn"}">${escapeHtml(value(row) ?? "")}</td>`;
  const heads = columns.map(([name, , number]) => `<th class="${number ? "number" : ""}">${name}</th>`);
  const lines = rows.map((row) => `<tr>${columns.map((column) => cell(row, column)).join("")}</tr>`);
  el("rows").querySelector("table").innerHTML =
      `<thead><tr>${heads.join("")}</tr></thead><tbody>${lines.join("")}</tbody>`;
}

function drawTop() {
  const machine = DATA[0];
  // A machine may come with more than one file, such as its quick sweep and that of the layouts.
  const same = DATA.every((m) => ["cpu", "threads", "isa"].every((fact) => m[fact] === machine[fact]));
  el("title").textContent = !MANY ? machine.cpu :
      same                        ? `${machine.cpu}, ${DATA.length} sweeps` :
                                    `${DATA.length} machines, one KV cache`;
  el("lead").textContent = "How fast can a machine read a KV cache, and how close does attention get to that? " +
      (MANY ? "" :
              `${machine.threads} threads, ${machine.isa}, measured ${machine.date}${
                  machine.complete ? "" : ", not all rows"}.`);
  const box = el("headlines");
  if (!MANY) {
    box.innerHTML =
        machine.headlines
            .map(
                (tile) => `<div class="tile"><div class="label">${escapeHtml(tile.label)}</div><div class="value">${
                    escapeHtml(tile.value)}</div><div class="small">${escapeHtml(tile.note)}</div></div>`)
            .join("");
    box.hidden = !machine.headlines.length;
    return;
  }
  const labels = unique(DATA.flatMap((m) => m.headlines.map((tile) => tile.label)));
  box.className = "scroll";
  box.innerHTML = `<table class="summary"><thead><tr><th>machine</th><th>CPU</th><th>threads</th>${
                      labels.map((label) => `<th>${escapeHtml(label)}</th>`).join("")}</tr></thead><tbody>` +
      DATA.map(
              (m) => `<tr><td><span class="dot" style="background:var(${m.color})"></span>${
                         escapeHtml(m.name)}</td><td>${escapeHtml(m.cpu)}</td><td>${m.threads}</td>` +
                  labels
                      .map((label) => {
                        const tile = m.headlines.find((t) => t.label === label);
                        return `<td title="${escapeHtml(tile?.note ?? "")}">${escapeHtml(tile?.value ?? "")}</td>`;
                      })
                      .join("") +
                  "</tr>")
          .join("") +
      "</tbody></table>";
}

function drawFacts() {
  const labels = unique(DATA.flatMap((machine) => machine.facts.map((fact) => fact[0])));
  const cell = (machine, label) => {
    const fact = machine.facts.find((entry) => entry[0] === label);
    if (!fact) return "<td></td>";
    const value = fact[1] === null ? "not known" : fact[3] ? bytes(fact[1]) : fact[1];
    return `<td>${escapeHtml(value)}<small>${escapeHtml(fact[2])}</small></td>`;
  };
  el("facts").classList.toggle("alone", !MANY);
  el("facts").innerHTML =
      (MANY ? `<thead><tr><th></th>${
                  DATA.map((machine) => `<th>${escapeHtml(machine.name)}</th>`).join("")}</tr></thead>` :
              "") +
      `<tbody>${
          labels
              .map(
                  (label) =>
                      `<tr><th>${escapeHtml(label)}</th>${DATA.map((machine) => cell(machine, label)).join("")}</tr>`)
              .join("")}</tbody>`;
}

const drawAll = (rows) =>
    [() => drawFraction(rows), () => drawRoofline(rows), drawTime, drawHalving, drawLatent, drawRows];

let turn = 0, screenTheme = "light";
function render() {
  drawControls();
  const steps = drawAll(shownRows());
  const mine = ++turn;
  const next = () => {
    if (mine === turn && steps.length) {
      steps.shift()();
      setTimeout(next);
    }
  };
  next();
}

function setTheme(theme, again) {
  document.documentElement.dataset.theme = theme;
  el("theme").textContent = theme === "dark" ? "light" : "dark";
  if (again) render();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.onchange = (event) => setTheme(event.matches ? "dark" : "light", true);
el("theme").onclick = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true);
// Paper has its own width, and a chart drawn for the screen would run over it: all charts are drawn again, at once.
window.onbeforeprint = () => {
  screenTheme = document.documentElement.dataset.theme;
  document.body.classList.add("printing");
  setTheme("light", false);
  drawAll(shownRows()).forEach((step) => step());
};
window.onafterprint = () => {
  document.body.classList.remove("printing");
  setTheme(screenTheme, true);
};
let resized;
window.onresize = () => {
  clearTimeout(resized);
  resized = setTimeout(() => drawRoofline(shownRows()), 150);
};
el("rows").ontoggle = drawRows;

setTheme(dark.matches ? "dark" : "light", false);
drawTop();
drawFacts();
render();
