// What each chart shows: functions from the filter to plotly traces and a layout. No chart knows about another.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const unique = (values) => [...new Set(values)];
const FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Liberation Sans', sans-serif";
const ascending = (a, b) => a - b;

function axis(title, more) {
  return {
    title: {text: title, font: {size: 12}, standoff: 8},
    gridcolor: css("--grid"),
    zeroline: false,
    linecolor: css("--line"),
    tickfont: {size: 11.5},
    automargin: true,
    fixedrange: true,
    ...more
  };
}

function layout(x, y, more) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: {l: 48, r: 16, t: 10, b: 42},
    showlegend: false,
    font: {family: FONT, color: css("--soft"), size: 12},
    hoverlabel: {
      bgcolor: css("--card"),
      bordercolor: css("--faint"),
      font: {color: css("--ink"), size: 12, family: FONT},
      align: "left",
      namelength: 0
    },
    hovermode: "closest",
    dragmode: false,
    xaxis: x,
    yaxis: y,
    ...more,
  };
}

function contextAxis(rows) {
  const values = unique(rows.map((row) => row.T)).sort(ascending);
  const step = Math.max(1, Math.ceil(values.length / 6));
  const shown = values.filter((_, i) => (values.length - 1 - i) % step === 0);
  const range =
      values.length ? [Math.log10(values[0]) - 0.12, Math.log10(values[values.length - 1]) + 0.12] : undefined;
  return axis("context length T, tokens", {type: "log", tickvals: shown, ticktext: shown.map(tokens), range});
}

const byContext = (rows) => [...rows].sort((a, b) => a.T - b.T);

function line(rows, y, color, more) {
  const sorted = byContext(rows);
  return {
    type: "scatter",
    mode: "lines+markers",
    x: sorted.map((row) => row.T),
    y: sorted.map(y),
    customdata: sorted,
    text: sorted.map(hoverText),
    hovertemplate: "%{text}<extra></extra>",
    line: {color, width: 2},
    marker: {color, size: 6.5},
    ...more
  };
}

function whiskers(rows, y, low, high, color) {
  const sorted = byContext(rows);
  return {
    type: "data",
    symmetric: false,
    array: sorted.map((row) => Math.max(0, high(row) - y(row))),
    arrayminus: sorted.map((row) => Math.max(0, y(row) - low(row))),
    color,
    thickness: 1.1,
    width: 3
  };
}

const dotted = (x, y, more) => ({
  type: "scatter",
  mode: "lines",
  x,
  y,
  hoverinfo: "skip",
  line: {color: css("--faint"), width: 1.4, dash: "dot"},
  ...more
});

// A line is one storage on one machine; its colour tells the machine where there are several, else the storage.
function series(rows) {
  const many = unique(rows.map((row) => row.machine)).length > 1;
  const groups = new Map();
  for (const row of rows) {
    const key = `${row.machine} ${row.storage}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups.values()].map((members) => ({
                                    rows: members,
                                    color: css(many ? DATA[members[0].machine].color : `--${members[0].storage}`),
                                    symbol: many ? DATA[members[0].machine].symbol : SYMBOLS[members[0].storage]
                                  }));
}

// A fraction above this is a roof gone wrong: it is drawn at the edge, and its hover says what it is.
const HIGHEST = 1.5;

const level = (y) => ({
  type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: {color: css("--faint"), width: 1.4, dash: "dot"}
});

// Rows above their roof get a rim in the colour of a warning; those off the scale stand at its edge.
function rims(rows, value, top) {
  const sorted = byContext(rows);
  return {
    color: sorted.map((row) => css(row.above || value(row) > top ? "--warn" : "--card")),
    width: sorted.map((row) => row.above || value(row) > top ? 2 : 0)
  };
}

function fractionChart(rows, filter) {
  const value = (row) => row[filter.fraction];
  const shown = rows.filter((row) => value(row) !== null);
  const peak = (row) => (filter.fraction === "read" ? row.high ?? row.read : row.attain) * 1.04;
  const top = Math.min(HIGHEST, Math.max(1.08, ...shown.map(peak)));
  const drawn = (row) => Math.min(value(row), top * 0.99);
  const traces = series(shown).map(({rows: members, color, symbol}) => line(members, drawn, color, {
    marker: {color, symbol, size: 7, line: rims(members, value, top)},
    ...(filter.fraction === "read" && {
      error_y: whiskers(members, drawn, (r) => r.low ?? r.read, (r) => Math.min(r.high ?? r.read, top), color)
    })
  }));
  const label = filter.fraction === "read" ? "of the read roof" : "of attainable";
  const y = axis(label, {range: [0, top], tickformat: ".1f", dtick: 0.2});
  return {traces, layout: layout(contextAxis(rows), y, {shapes: [level(1)]})};
}

// The roofs of one machine for this many threads: memory, the best that a cache gave, and f32 FMA.
function roofsOf(machine, threads) {
  const own = machine.roofs.filter((roof) => roof.threads === threads);
  const reads = own.filter((roof) => roof.kind === "roof_read" && roof.gb);
  const cold = reads.filter((roof) => roof.cache === "cold").sort((a, b) => b.bytes - a.bytes)[0];
  const warm = reads.filter((roof) => roof.cache === "warm").sort((a, b) => b.gb - a.gb)[0];
  const compute = own.filter((roof) => roof.kind === "roof_compute" && roof.gflops);
  const flat = compute.find((roof) => roof.op === "fma_f32" && roof.isa === machine.isa) ??
      compute.find((roof) => roof.op === "fma_f32") ?? compute[0];
  return {cold, warm, flat};
}

// width and height of the plot in pixels: a roof's name is written along its line.
function rooflineChart(rows, filter, width, height) {
  const shown = rows.filter((row) => row.ns !== null && row.bytes && row.flops);
  const x = (row) => row.flops / row.bytes;
  const y = (row) => row.gflops ?? row.flops / row.ns;
  const machines = unique(shown.map((row) => row.machine));
  const many = machines.length > 1;
  const roofs = machines.map(
      (index) => ({...roofsOf(DATA[index], filter.threads), color: css(many ? DATA[index].color : "--soft")}));
  const left = Math.min(0.25, ...shown.map(x)) / 1.6;
  const right =
      Math.max(32, ...shown.map(x), ...roofs.map(({flat, cold}) => (flat && cold ? flat.gflops / cold.gb : 0))) * 2;
  const traces = [], labels = [];
  let highest = Math.max(1, ...shown.map(y)), lowest = Math.min(1e9, ...shown.map(y));
  for (const {cold, warm, flat, color} of roofs) {
    const reads = [
      [cold, "solid", "memory"], [!many || filter.cache === "warm" ? warm : undefined, "dash", "cache, best seen"]
    ].filter(([roof]) => roof);
    for (const [roof, dash, word] of reads) {
      const end = flat ? Math.min(right, flat.gflops / roof.gb) : right;
      traces.push(dotted([left, end], [left * roof.gb, end * roof.gb], {line: {color, width: 1.6, dash}}));
      lowest = Math.min(lowest, left * roof.gb);
      labels.push(
          {x: Math.sqrt(left * Math.min(end, left * 12)), roof: roof.gb, text: `${word} ${significant(roof.gb)} GB/s`});
    }
    if (flat) {
      const start = reads.length ? flat.gflops / Math.max(...reads.map(([roof]) => roof.gb)) : left;
      traces.push(dotted([start, right], [flat.gflops, flat.gflops], {line: {color, width: 1.6, dash: "solid"}}));
      highest = Math.max(highest, flat.gflops);
      labels.push({x: right, flat: flat.gflops, text: `f32 FMA ${significant(flat.gflops)} GFLOP/s`});
    }
  }
  for (const {rows: members, color, symbol} of series(shown)) {
    const sizes = members.map((row) => 6 + 1.15 * Math.max(0, Math.log2(row.T / 512)));
    traces.push({
      type: "scatter",
      mode: "markers",
      x: members.map(x),
      y: members.map(y),
      customdata: members,
      text: members.map(hoverText),
      hovertemplate: "%{text}<extra></extra>",
      marker: {color, symbol, size: sizes, opacity: 0.85, line: {color: css("--card"), width: 1}}
    });
  }
  const log = Math.log10, bottom = lowest / 1.5, top = highest * 2;
  const slope = (height - 52) / log(top / bottom) / ((width - 64) / log(right / left));  // of a read roof, in pixels
  const names = many ? [] : labels.map(({x: at, roof, flat, text}) => ({
                                         showarrow: false,
                                         text,
                                         font: {size: 12, color: css("--soft")},
                                         x: log(at),
                                         yanchor: "bottom",
                                         ...(flat ? {y: log(flat), xanchor: "right"} : {
                                           y: log(at * roof),
                                           textangle: (-Math.atan(slope) * 180) / Math.PI,
                                           xanchor: "center",
                                           yanchor: "middle",
                                           xshift: -10 * Math.sin(Math.atan(slope)),
                                           yshift: 10 * Math.cos(Math.atan(slope))
                                         })
                                       }));
  const xticks = powers(left, right, 4), yticks = powers(bottom, top, 10);
  return {
    traces,
    layout: layout(
        axis("work per byte of cache, FLOP/byte", {
          type: "log",
          range: [log(left), log(right)],
          tickvals: xticks,
          ticktext: xticks.map((v) => (v < 1 ? `1/${1 / v}` : `${v}`))
        }),
        axis("GFLOP/s", {
          type: "log",
          range: [log(bottom), log(top)],
          tickvals: yticks,
          ticktext: yticks.map((v) => `${+ v.toPrecision(2)}`)
        }),
        {annotations: names})
  };
}

function powers(low, high, base) {
  const list = [];
  for (let value = base ** Math.floor(Math.log(low) / Math.log(base)); value <= high; value *= base)
    if (value >= low * 0.999) list.push(+value.toPrecision(6));
  return list;
}

// all: the rows of every panel beside this one, which share the scale.
function timeChart(rows, all) {
  const measured = rows.filter((row) => row.ns !== null);
  const traces = [];
  const own = byContext(measured.filter((row) => row.impl === "kvroof" && row.roof));
  if (own.length) traces.push(dotted(own.map((row) => row.T), own.map((row) => row.bytes / row.roof)));
  for (const impl of Object.keys(IMPLS).reverse()) {
    const members = measured.filter((row) => row.impl === impl);
    if (!members.length) continue;
    const color = css(`--${impl}`), own = impl === "kvroof" || impl === "native";
    traces.push(line(
        members, (row) => row.ns, color,
        {line: {color, dash: DASHES[impl], width: own ? 2.6 : 1.7}, marker: {color, size: own ? 7 : 5}}));
  }
  const times =
      all.filter((row) => row.ns !== null).flatMap((row) => [row.ns, row.roof ? row.bytes / row.roof : row.ns]);
  const low = Math.min(...times) / 1.6, high = Math.max(...times) * 1.6;
  const ticks = powers(low, high, 10);
  return {
    traces,
    layout: layout(contextAxis(rows), axis("", {
                     type: "log",
                     range: [Math.log10(low), Math.log10(high)],
                     tickvals: ticks,
                     ticktext: ticks.map((v) => duration(v).replace(/\.0+ /, " "))
                   }))
  };
}

function halvingChart(rows) {
  const shown = rows.filter((row) => row.half !== null && row.storage !== "f32");
  const top = Math.min(HIGHEST, Math.max(1.05, ...shown.map((row) => row.half_high * 1.04)));
  const drawn = (row) => Math.min(row.half, top * 0.99);
  const traces = [];
  for (const storage of STORAGES.slice(1)) {
    const members = shown.filter((row) => row.storage === storage);
    if (!members.length) continue;
    const color = css(`--${storage}`);
    traces.push(line(members, drawn, color, {
      marker: {color, symbol: SYMBOLS[storage], size: 7, line: rims(members, (row) => row.half, top)},
      error_y: whiskers(members, drawn, (r) => r.half_low, (r) => Math.min(r.half_high, top), color),
      text: byContext(members).map((row) => `${row.half.toFixed(3)} of the time at f32<br>${hoverText(row)}`)
    }));
  }
  const wide = new Map(rows.filter((row) => row.storage === "f32").map((row) => [row.T, row.bytes]));
  const share = (row) => +(row.bytes / wide.get(row.T)).toPrecision(3);
  const shares = unique(shown.filter((row) => wide.has(row.T)).map(share));
  const y = axis("time over f32", {range: [0, top], tickformat: ".2f", dtick: 0.25});
  return {traces, layout: layout(contextAxis(shown), y, {shapes: shares.map(level)})};
}
