"use strict";
// Pure functions: report data in, Plotly traces and layouts out. page.js puts them on the page.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const policyColour = (i) => css(`--p${i % 12}`);
const dash = (i) => (i % 2 ? "7px,4px" : "solid"); // equal curves stay visible both
const PHASES = ["prefill", "decode", "mixed"];

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1) return `${Number(value.toPrecision(3))} s`;
  if (value >= 1e-3) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${Number((value * 1e6).toPrecision(3))} µs`;
}

function layoutOf(extra) {
  const line = css("--line"), text = css("--text"), muted = css("--muted");
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: text },
    margin: { l: 52, r: 14, t: 26, b: 36 }, showlegend: false, hovermode: "x unified", bargap: 0,
    hoverlabel: { bgcolor: css("--card"), bordercolor: line, font: { color: text, size: 12 } },
  };
  const layout = { ...base, ...extra };
  for (const key of Object.keys(layout)) {
    if (/^[xy]axis\d*$/.test(key)) {
      layout[key] = { gridcolor: line, linecolor: line, zeroline: false, tickfont: { color: muted }, ...layout[key] };
      if (layout[key].title) layout[key].title = { font: { color: muted, size: 12 }, standoff: 6, ...layout[key].title };
    }
  }
  return layout;
}

function heading(text, paperY) {
  return { text: `<b>${text}</b>`, xref: "paper", yref: "paper", x: 0, y: paperY, xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12 } };
}

// ---- latency CDFs: share <= x, or (tail) share > x on a log axis
function cdfChart(title, key, data, shown, tail, width) {
  const traces = [];
  data.runs.forEach((run, i) => {
    const x = run.cdf[key];
    if (!x || !shown[i]) return;
    const y = data.shares.map((share) => (tail ? (share < 1 ? 1 - share : null) : share));
    traces.push({
      type: "scatter", mode: "lines", x, y, name: run.policy, line: { color: policyColour(i), width: 2, dash: dash(i) },
      text: x.map(seconds), hovertemplate: "%{text}<extra>" + escapeHtml(run.policy) + "</extra>",
    });
  });
  const values = traces.flatMap((trace) => trace.x).filter((v) => v > 0);
  const axis = logTicks(Math.min(...values), Math.max(...values), width / 65);
  const layout = layoutOf({
    hovermode: "y unified", annotations: [heading(title, 1.01)], margin: { l: 52, r: 14, t: 26, b: 28 },
    xaxis: { type: "log", ...axis, hoverformat: ".3s" },
    yaxis: tail
      ? { type: "log", range: [-4.3, 0], tickvals: [1, 0.1, 0.01, 0.001, 0.0001], ticktext: ["all", "10 %", "1 %", "0.1 %", "0.01 %"] }
      : { range: [0, 1.02], tickvals: [0, 0.25, 0.5, 0.75, 0.9, 1], ticktext: ["0", "25 %", "50 %", "75 %", "90 %", "100 %"] },
  });
  return { traces, layout };
}

function logTicks(low, high, most) {
  if (!(low > 0 && Number.isFinite(high))) return {};
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const tickvals = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      tickvals.push(...steps.map((step) => step * 10 ** e).filter((v) => v >= low && v <= high));
    }
    if (tickvals.length <= most || steps.length === 1) return { tickvals, ticktext: tickvals.map(seconds), tickangle: 0 };
  }
}

// ---- the whole run: phases, slots and queue, KV
function timelineChart(run) {
  const t = run.timeline, n = t.prefill.length, width = t.end / n;
  const x = Array.from({ length: n }, (_, i) => (i + 0.5) * width);
  const idle = x.map((_, i) => Math.max(0, 1 - t.prefill[i] - t.decode[i] - t.mixed[i]));
  const traces = PHASES.map((phase) => ({
    type: "bar", x, y: t[phase], width: x.map(() => width), name: phase, marker: { color: css(`--${phase}`), line: { width: 0 } },
    hovertemplate: "%{y:.0%}", xaxis: "x", yaxis: "y",
  }));
  traces.push({ type: "bar", x, y: idle, width: x.map(() => width), name: "idle", marker: { color: css("--idle"), line: { width: 0 } }, hovertemplate: "%{y:.0%}" });
  const curve = (y, name, colour, axis, more) => ({
    type: "scatter", mode: "lines", x, y, name, line: { color: colour, width: 1.8, shape: "hvh" }, yaxis: axis, hovertemplate: "%{y:.4~s}", ...more,
  });
  traces.push(curve(t.slots, "slots busy", css("--accent"), "y2", { fill: "tozeroy", fillcolor: fade(css("--accent")) }));
  traces.push(curve(t.waiting, "waiting", css("--p6"), "y4"));
  traces.push(curve(t.kv, "KV cache used", css("--p7"), "y3", { fill: "tozeroy", fillcolor: fade(css("--p7")), hovertemplate: "%{y:.1%}" }));
  const layout = layoutOf({
    barmode: "stack", margin: { l: 52, r: 50, t: 26, b: 36 },
    annotations: [heading("share of time", 1.005), heading(`<span style="color:${css("--accent")}">slots busy</span> (left), <span style="color:${css("--p6")}">waiting</span> (right)`, 0.625), heading(`<span style="color:${css("--p7")}">KV cache used</span>`, 0.265)],
    xaxis: { range: [0, t.end], title: { text: "seconds" }, anchor: "y3", hoverformat: ".2f", showgrid: false },
    yaxis: { domain: [0.71, 1], range: [0, 1], tickformat: ".0%", nticks: 3, fixedrange: true },
    yaxis2: { domain: [0.35, 0.62], rangemode: "tozero", nticks: 5, fixedrange: true },
    yaxis4: { overlaying: "y2", side: "right", tickmode: "auto", range: [0, 1.05 * Math.max(1, ...t.waiting)], nticks: 5, showgrid: false, fixedrange: true },
    yaxis3: { domain: [0, 0.26], range: [0, Math.max(1, ...t.kv) * 1.02], tickformat: ".0%", nticks: 3, fixedrange: true },
  });
  return { traces, layout };
}

// ---- a close-up: iterations one by one, and slots
function closeupChart(run, view) {
  const traces = [];
  PHASES.forEach((phase, kind) => {
    const rows = view.kind.map((k, i) => (k === kind ? i : -1)).filter((i) => i >= 0);
    if (!rows.length) return;
    const gap = css("--card");
    traces.push({
      type: "bar", name: phase, x: rows.map((i) => view.start[i] + view.duration[i] / 2), width: rows.map((i) => view.duration[i]), y: rows.map(() => 1),
      marker: { color: css(`--${phase}`), line: { width: 0.6, color: gap } }, yaxis: "y",
      customdata: rows.map((i) => [view.first + i, seconds(view.duration[i]), view.prefill[i], view.decodes[i], view.waiting[i]]),
      hovertemplate: `<b>${phase}</b> iteration %{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]} prompt tokens<br>%{customdata[3]} decodes<br>%{customdata[4]} waiting<extra></extra>`,
    });
  });
  const steps = (values) => {
    const x = [], y = [];
    view.start.forEach((s, i) => { x.push(s, s + view.duration[i]); y.push(values[i], values[i]); });
    return { x, y };
  };
  const flat = { type: "scatter", mode: "lines", hoverinfo: "skip" };
  traces.push({ ...flat, ...steps(view.prefill), name: "prompt tokens", yaxis: "y2", line: { color: css("--prefill"), width: 1.5 }, fill: "tozeroy", fillcolor: fade(css("--prefill")) });
  traces.push({ ...flat, ...steps(view.decodes), name: "decodes", yaxis: "y4", line: { color: css("--decode"), width: 2 } });
  // bars in lanes: [row, from, to] of what is drawn in one colour
  const laneBars = (name, pieces, marker) => ({
    type: "bar", orientation: "h", name, yaxis: "y3", width: 0.8, marker: { line: { width: 0 }, ...marker },
    y: pieces.map(([r]) => r[0]), base: pieces.map(([, from]) => from), x: pieces.map(([, from, to]) => to - from),
    customdata: pieces.map(([r]) => [r[4], r[5], seconds(r[2] - r[1]), seconds(r[3] - r[2]), r[6] ? `<br>preempted ${r[6]} times` : ""]),
    hovertemplate: `<b>${name}</b><br>prompt %{customdata[0]}, output %{customdata[1]} tokens<br>slot to first token %{customdata[2]}, then %{customdata[3]}%{customdata[4]}<extra></extra>`,
  });
  const still = standstills(view);
  const prefill = [], decoding = [], stalled = [];
  for (const row of view.lanes) {
    const [, admitted, first, end] = row;
    if (first > 0 && admitted < view.span) prefill.push([row, Math.max(admitted, 0), Math.min(first, view.span)]);
    let at = Math.max(first, 0);
    const last = Math.min(end, view.span);
    for (const [from, to] of still) {
      if (to <= at) continue;
      if (from >= last) break;
      if (from > at) decoding.push([row, at, from]);
      stalled.push([row, Math.max(from, at), Math.min(to, last)]);
      at = Math.min(to, last);
    }
    if (at < last) decoding.push([row, at, last]);
  }
  traces.push(laneBars("decode", decoding, { color: css("--decode") }));
  traces.push(laneBars("decode, standing still", stalled, { color: css("--decode"), opacity: 0.28 }));
  traces.push(laneBars("prefill", prefill, { color: css("--prefill") }));
  const lanes = 1 + Math.max(0, ...view.lanes.map((r) => r[0]));
  const most = Math.max(...view.decodes, 1);
  const layout = layoutOf({
    hovermode: "closest", barmode: "overlay", margin: { l: 56, r: 50, t: 26, b: 36 },
    annotations: [heading("iterations", 1.005), heading(`<span style="color:${css("--prefill")}">prompt tokens</span> (left), <span style="color:${css("--decode")}">decodes</span> (right)`, 0.895), heading(`requests in the first ${lanes} slots`, 0.61)],
    xaxis: { range: [0, view.span], title: { text: view.origin ? `seconds after ${seconds(view.origin)}` : "seconds" }, anchor: "y3", showgrid: false },
    yaxis: { domain: [0.935, 1], visible: false, range: [0, 1], fixedrange: true },
    yaxis2: { domain: [0.69, 0.885], rangemode: "tozero", nticks: 4, fixedrange: true },
    yaxis4: { overlaying: "y2", side: "right", tickmode: "auto", range: [0, most * 1.08], nticks: 4, showgrid: false, fixedrange: true },
    yaxis3: { domain: [0, 0.6], range: [lanes - 0.4, -0.6], nticks: 5, showgrid: false, fixedrange: true, title: { text: "slot" } },
  });
  return { traces, layout };
}

// [from, to] of the stretches of prefill-only iterations: decodes stand still meanwhile
function standstills(view) {
  const stretches = [];
  view.kind.forEach((kind, i) => {
    if (kind !== 0) return;
    const from = view.start[i], to = from + view.duration[i], last = stretches[stretches.length - 1];
    if (last && from - last[1] < 1e-4) last[1] = to;
    else stretches.push([from, to]);
  });
  return stretches;
}

// ---- k, N and mode of all policies
function decisionsChart(data, shown, width) {
  const runs = data.runs.map((run, i) => ({ run, i })).filter(({ run, i }) => shown[i] && run.decisions.time.length);
  const withK = runs.some(({ run }) => run.decisions.k.some((k) => k !== null));
  const letters = Math.max(8, Math.min(26, Math.floor(width / 25)));
  const short = (policy) => (policy.length > letters ? `${policy.slice(0, letters - 1)}…` : policy);
  const traces = [];
  runs.forEach(({ run, i }, row) => {
    const d = run.decisions, x = [...d.time, run.timeline.end];
    const line = (y, axis, name) => ({
      type: "scatter", mode: "lines", x, y: [...y, y[y.length - 1]], yaxis: axis, name: run.policy, connectgaps: false,
      line: { color: policyColour(i), width: 2, shape: "hv", dash: dash(i) }, hovertemplate: `${name} = %{y}<extra>${escapeHtml(run.policy)}</extra>`,
    });
    if (withK) traces.push(line(d.k, "y", "k"));
    traces.push(line(d.n, "y2", "N"));
    const starts = d.time.map((t, j) => (j === 0 || d.mode[j] !== d.mode[j - 1] ? j : -1)).filter((j) => j >= 0);
    const ends = starts.map((_, j) => (j + 1 < starts.length ? d.time[starts[j + 1]] : run.timeline.end));
    traces.push({
      type: "bar", orientation: "h", yaxis: "y3", name: run.policy, y: starts.map(() => row), base: starts.map((j) => d.time[j]),
      x: starts.map((j, m) => ends[m] - d.time[j]), width: 0.7, marker: { color: starts.map((j) => modeColour(d.mode[j])), line: { width: 0 } },
      text: starts.map((j, m) => (((ends[m] - d.time[j]) / data.longest) * width > 9 * d.mode[j].length ? d.mode[j] : "")), textposition: "inside", insidetextanchor: "middle", constraintext: "none", textfont: { color: "#fff", size: 11 },
      hovertemplate: starts.map((j) => `${escapeHtml(d.mode[j])} since ${seconds(d.time[j])}<extra>${escapeHtml(run.policy)}</extra>`),
    });
  });
  const height = 90 + (withK ? 2 : 1) * 120 + 26 * runs.length; // pixels
  const strip = (26 * runs.length) / (height - 62), gap = 34 / (height - 62);
  const half = (1 - strip - gap * (withK ? 2 : 1)) / (withK ? 2 : 1);
  const nTop = strip + gap + half;
  const annotations = [heading("N", nTop + 0.005), heading("mode", strip + 0.005)];
  if (withK) annotations.unshift(heading("k", 1.005));
  const layout = layoutOf({
    hovermode: "closest", barmode: "overlay", annotations, height, margin: { l: 20 + 6.6 * Math.max(4, ...runs.map(({ run }) => short(run.policy).length)), r: 14, t: 26, b: 36 },
    xaxis: { range: [0, data.longest], title: { text: "seconds" }, anchor: "y3" },
    ...(withK ? { yaxis: { domain: [1 - half, 1], rangemode: "tozero", nticks: 4, fixedrange: true } } : {}),
    yaxis2: { domain: [strip + gap, nTop], rangemode: "tozero", nticks: 4, fixedrange: true },
    yaxis3: { domain: [0, strip], range: [runs.length - 0.5, -0.5], tickvals: runs.map((_, row) => row), ticktext: runs.map(({ run }) => escapeHtml(short(run.policy))), fixedrange: true, showgrid: false },
  });
  return { traces, layout };
}

const MODES = { mixed: "--mixed", exclusive: "--p5", static: "--p10" };
const modeColour = (mode) => css(MODES[mode] || "--accent");
const escapeHtml = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function fade(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},0.16)`;
}
