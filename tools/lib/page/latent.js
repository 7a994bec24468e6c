// Latent attention: what a cached token costs in bytes and in work, and which form is faster for a chunk of tokens.
"use strict";

// Each form by the rows that show it: `counts` for bytes and work a token, `timed` for what a caller waits for.
const isLatent = (kernel) => (row) => row.kernel === kernel && row.shape === "MLA";
const FORMS = {
  mha: {
    name: "MHA, the cache it replaces",
    color: "--m1",
    counts: (row) => row.kernel === "decode" && row.shape === "MHA128",
  },
  gqa: {name: "GQA, 8 KV heads", color: "--m7", counts: (row) => row.kernel === "decode" && row.shape === "GQA128"},
  absorbed: {
    name: "MLA absorbed",
    color: "--m0",
    counts: isLatent("mla_absorbed"),
    timed: isLatent("mla_absorbed_step"),
  },
  reconstruct: {name: "MLA reconstructed", color: "--m3", counts: isLatent("mla_reconstruct")},
};
const timedBy = (form) => form.timed ?? form.counts;

// All rows that this section may show: cold, one sequence, whole context, the modes never on one line.
const LATENT_FORMS = Object.values(FORMS).flatMap(
    (form) => ["kvroof", "native"].map((impl) => ({
                                         ...form,
                                         impl,
                                         name: impl === "native" ? `${form.name}, native` : form.name,
                                         dash: impl === "native" ? "dash" : "solid"
                                       })));
const LATENT_ROWS = OWN.filter(
    (row) => row.ns !== null && row.cache === "cold" &&
        (row.shape === "MLA" || Object.values(FORMS).some((form) => form.counts(row))) &&
        !/batch|window|ring|paged|prefix|token-major/.test(row.variant));
const latentRows = (form, matches, storage) => LATENT_ROWS.filter(
    (row) => row.impl === form.impl && matches(row) && row.threads === filter.threads &&
        filter.machines.has(row.machine) && (storage === undefined || row.storage === storage));

const oneToken = (rows) => rows.filter((row) => row.chunk === 1);
const longest = (rows) => rows.reduce((best, row) => (best === null || row.T > best.T ? row : best), null);
const ridgeOf = (row) => (row.compute && row.roof ? row.compute / row.roof : null);

// Bytes across, work up, one point a form and storage; the slanted line is the ridge: above it work binds, below it
// bytes.
function tradeChart(list) {
  const traces = [], all = [];
  for (const form of list) {
    const points = STORAGES.flatMap((storage) => {
      const row = longest(oneToken(latentRows(form, form.counts, storage)));
      return row ? [row] : [];
    });
    all.push(...points);
    traces.push({
      type: "scatter",
      mode: "markers",
      x: points.map((row) => row.bytes / row.T),
      y: points.map((row) => row.flops / row.T),
      customdata: points,
      text: points.map(
          (row) => `<b>${escapeHtml(form.name)}, ${row.storage}</b><br>${bytes(Math.round(row.bytes / row.T))} and ${
              flopWords(
                  row.flops / row.T)}FLOP a cached token<br>${significant(row.flops / row.bytes)} FLOP/byte, ridge ${
              significant(ridgeOf(row) ?? 0)}<br>${hoverText(row)}`),
      hovertemplate: "%{text}<extra></extra>",
      marker: {
        color: css(form.color),
        symbol: points.map((row) => SYMBOLS[row.storage] + (form.impl === "native" ? "-open" : "")),
        size: 10,
        line: {color: form.impl === "native" ? css(form.color) : css("--card"), width: form.impl === "native" ? 2 : 1}
      }
    });
  }
  const x = all.map((row) => row.bytes / row.T), y = all.map((row) => row.flops / row.T);
  const left = Math.min(...x) / 2;
  const right = Math.max(...x, ...all.map((row) => row.replaced ?? 0)) * 2;  // as far as the cache that is replaced
  const bottom = Math.min(...y) / 3, top = Math.max(...y) * 3;
  const names = [];
  for (const index of filter.machines) {
    for (const impl of unique(list.map((form) => form.impl))) {
      const own = list.filter((form) => form.impl === impl)
                      .flatMap((form) => latentRows(form, form.counts))
                      .filter((row) => row.machine === index)
                      .map(ridgeOf)
                      .filter(Boolean)
                      .sort(ascending);
      if (!own.length) continue;
      const ridge = own[own.length >> 1], color = MANY ? css(DATA[index].color) : css("--soft");
      const from = Math.max(left, bottom / ridge), to = Math.min(right, top / ridge), native = impl === "native";
      traces.unshift(
          dotted([from, to], [from * ridge, to * ridge], {line: {color, width: 1.6, dash: native ? "dash" : "solid"}}));
      // Beside the line, where it leaves room: the native ridge is the upper one.
      const at = from * (to / from) ** (native ? 0.9 : 0.52);
      if (!MANY)
        names.push({
          showarrow: false,
          text: `${native ? "native ridge" : "ridge"} ${significant(ridge)}`,
          x: Math.log10(native ? at : right),
          y: Math.log10(at * ridge),
          xanchor: "right",
          yanchor: native ? "bottom" : "top",
          font: {size: 12, color: css("--soft")}
        });
    }
  }
  const xticks = powers(left, right, 4), yticks = powers(bottom, top, 10);
  return {
    traces,
    layout: layout(
        axis("bytes a cached token", {
          type: "log",
          range: [Math.log10(left), Math.log10(right)],
          tickvals: xticks,
          ticktext: xticks.map((v) => bytes(v).replace(" bytes", " B"))
        }),
        axis("work for it, FLOP", {
          type: "log",
          range: [Math.log10(bottom), Math.log10(top)],
          tickvals: yticks,
          ticktext: yticks.map(flopWords)
        }),
        {annotations: names})
  };
}

function flopWords(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (value >= size) return `${+ (value / size).toPrecision(3)} ${unit}`;
  return `${value}`;
}

function timeAxis(values) {
  const low = Math.min(...values) / 1.6, high = Math.max(...values) * 1.6, tens = powers(low, high, 10);
  const ticks = tens.length > 1 ?
      tens :
      powers(low / 10, high, 10).flatMap((v) => [v, 2 * v, 5 * v]).filter((v) => v >= low && v <= high);
  return axis("", {
    type: "log",
    range: [Math.log10(low), Math.log10(high)],
    tickvals: ticks,
    ticktext: ticks.map((v) => duration(v).replace(/\.0+ /, " "))
  });
}

// Time of one new token over the context, every form that was measured, on one machine.
function formTimeChart(list, storage, machine) {
  const sets =
      list.map(
              (form) =>
                  [form, oneToken(latentRows(form, timedBy(form), storage)).filter((row) => row.machine === machine)])
          .filter(([, rows]) => rows.length);
  const traces = sets.map(
      ([form, rows]) =>
          line(rows, (row) => row.ns, css(form.color), {line: {color: css(form.color), width: 2, dash: form.dash}}));
  const all = sets.flatMap(([, rows]) => rows);
  return {traces, layout: layout(contextAxis(all), timeAxis(all.map((row) => row.ns)))};
}

const severalContexts = (list, storage, machine) => list.some(
    (form) => unique(oneToken(latentRows(form, timedBy(form), storage))
                         .filter((row) => row.machine === machine)
                         .map((row) => row.T))
                  .length > 1);

// Where the paired ratio reconstruct / absorbed falls to 1 over the chunk length: between two measured lengths, on
// logarithms.
function overtakes(rows) {
  const sorted = rows.filter((row) => row.trade !== null).sort((a, b) => a.chunk - b.chunk);
  for (let i = 0; i < sorted.length; i++) {
    const here = sorted[i];
    if (here.trade > 1) continue;
    if (i === 0) return {at: here.chunk, exact: false, sorted};
    const before = sorted[i - 1], log = Math.log;
    const share = log(before.trade) / (log(before.trade) - log(here.trade));
    return {at: Math.exp(log(before.chunk) + share * (log(here.chunk) - log(before.chunk))), exact: true, sorted};
  }
  return {at: null, exact: false, sorted};
}

// Time a new token over the length of the chunk; the line between the two forms is where they take as long.
function chunkChart(list, storage, machine, T) {
  const sets = list.filter((form) => form.timed || form.counts === FORMS.reconstruct.counts)
                   .map(
                       (form) =>
                           [form,
                            latentRows(form, timedBy(form), storage)
                                .filter((row) => row.machine === machine && row.T === T)
                                .sort((a, b) => a.chunk - b.chunk)])
                   .filter(([, rows]) => rows.length);
  const each = (row) => row.ns / row.chunk;
  const traces = sets.map(([form, rows]) => ({
                            type: "scatter",
                            mode: "lines+markers",
                            x: rows.map((row) => row.chunk),
                            y: rows.map(each),
                            customdata: rows,
                            text: rows.map((row) => `${duration(each(row))} a new token<br>${hoverText(row)}`),
                            hovertemplate: "%{text}<extra></extra>",
                            line: {color: css(form.color), width: 2, dash: form.dash},
                            marker: {color: css(form.color), size: 6.5}
                          }));
  const all = sets.flatMap(([, rows]) => rows);
  const lengths = unique(all.map((row) => row.chunk)).sort(ascending);
  const {at, exact} = overtakes(all.filter((row) => FORMS.reconstruct.counts(row) && row.impl === "kvroof"));
  const range = [Math.log10(lengths[0]) - 0.1, Math.log10(lengths[lengths.length - 1]) + 0.1];
  return {
    traces,
    layout: layout(
        axis("new tokens in one call, n", {type: "log", range, tickvals: lengths, ticktext: lengths.map(String)}),
        timeAxis(all.map(each)),
        at && exact ? {
          shapes: [{
            type: "line",
            yref: "paper",
            y0: 0,
            y1: 1,
            x0: at,
            x1: at,
            line: {color: css("--faint"), width: 1.4, dash: "dot"}
          }],
          annotations: [{
            showarrow: false,
            text: `n = ${at.toFixed(0)}`,
            x: Math.log10(at),
            y: 1,
            yref: "paper",
            xanchor: "right",
            yanchor: "top",
            xshift: -5,
            font: {size: 12, color: css("--soft")}
          }]
        } :
                      {})
  };
}

// Contexts at which both forms were measured for several chunk lengths.
function chunkContexts(storage, machine) {
  const form = LATENT_FORMS.find((f) => f.counts === FORMS.reconstruct.counts && f.impl === "kvroof");
  const rows = latentRows(form, form.counts, storage).filter((row) => row.machine === machine && row.trade !== null);
  return unique(rows.map((row) => row.T))
      .filter((T) => unique(rows.filter((row) => row.T === T).map((row) => row.chunk)).length > 1)
      .sort(ascending);
}

const TRADE_COLUMNS = [
  ["form", (f) => f.form.name],
  ["machine", (f) => (MANY ? DATA[f.row.machine].name : null)],
  ["bytes a token", (f) => bytes(Math.round(f.row.bytes / f.row.T)), true],
  ["against MLA", (f) => (f.cache ? `${significant(f.row.bytes / f.row.T / f.cache)}×` : ""), true],
  ["work a token", (f) => `${flopWords(f.row.flops / f.row.T)}FLOP`, true],
  ["FLOP/byte", (f) => significant(f.row.flops / f.row.bytes), true],
  ["ridge", (f) => (f.ridge ? significant(f.ridge) : ""), true],
  ["bound by", (f) => (f.ridge ? (f.row.flops / f.row.bytes > f.ridge ? "work" : "bytes") : "")],
  ["crosses its ridge", (f) => crossing(f)],
  ["of attainable", (f) => (f.row.attain === null ? "" : f.row.attain.toFixed(2)), true],
];

// n queries of a chunk use each byte n times: the length at which work begins to bind.
function crossing({row, ridge}) {
  if (!ridge) return "";
  const n = Math.ceil(ridge / (row.flops / row.bytes));
  return n <= 1 ? "at any chunk length" : `with ${n} tokens a call`;
}

function tradeLines(list, storage) {
  const lines = [];
  for (const machine of filter.machines) {
    const found =
        list.map((form) => ({
                   form,
                   row: longest(
                       oneToken(latentRows(form, form.counts, storage)).filter((row) => row.machine === machine))
                 }))
            .filter(({row}) => row);
    const mla = found.find(({form}) => form.counts === FORMS.absorbed.counts);
    for (const {form, row} of found)
      lines.push({form, row, ridge: ridgeOf(row), cache: mla ? mla.row.bytes / mla.row.T : null});
  }
  return lines;
}

// What a cached token takes in a cache object of each kind, as measured from the objects.
function savedWords(storage) {
  const row = LATENT_ROWS.find((r) => r.kernel === "mla_absorbed" && r.storage === storage && r.token && r.replaced);
  if (!row) return [];
  const times = (row.replaced / row.token).toFixed(1);
  return [`One cached token of a layer takes ${row.token} bytes, the K and V rows of 128 heads that it replaces ${
      row.replaced}: ${times}×, measured from cache objects of both kinds.`];
}

function tradeWords(storage) {
  return [...filter.machines].flatMap((machine) => chunkContexts(storage, machine).map((T) => {
    const form = LATENT_FORMS.find((f) => f.counts === FORMS.reconstruct.counts && f.impl === "kvroof");
    const {at, exact, sorted} =
        overtakes(latentRows(form, form.counts, storage).filter((row) => row.machine === machine && row.T === T));
    const where = `${MANY ? `${DATA[machine].name}: ` : ""}T = ${T}, ${storage}: `;
    const last = sorted[sorted.length - 1];
    if (at === null)
      return `${where}absorbed is faster at every measured chunk length, up to n = ${last.chunk} (reconstruct takes ${
          significant(last.trade)}× there).`;
    if (!exact) return `${where}reconstruct is faster at every measured chunk length, from n = ${at}.`;
    return `${where}reconstruct overtakes absorbed at a chunk of about ${at.toFixed(0)} tokens (paired: ${
        sorted.map((row) => `${significant(row.trade)}× at n = ${row.chunk}`).join(", ")}).`;
  }));
}

const latent = {
  storage: null
};

function drawLatent() {
  const some = LATENT_ROWS.some((row) => row.kernel.startsWith("mla_"));
  el("latent-section").hidden = !some;
  if (!some) return;
  const list =
      LATENT_FORMS.filter((form) => latentRows(form, timedBy(form)).length || latentRows(form, form.counts).length);
  const storages =
      STORAGES.filter((s) => LATENT_ROWS.some((row) => row.kernel.startsWith("mla_") && row.storage === s));
  const rich = (s) => list.filter((form) => latentRows(form, form.counts, s).length).length +
      10 * [...filter.machines].some((machine) => chunkContexts(s, machine).length);
  if (!storages.includes(latent.storage))
    latent.storage = [...storages].sort((a, b) => rich(b) - rich(a) || STORAGES.indexOf(b) - STORAGES.indexOf(a))[0];
  const storage = latent.storage;
  el("latent-controls")
      .replaceChildren(...[control("storage", storages.map((s) => [s, s]), (s) => s === storage, (s) => {
                         latent.storage = s;
                       })].filter(Boolean));
  const marks = STORAGES.filter((s) => storages.includes(s)).map((s) => [swatch(css("--soft"), SYMBOLS[s], "0 99"), s]);
  const machines = [...filter.machines];
  legend("latent-legend", [
    ...list.map((form) => [swatch(css(form.color), "", form.dash === "dash" ? "6 3" : ""), form.name]), ...marks,
    ...(MANY ? machines.map((m) => [swatch(css(DATA[m].color), "", ""), `ridge of ${DATA[m].name}`]) : [])
  ]);
  const of = (machine) => (MANY ? `: ${DATA[machine].name}` : "");
  panels("latent", [
    {title: "Bytes and work of one cached token", chart: tradeChart(list)},
    ...machines.filter((m) => severalContexts(list, storage, m))
        .map((m) => ({title: `Time of one new token, ${storage}${of(m)}`, chart: formTimeChart(list, storage, m)})),
    ...machines.flatMap(
        (m) => chunkContexts(storage, m).slice(-2).map((T) => ({
                                                         title: `Time a token of a chunk, T = ${T}, ${storage}${of(m)}`,
                                                         chart: chunkChart(list, storage, m, T)
                                                       })))
  ]);
  const columns = TRADE_COLUMNS.filter(([name]) => MANY || name !== "machine");
  const lines = tradeLines(list, storage);
  el("latent-table").innerHTML = `<thead><tr>${
      columns.map(([name, , number]) => `<th class="${number ? "number" : ""}">${name}</th>`)
          .join("")}</tr></thead><tbody>${
      lines
          .map(
              (f) => `<tr>${
                  columns
                      .map(([, value,
                             number]) => `<td class="${number ? "number" : ""}">${escapeHtml(value(f) ?? "")}</td>`)
                      .join("")}</tr>`)
          .join("")}</tbody>`;
  const words = tradeWords(storage);
  const unknown = `Chunks of several tokens were not measured in both forms at ${
      storage} here, so where reconstruct overtakes absorbed is not known.`;
  el("latent-says").innerHTML =
      [...savedWords(storage), ...(words.length ? words : [unknown])]
          .map((text) => `<p class="note">${escapeHtml(text)}</p>`)
          .join("");
}
