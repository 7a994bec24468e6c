// The embedded result files as row objects, and how numbers are put into words.
"use strict";

const DATA = (() => {
  const raw = JSON.parse(document.getElementById("data").textContent);
  const texts = new Set([
    "kernel", "storage", "cache", "threads", "impl", "tuple", "status", "reason", "isa", "implementation", "variant",
    "shape"
  ]);
  raw.machines.forEach((machine, index) => {
    const names = Object.keys(machine.rows);
    const count = names.length ? machine.rows[names[0]].length : 0;
    const rows = [];
    for (let i = 0; i < count; i++) {
      const row = {machine: index};
      for (const name of names) {
        const value = machine.rows[name][i];
        row[name] = value !== null && texts.has(name) ? raw.strings[value] : value;
      }
      rows.push(row);
    }
    machine.rows = rows;
    machine.color = `--m${index % 8}`;
    machine.symbol = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "hexagon"][index % 8];
  });
  return raw.machines;
})();

const STORAGES = ["f32", "f16", "bf16", "int8"];
const IMPLS = {
  kvroof: "kvroof",
  onednn: "oneDNN",
  onednn_graph: "oneDNN Graph",
  scalar: "scalar loops",
  scalar_vectorized: "loops, compiler-vectorized",
};
const SYMBOLS = {
  f32: "circle",
  f16: "square",
  bf16: "diamond",
  int8: "triangle-up"
};
const DASHES = {
  kvroof: "solid",
  onednn: "dash",
  onednn_graph: "dashdot",
  scalar: "solid",
  scalar_vectorized: "dot"
};

const significant = (value) => value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);

function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (ns >= size) return `${significant(ns / size)} ${unit}`;
  }
  return `${ns.toFixed(0)} ns`;
}

function bytes(value) {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${+ (value / size).toPrecision(4)} ${unit}`;
  }
  return `${value} bytes`;
}

const tokens = (value) => (value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : `${value}`);
const threadWords = (row) => (row.threads === "1" ? "1 thread" : `all ${DATA[row.machine].threads} threads`);
const rowTitle = (row) => `${row.variant}, ${row.storage}, T = ${row.T}, ${row.cache}, ${threadWords(row)}`;
const command = (row) => `tools/kvroof sweep --filter '^${row.tuple.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$'`;

// Lines that say everything about a row, without its command.
function rowLines(row) {
  const lines = [];
  if (row.ns === null) return [`${row.status.replace("_", " ")}: ${row.reason}`];
  if (row.read !== null) {
    const spread =
        row.low !== null ? ` (quartiles ${row.low.toFixed(2)} to ${row.high.toFixed(2)}, ${row.n} pairs)` : "";
    lines.push(`${row.read.toFixed(2)} of the read roof${spread}`);
  }
  if (row.attain !== null) lines.push(`${row.attain.toFixed(2)} of attainable`);
  lines.push(`${duration(row.ns)}, ${significant(row.gb ?? row.bytes / row.ns)} GB/s, ${
      significant(row.gflops ?? row.flops / row.ns)} GFLOP/s`);
  if (row.roof !== null) {
    lines.push(
        `read roof ${significant(row.roof)} GB/s` +
        (row.compute !== null ? `, compute roof ${significant(row.compute)} GFLOP/s` : ""));
  }
  if (row.impl !== "kvroof") {
    if (row.ratio !== null)
      lines.push(`${significant(row.ratio)}× the time of kvroof (${significant(row.ratio_low)} to ${
          significant(row.ratio_high)})`);
    if (row.implementation) lines.push(row.implementation);
  }
  if (row.above) lines.push("above its roof: the roof is wrong");
  if (row.status === "unstable") lines.push(`unstable: ${row.reason}`);
  return lines;
}

const escapeHtml = (text) =>
    String(text).replace(/[&<>"]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);

// A command broken at its slashes, so that a hover box stays narrow.
function wrapped(text, width) {
  const lines = [""];
  for (const part of text.split(/(?<=[/ ])/)) {
    if (lines[lines.length - 1].length + part.length > width) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines;
}

function hoverText(row) {
  const machine = DATA.length > 1 ? [DATA[row.machine].name] : [];
  const narrow = window.innerWidth < 640;
  return [
    `<b>${escapeHtml(rowTitle(row))}</b>`, ...machine.map(escapeHtml),
    ...(row.impl === "kvroof" ? [] : [escapeHtml(IMPLS[row.impl] ?? row.impl)]), ...rowLines(row).map(escapeHtml),
    ...(narrow ? [] :
                 wrapped(command(row), 64).map((line) => `<span style="font-size:10px">${escapeHtml(line)}</span>`))
  ].join("<br>");
}
