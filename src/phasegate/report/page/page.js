// Puts the charts on the page and reacts to the reader.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { shown: data.runs.map(() => true), tail: false, policy: data.featured, window: "middle" };
const CONFIG = { responsive: true, displayModeBar: false, doubleClick: "reset" };
const CDFS = [["TTFT: arrival to first token", "ttft"], ["ITL: between tokens", "itl"], ["TPOT: per output token", "tpot"], ["E2E: arrival to last token", "e2e"]];

const element = (id) => document.getElementById(id);
const draw = (node, chart) => Plotly.react(node, chart.traces, chart.layout, CONFIG);

for (const [, key] of CDFS) {
  const node = document.createElement("div");
  node.id = `cdf-${key}`;
  element("cdfs").append(node);
}

function drawCdfs() {
  for (const [title, key] of CDFS) {
    const node = element(`cdf-${key}`);
    draw(node, cdfChart(title, key, data, state.shown, state.tail, node.clientWidth));
  }
}

function drawTimeline() {
  draw(element("timeline"), timelineChart(data.runs[state.policy]));
}

function drawCloseup() {
  const run = data.runs[state.policy], views = run.windows;
  const view = views.find((v) => v.name === state.window) || views[0];
  const buttons = views.map((v) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = v.name;
    button.className = v === view ? "on" : "";
    button.onclick = () => { state.window = v.name; drawCloseup(); };
    return button;
  });
  element("window").replaceChildren(...buttons);
  if (view) draw(element("closeup"), closeupChart(run, view));
  else element("closeup").textContent = "No iteration ran.";
}

function drawDecisions() {
  draw(element("decisions"), decisionsChart(data, state.shown, element("decisions").clientWidth));
}

function drawAll() {
  drawCdfs();
  drawTimeline();
  drawCloseup();
  drawDecisions();
}

element("policies").addEventListener("click", (event) => {
  const chip = event.target.closest("button");
  if (!chip) return;
  const i = Number(chip.dataset.run);
  state.shown[i] = !state.shown[i];
  if (!state.shown.some(Boolean)) state.shown.fill(true);
  element("policies").querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", state.shown[b.dataset.run]));
  drawCdfs();
  drawDecisions();
});

element("tail").addEventListener("click", (event) => {
  if (!event.target.dataset.tail) return;
  state.tail = event.target.dataset.tail === "1";
  element("tail").querySelectorAll("button").forEach((b) => b.classList.toggle("on", b === event.target));
  drawCdfs();
});

element("timeline-policy").value = String(state.policy);
element("timeline-policy").addEventListener("change", (event) => {
  state.policy = Number(event.target.value);
  drawTimeline();
  drawCloseup();
});

element("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  drawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

drawAll();
