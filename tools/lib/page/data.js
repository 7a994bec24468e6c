// The embedded result files as row objects, and how numbers are put into words.
"use strict";

const TEXTS = [
  "kernel", "storage", "cache", "threads", "impl", "tuple", "status", "reason", "isa", "implementation", "variant",
  "shape", "mode", "above"
];

// A column is one string: values in a row, nothing for null, "value*count" for the same value many times.
function unpack(text, convert) {
  const values = [];
  for (const word of text.split(",")) {
    const star = word.indexOf("*");
    const plain = star < 0 ? word : word.slice(0, star);
    const value = plain === "" ? null : convert(plain);
    for (let i = star < 0 ? 1 : +word.slice(star + 1); i > 0; --i) values.push(value);
  }
  return values;
}

const DATA = (() => {
  const raw = JSON.parse(document.getElementById("data").textContent);
  raw.machines.forEach((machine, index) => {
    const names = Object.keys(machine.rows);
    const columns = names.map(
        (name) => unpack(machine.rows[name], TEXTS.includes(name) ? (word) => raw.strings[word] : Number));
    machine.rows = (columns[0] ?? []).map((_, i) => {
      const row = {machine: index};
      names.forEach((name, column) => { row[name] = columns[column][i]; });
      row.gb = row.ns !== null && row.bytes ? row.bytes / row.ns : null;
      row.gflops = row.ns !== null && row.flops ? row.flops / row.ns : null;
      if (row.tuple && !row.tuple.includes("/isa:")) row.tuple += `/isa:${machine.isa}`;
      return row;
    });
    machine.color = `--m${index % 8}`;
    machine.symbol = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "hexagon"][index % 8];
  });
  return raw.machines;
})();

const STORAGES = ["f32", "f16", "bf16", "int8"];
const IMPLS = {
  kvroof: "kvroof",
  native: "kvroof, native mode",
  onednn: "oneDNN",
  onednn_graph: "oneDNN Graph",
  scalar: "scalar loops",
  scalar_vectorized: "loops, compiler-vectorized",
};
const MODES = {kvroof: "reproducible", native: "native"};
const SYMBOLS = {
  f32: "circle",
  f16: "square",
  bf16: "diamond",
  int8: "triangle-up"
};
const DASHES = {
  kvroof: "solid",
  native: "solid",
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
const rowTitle = (row) =>
    [row.variant, row.storage, `T = ${row.T}`, row.cache, threadWords(row), row.mode].filter(Boolean).join(", ");
const isOwn = (row) => row.impl === "kvroof" || row.impl === "native";

const ALL = DATA.flatMap((machine) => machine.rows);
const OWN = ALL.filter(isOwn);
const MANY = DATA.length > 1;
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
  if (row.native !== null) {
    lines.push(`${significant(row.native)}× the time of reproducible mode (${significant(row.native_low)} to ${
        significant(row.native_high)})`);
  }
  if (!isOwn(row)) {
    if (row.ratio !== null)
      lines.push(`${significant(row.ratio)}× the time of kvroof (${significant(row.ratio_low)} to ${
          significant(row.ratio_high)})`);
    if (row.implementation) lines.push(row.implementation);
  }
  if (row.above) lines.push(`above its ${row.above} roof: that roof is wrong`);
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

// Several charts show the same row: its text is made once for a width.
function hoverText(row) {
  const narrow = window.innerWidth < 640;
  if (row.hover === undefined || row.narrow !== narrow)
    Object.assign(row, {narrow, hover: hoverLines(row, narrow).join("<br>")});
  return row.hover;
}

function hoverLines(row, narrow) {
  const machine = MANY ? [DATA[row.machine].name] : [];
  return [
    `<b>${escapeHtml(rowTitle(row))}</b>`, ...machine.map(escapeHtml),
    ...(isOwn(row) ? [] : [escapeHtml(IMPLS[row.impl] ?? row.impl)]), ...rowLines(row).map(escapeHtml),
    ...(narrow ? [] :
                 wrapped(command(row), 64).map((line) => `<span style="font-size:10px">${escapeHtml(line)}</span>`))
  ];
}
