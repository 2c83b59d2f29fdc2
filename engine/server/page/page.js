"use strict";
// The page's three parts: the chat, the counters, the timeline. Text from the model or from a trace
// reaches the document as text only, never as HTML.

const $ = (id) => document.getElementById(id);
const key = () => $("key").value.trim();
const headers = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// ---------------------------------------------------------------- chat

let turns = []; // what the server is sent: {role, content}
let running = null; // the AbortController of the answer being written

/** The parts of an answer: text and, between lines of three backticks, code. */
function parts(text) {
  const found = [];
  let code = null;
  let lines = [];
  const flush = (kind) => {
    const text = kind === "code" ? lines.join("\n") : lines.join("\n").trim();
    if (text) found.push({ kind, text });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (/^\s*```/.test(line)) {
      flush(code ? "code" : "text");
      code = !code;
    } else lines.push(line);
  }
  flush(code ? "code" : "text");
  return found;
}

function show(turn, text, thought) {
  const body = turn.querySelector(".body");
  const shown = parts(text).map((part) =>
    part.kind === "code" ? element("pre", part.text) : element("div", part.text, "text"));
  if (thought) {
    const box = element("details");
    box.open = !text;
    box.append(element("summary", "thinking"), element("p", thought));
    shown.unshift(box);
  }
  body.replaceChildren(...shown);
}

function addTurn(role, text) {
  $("hello")?.remove();
  const turn = element("article", "", `turn ${role}`);
  turn.append(element("div", "", "body"), element("div", "", "note"));
  show(turn, text, "");
  $("log").append(turn);
  turn.scrollIntoView({ block: "end" });
  return turn;
}

function note(turn, text, bad = false) {
  const line = turn.querySelector(".note");
  line.textContent = text;
  line.classList.toggle("bad", bad);
}

/** The JSON events of a stream of server-sent events; throws when it ends without [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended in the middle of the answer");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function problem(response) {
  const answer = await response.json().catch(() => null);
  if (response.status === 401) $("settings").open = true;
  return answer?.error?.message ?? `the server answered ${response.status}`;
}

async function answer() {
  const turn = addTurn("assistant", "");
  const chat = turns; // a new chat may begin while this answer is being written
  const system = $("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...chat] : [...chat];
  let text = "", thought = "", reason = "", usage = null, first = 0;
  const began = performance.now();
  running = new AbortController();
  $("send").textContent = "Stop";
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      signal: running.signal,
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({
        model: about.model,
        messages,
        stream: true,
        stream_options: { include_usage: true },
        temperature: Number($("temperature").value),
        max_tokens: Number($("limit").value) || null,
      }),
    });
    if (!response.ok) throw new Error(await problem(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      const more = choice.delta?.content ?? "", mused = choice.delta?.reasoning_content ?? "";
      if (!more && !mused) continue;
      first ||= performance.now();
      text += more;
      thought += mused;
      const atEnd = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;
      show(turn, text, thought);
      if (atEnd) $("log").scrollTop = $("log").scrollHeight;
    }
    note(turn, summary(usage, reason, began, first || performance.now()));
  } catch (error) {
    const stopped = error.name === "AbortError";
    note(turn, stopped ? "stopped" : error.message, !stopped);
  }
  if (text) chat.push({ role: "assistant", content: text });
  else chat.pop(); // a question without an answer is not asked again
  running = null;
  $("send").textContent = "Send";
}

function summary(usage, reason, began, first) {
  const seconds = (performance.now() - first) / 1000;
  const told = [`first token after ${Math.round(first - began)} ms`];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    told.unshift(`${usage.prompt_tokens} tokens read (${cached} cached), ` +
      `${usage.completion_tokens} written`);
    if (usage.completion_tokens > 1 && seconds > 0)
      told.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
  }
  if (reason === "length") told.push("cut at the most tokens allowed");
  return told.join(" · ");
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = $("prompt").value.trim();
  if (!text) return;
  $("prompt").value = "";
  turns.push({ role: "user", content: text });
  addTurn("user", text);
  answer();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) $("form").requestSubmit();
});
$("fresh").addEventListener("click", () => {
  running?.abort();
  turns = [];
  $("log").replaceChildren();
  $("prompt").focus();
});

// ---------------------------------------------------------------- counters

const EVERY_MS = 1000;
let about = {}; // the last answer of /stats
let seen = null; // {tokens, at} of the answer before it

function percent(part, whole) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  return share > 0 && share < 0.5 ? "<1 %" : `${Math.round(share)} %`;
}

const number = (value) => value.toLocaleString("en");

async function read(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw new Error(await problem(response));
  return response.json();
}

function state(text, kind) {
  $("state").textContent = text;
  $("state").className = kind;
}

async function count() {
  try {
    const before = about.steps;
    about = await read("stats");
    $("model").textContent = about.model;
    const at = performance.now() / 1000;
    const rate = seen ? (about.generation_tokens - seen.tokens) / (at - seen.at) : 0;
    seen = { tokens: about.generation_tokens, at };
    $("rate").textContent = rate.toFixed(1);
    $("running").textContent = number(about.running);
    $("waiting").textContent = number(about.waiting);
    $("cache").textContent = percent(about.kv_usage, 1);
    $("hits").textContent = percent(about.prefix_hits, about.prefix_queries);
    $("steps").textContent = number(about.steps);
    $("written").textContent = number(about.generation_tokens);
    $("preempted").textContent = number(about.preemptions);
    state(about.running ? "running" : "idle", "good");
    if (about.steps !== before && !dragged && !closer) trace(await read("timeline"));
  } catch (error) {
    state(error instanceof TypeError ? "no answer" : error.message, "bad");
  }
  setTimeout(count, document.hidden ? 10 * EVERY_MS : EVERY_MS);
}

// ---------------------------------------------------------------- timeline

const LANE = 34, GAP = 6, SCALE = 20; // CSS pixels: a lane, the gap below it, the time scale
let step = null; // the answer of /timeline
let view = [0, 1]; // ns shown
let closer = false; // whether a part of the step is shown; it stays while steps go on
let dragged = null; // [from, to] in CSS pixels while a stretch is being chosen

const us = (ns) => (ns / 1000).toLocaleString("en", { maximumFractionDigits: ns < 1e5 ? 1 : 0 });
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = window.matchMedia("(prefers-color-scheme: dark)");

/** An op's colour; on a dark page a third of the way to white, so that indigo can be seen. */
function colour(op) {
  if (op === "waiting") return style("--waiting");
  if (!dark.matches) return step.colours[op];
  const parts = [1, 3, 5].map((at) => parseInt(step.colours[op].slice(at, at + 2), 16));
  return `rgb(${parts.map((part) => Math.round(part + (255 - part) / 3)).join(" ")})`;
}

const laneHeight = () => Math.max(3, Math.min(LANE, 480 / step.workers - GAP));
const gap = () => (laneHeight() < LANE ? 1 : GAP);

function trace(got) {
  if (!got.tasks.length) return;
  step = got;
  closer = false;
  const end = step.tasks.reduce((last, task) => Math.max(last, task[4]), 1);
  view = [0, end];
  const spent = {};
  for (const [, node, start, ready, done] of step.tasks) {
    const op = step.nodes[node][1];
    spent[op] = (spent[op] ?? 0) + done - ready;
    spent.waiting = (spent.waiting ?? 0) + ready - start;
  }
  $("step").textContent = `Last traced step: ${number(step.tasks.length)} tasks on ` +
    `${step.workers} workers in ${us(end)} µs`;
  $("caption").textContent = step.caption;
  $("legend").replaceChildren(...Object.entries(spent)
    .sort((a, b) => b[1] - a[1])
    .map(([op, ns]) => {
      const item = element("li");
      const swatch = element("i");
      swatch.style.background = colour(op);
      item.append(swatch, element("span", `${op} ${percent(ns, end * step.workers)}`));
      return item;
    }));
  draw();
}

function draw() {
  if (!step) return;
  const canvas = $("lanes"), sharp = window.devicePixelRatio || 1;
  const wide = canvas.clientWidth, high = step.workers * (laneHeight() + gap()) + SCALE;
  canvas.style.height = `${high}px`;
  canvas.width = Math.round(wide * sharp);
  canvas.height = Math.round(high * sharp);
  const ink = canvas.getContext("2d");
  ink.scale(sharp, sharp);
  const x = (ns) => ((ns - view[0]) / (view[1] - view[0])) * wide;
  ink.fillStyle = style("--lane");
  for (let worker = 0; worker < step.workers; worker++)
    ink.fillRect(0, worker * (laneHeight() + gap()), wide, laneHeight());
  const waiting = colour("waiting");
  const inks = Object.fromEntries(Object.keys(step.colours).map((op) => [op, colour(op)]));
  for (const [worker, node, start, ready, done] of step.tasks) {
    if (done < view[0] || start > view[1]) continue;
    const top = worker * (laneHeight() + gap());
    ink.fillStyle = waiting;
    ink.fillRect(x(start), top, x(ready) - x(start), laneHeight());
    ink.fillStyle = inks[step.nodes[node][1]];
    ink.fillRect(x(ready), top, x(done) - x(ready), laneHeight());
  }
  ink.fillStyle = style("--faint");
  ink.font = "11px system-ui, sans-serif";
  for (const [at, align] of [[0, "left"], [0.5, "center"], [1, "right"]]) {
    ink.textAlign = align;
    ink.fillText(`${us(view[0] + at * (view[1] - view[0]))} µs`, at * wide, high - 5);
  }
  if (dragged) {
    ink.globalAlpha = 0.25;
    ink.fillStyle = style("--accent");
    ink.fillRect(dragged[0], 0, dragged[1] - dragged[0], high - SCALE);
  }
}

/** What the pointer is over, in words. */
function under(event) {
  const wide = $("lanes").clientWidth;
  const at = view[0] + (event.offsetX / wide) * (view[1] - view[0]);
  const worker = Math.floor(event.offsetY / (laneHeight() + gap()));
  const task = step.tasks.find((t) => t[0] === worker && t[2] <= at && at <= t[4]);
  if (!task) return worker < step.workers ? `worker ${worker}: idle` : "";
  const [, node, start, ready, done] = task;
  return `worker ${worker}: ${step.nodes[node][0]} (${step.nodes[node][1]}), waited ` +
    `${us(ready - start)} µs, ran ${us(done - ready)} µs`;
}

const canvas = $("lanes");
canvas.addEventListener("pointerdown", (event) => {
  if (!step) return;
  $("under").textContent = under(event);
  if (event.pointerType === "mouse") dragged = [event.offsetX, event.offsetX];
});
canvas.addEventListener("pointermove", (event) => {
  if (!step) return;
  if (dragged) dragged[1] = event.offsetX;
  else $("under").textContent = under(event);
  draw();
});
window.addEventListener("pointerup", () => {
  if (!dragged) return;
  const [from, to] = dragged.slice().sort((a, b) => a - b);
  const wide = canvas.clientWidth, long = view[1] - view[0], since = view[0];
  dragged = null;
  closer ||= to - from > 4;
  if (to - from > 4) view = [since + (from / wide) * long, since + (to / wide) * long];
  draw();
});
canvas.addEventListener("dblclick", () => step && trace(step));
window.addEventListener("resize", draw);
dark.addEventListener("change", () => step && trace(step));
if (!window.matchMedia("(hover: hover)").matches)
  $("under").textContent = "Tap a task to see what it is.";

count();
