// The report of a run: charts over episodes, one episode in detail with its animation, and what was learned.
"use strict";

const KINDS = {
  predicted: { label: "predicted by moments (± 2 std)", colour: "var(--belief)" },
  sampled: { label: "predicted by sampling (90 %)", colour: "var(--good)" },
  executed: { label: "executed", colour: "var(--executed)" },
  belief: { label: "believed (± 2 std)", colour: "var(--other)" },
  observed: { label: "observed", colour: "var(--seen)" },
};
const PALETTE = ["var(--belief)", "var(--executed)", "var(--good)", "var(--other)", "var(--seen)", "var(--truth)"];

const byId = (id) => document.getElementById(id);
const column = (rows, i) => (rows ? rows.map((row) => row[i]) : null);
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function make(name, parent, properties = {}) {
  const element = Object.assign(document.createElement(name), properties);
  parent.append(element);
  return element;
}

/** A line of text with a coloured mark for each name: a line, or what `marks` says (band, dot). */
function keys(place, names, colours = PALETTE, marks = []) {
  place.replaceChildren();
  names.forEach((name, i) => {
    const key = make("span", place, { className: "key" });
    const mark = make("i", key, { className: marks[i] ?? "" });
    mark.style[marks[i] ? "background" : "borderColor"] = colours[i % colours.length];
    key.append(name);
  });
}

function table(place, heads, rows) {
  const line = make("tr", make("thead", place));
  for (const head of heads) make("th", line, { textContent: head, scope: "col" });
  const body = make("tbody", place);
  for (const [first, ...rest] of rows) {
    const row = make("tr", body);
    make("th", row, { textContent: first, scope: "row" });
    for (const cell of rest) make("td", row, { textContent: cell });
  }
}

class Report {
  constructor(data) {
    this.data = data;
    this.shown = new Set(Object.keys(KINDS));
    this.number = data.rounds.length - 1;
    this.moment = 0;
    this.playing = false;
    readColours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      readColours();
      this.drawStage();
    });
    this.learning();
    this.panels();
    this.noise();
    this.errors();
    this.policy();
    const facts = make("tbody", byId("facts"));
    for (const [name, value] of data.facts) {
      const row = make("tr", facts);
      make("th", row, { textContent: name, scope: "row" });
      make("td", row, { textContent: value });
    }
    this.listen();
    const asked = Number(location.hash.slice(1)); // the episode that was looked at before a live page was loaded again
    this.choose(asked >= 1 && asked <= data.rounds.length ? asked - 1 : this.number);
  }

  // Over episodes.

  /** The place of the final policy among the episodes, where it was executed. */
  get named() {
    const { rounds } = this.data;
    return rounds[rounds.length - 1].final ? [{ x: rounds.length, label: "final" }] : [];
  }

  learning() {
    const { rounds, worst } = this.data;
    const x = rounds.map((_, i) => i + 1);
    const kept = rounds.map(({ totals }) => (totals ? mean(totals) : null));
    const promised = rounds.map(({ predicted }) => predicted?.total ?? null);
    const [low, high] = ["total_low", "total_high"].map((name) => rounds.map(({ sampled }) => sampled?.[name] ?? null));
    const most = worst === null || !rounds[0].costs ? null : worst * rounds[0].costs[0].length;
    const all = [kept, promised, low, high, [0], most === null ? [] : [most]];
    const lowest = Math.min(...all.flat().filter((value) => value !== null));
    new Chart(byId("learning"), {
      label: "Total cost over episodes: predicted before each, and executed.",
      xLabel: rounds.length > 1 ? "episode" : "",
      yLabel: "total cost",
      x: [0.6, rounds.length + 0.4],
      y: [lowest < 0 ? extent(all)[0] : 0, extent(all)[1]],
      height: 340,
      integers: true,
      named: this.named,
      rules: most === null ? [] : [{ y: most, label: "never at the goal" }],
      series: [
        { kind: "band", x, low, high, colour: KINDS.sampled.colour, opacity: 0.25 },
        { kind: "line", x, y: promised, colour: KINDS.predicted.colour, dashed: "6 4" },
        { kind: "dots", x, y: promised, colour: KINDS.predicted.colour, size: 3.5 },
        { kind: "line", x, y: kept, colour: KINDS.executed.colour },
        { kind: "dots", x, y: kept, colour: KINDS.executed.colour, size: 4 },
      ],
    });
    const kinds = [KINDS.predicted, KINDS.sampled, KINDS.executed];
    const names = ["predicted before it", "sampled before it, 90 %", "executed"];
    keys(byId("learning-keys"), names, kinds.map(({ colour }) => colour), ["", "band", ""]);
    const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(1));
    const rows = rounds.map(({ final, predicted, sampled, costs, totals }, i) => [
      final ? "final" : String(i + 1),
      number(predicted?.total),
      sampled ? `${number(sampled.total)} (${number(sampled.total_low)}–${number(sampled.total_high)})` : "–",
      totals ? number(mean(totals)) : "–",
      sampled && costs ? `${Math.round(100 * covered(sampled.costs, costs))} %` : "–",
    ]);
    table(byId("promises"), ["episode", "predicted", "sampled (90\u00a0%)", "executed", "steps in band"], rows);
  }

  noise() {
    const { sensors, states, noise } = this.data;
    const x = noise.learned.map((_, i) => i + 1);
    const base = noise.true ?? noise.learned[noise.learned.length - 1];
    const lines = sensors.map((_, i) => noise.learned.map((row) => row[i] / base[i]));
    new Chart(byId("noise"), {
      label: "Learned sensor noise relative to the true one.",
      xLabel: "episodes learned from",
      yLabel: `learned / ${noise.true ? "true" : "last"} std`,
      x: [0.6, x.length + 0.4],
      y: [0, Math.max(1.2, extent(lines)[1])],
      integers: true,
      rules: [{ y: 1 }],
      series: lines.flatMap((y, i) => [
        { kind: "line", x, y, colour: PALETTE[i % PALETTE.length] },
        { kind: "dots", x, y, colour: PALETTE[i % PALETTE.length], size: 3 },
      ]),
    });
    keys(byId("noise-keys"), sensors);
    const last = noise.learned[noise.learned.length - 1];
    const rows = sensors.map((name, i) => [name, short(last[i]), noise.true ? short(noise.true[i]) : "–"]);
    const process = states.map((name, i) => [`process noise: ${name}`, short(noise.process[i]), "–"]);
    table(byId("noise-table"), ["standard deviation", "learned", "true"], [...rows, ...process]);
  }

  errors() {
    const { sensors, rounds, dt } = this.data;
    const asked = rounds.map((round, i) => [round, i + 1]).filter(([round]) => round.errors);
    byId("unseen").hidden = !asked.length;
    if (!asked.length) return;
    const x = asked.map(([, number]) => number);
    const lines = sensors.map((_, i) => asked.map(([round]) => round.errors.relative[0][i]));
    const draw = (id, label, xLabel, x, lines, named) =>
      new Chart(byId(id), {
        label,
        xLabel,
        yLabel: "rms error / predicted std",
        x: [x[0] - 0.4, x[x.length - 1] + 0.4],
        y: [0, Math.max(1.5, Math.min(extent(lines)[1], 8))],
        integers: true,
        named,
        rules: [{ y: 1 }],
        series: lines.flatMap((y, i) => [
          { kind: "line", x, y, colour: PALETTE[i % PALETTE.length] },
          { kind: "dots", x, y, colour: PALETTE[i % PALETTE.length], size: 3 },
        ]),
      });
    draw("one-step", "Errors one step ahead, over episodes.", "one step ahead, over episodes", x, lines, this.named);
    const { relative, rms } = asked[asked.length - 1][0].errors;
    const ahead = relative.map((_, k) => k + 1);
    const label = "Errors several steps ahead, by the last model.";
    draw("multi-step", label, `steps of ${short(dt)} s ahead, last model`, ahead, sensors.map((_, i) => column(relative, i)), []);
    keys(byId("error-keys"), sensors);
    const told = [...new Set([1, Math.ceil(ahead.length / 2), ahead.length])];
    const noise = this.data.noise.learned[this.data.noise.learned.length - 1];
    const rows = sensors.map((name, i) => [name, ...told.map((k) => short(rms[k - 1][i] ?? NaN)), short(noise[i])]);
    table(byId("error-table"), ["rms error", ...told.map((k) => `after ${short(k * dt)} s`), "of which noise"], rows);
  }

  policy() {
    const { policy, states, actions, low, high } = this.data;
    policy.lines.forEach(({ x, y }, i) => {
      const place = make("div", make("figure", byId("policy")), { className: "chart" });
      const chart = new Chart(place, {
        label: `The action along ${states[i]}.`,
        xLabel: states[i],
        yLabel: actions.join(", "),
        x: [x[0], x[x.length - 1]],
        y: extent([low, high]),
        height: 180,
        rules: [...low, ...high].map((at) => ({ y: at })),
        series: actions.map((_, k) => ({ kind: "line", x, y: column(y, k), colour: PALETTE[k % PALETTE.length] })),
      });
      chart.point(policy.at[i]);
    });
  }

  // One episode.

  panels() {
    const { states, actions } = this.data;
    this.charts = [...states, ...actions, "cost"].map((name) => {
      const place = make("div", make("figure", byId("panels")), { className: "chart" });
      return { name, chart: new Chart(place, { label: name, yLabel: name, x: [0, 1], y: [0, 1], height: 190, series: [] }) };
    });
    for (const [kind, { label, colour }] of Object.entries(KINDS)) {
      const line = make("label", byId("shows"));
      const box = make("input", line, { type: "checkbox", checked: true, id: `show-${kind}` });
      make("i", line).style.borderColor = colour;
      line.append(label);
      box.addEventListener("change", () => {
        if (box.checked) this.shown.add(kind);
        else this.shown.delete(kind);
        this.drawRound();
      });
    }
  }

  listen() {
    const round = byId("round");
    round.max = this.data.rounds.length - 1;
    round.value = this.number;
    round.addEventListener("input", () => this.choose(Number(round.value)));
    byId("moment").addEventListener("input", (event) => {
      this.stop();
      this.go(Number(event.target.value));
    });
    byId("play").addEventListener("click", () => (this.playing ? this.stop() : this.play()));
    new ResizeObserver(() => this.drawStage()).observe(byId("stage"));
  }

  choose(number) {
    this.number = number;
    const round = this.data.rounds[number];
    byId("round").value = number;
    byId("round").setAttribute("aria-valuetext", round.title);
    byId("round-name").textContent = round.title;
    const total = round.totals ? mean(round.totals).toFixed(1) : null;
    byId("round-cost").textContent = [
      round.predicted ? `predicted cost ${round.predicted.total.toFixed(1)}` : null,
      total === null ? null : `executed ${total}`,
    ].filter(Boolean).join(", ");
    byId("round-note").textContent = round.note;
    if (round.animation) {
      const { known, goal } = round.animation;
      const names = [known ? "true pose" : "mean of the belief", "poses drawn from the belief", ...(goal ? ["goal"] : [])];
      const colours = [known ? "var(--truth)" : "var(--other)", "var(--other)", "var(--good)"];
      keys(byId("stage-keys"), names, colours, ["", "band", "dot"]);
    }
    byId("moment").max = this.steps;
    byId("animation").hidden = !round.animation;
    this.frameStage(round.animation);
    this.drawRound();
    this.go(Math.min(this.moment, this.steps));
  }

  get steps() {
    return this.data.rounds[this.number].executed_actions[0].length;
  }

  drawRound() {
    const { states, actions, dt } = this.data;
    const round = this.data.rounds[this.number];
    const times = Array.from({ length: this.steps + 1 }, (_, t) => t * dt);
    const { predicted, sampled } = round;
    const show = (kind) => this.shown.has(kind);
    this.charts.forEach(({ chart, name }, index) => {
      const series = [];
      const add = (kind, shape, values) => {
        if (show(kind)) series.push({ kind: shape, x: times, colour: KINDS[kind].colour, ...values });
      };
      const band = (kind, middle, std, opacity) => {
        const [low, high] = [-2, 2].map((factor) => middle.map((value, t) => value + factor * std[t]));
        add(kind, "band", { low, high, opacity });
      };
      const k = index - states.length;
      const of = index < states.length ? "states" : k < actions.length ? "actions" : "costs";
      const i = of === "states" ? index : k;
      const pick = (rows) => (of === "costs" ? rows : column(rows, i));
      const moments = { states: ["state_mean", "state_std"], actions: ["action_mean", "action_std"], costs: ["cost_mean", "cost_std"] };
      if (sampled) {
        add("sampled", "band", { low: pick(sampled[of].low), high: pick(sampled[of].high), opacity: 0.2 });
        for (const path of sampled[of].paths) add("sampled", "line", { y: pick(path), width: 0.8, opacity: 0.6 });
      }
      if (predicted) {
        const [middle, std] = moments[of].map((moment) => pick(predicted[moment]));
        band("predicted", middle, std, 0.16);
        add("predicted", "line", { y: middle, dashed: "6 4" });
      }
      if (of === "states") {
        band("belief", column(round.belief_mean, i), column(round.belief_std, i), 0.4);
        add("observed", "dots", { y: column(round.observed, i), size: 1.8 });
      }
      const happened = { states: round.states, actions: round.executed_actions, costs: round.costs }[of];
      for (const path of happened ?? []) add("executed", "line", { y: pick(path), width: happened.length > 1 ? 1 : 1.8 });
      if (of === "costs" && round.cost_mean) add("executed", "line", { y: round.cost_mean, width: 2.4 });
      const drawn = series.flatMap(({ y, low, high }) => (y ? [y] : [low, high]));
      const rules = of === "actions" ? [{ y: this.data.low[i] }, { y: this.data.high[i] }] : [];
      chart.change({
        label: `${name} over time`,
        xLabel: "time [s]",
        x: [0, times[times.length - 1]],
        y: of === "actions" ? extent([[this.data.low[i], this.data.high[i]]]) : sensible(drawn, happened?.map(pick)),
        series,
        rules,
      });
    });
  }

  // The player.

  play() {
    this.playing = true;
    if (this.moment >= this.steps) this.moment = 0;
    this.showPlaying();
    let last = null;
    const frame = (now) => {
      if (!this.playing) return;
      const elapsed = last === null ? 0 : Math.min((now - last) / 1000, 0.2);
      last = now;
      this.go(Math.min(this.moment + elapsed / this.data.dt / this.slowdown, this.steps));
      if (this.moment >= this.steps) this.stop();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** Long episodes are shown in fast motion. */
  get slowdown() {
    return Math.min(1, 10 / (this.steps * this.data.dt));
  }

  stop() {
    this.playing = false;
    this.showPlaying();
  }

  showPlaying() {
    byId("play").textContent = this.playing ? "Stop" : "Play";
    byId("play").setAttribute("aria-pressed", String(this.playing));
  }

  go(moment) {
    this.moment = moment;
    const time = moment * this.data.dt;
    if (Number(byId("moment").value) !== Math.round(moment)) byId("moment").value = Math.round(moment);
    byId("moment").setAttribute("aria-valuetext", `${time.toFixed(2)} s`);
    byId("moment-value").textContent = `${time.toFixed(2)} s`;
    for (const { chart } of this.charts) chart.point(time);
    this.drawStage();
  }

  /** The part of the plane that the episode needs. */
  frameStage(animation) {
    if (!animation) return;
    const [x, y] = [0, 1].map((side) => {
      const values = animation.frames.flatMap((lines) => lines.flatMap((line) => line.filter((_, k) => k % 2 === side)));
      if (animation.goal) values.push(animation.goal[side]);
      return extent([values], 0.12);
    });
    this.view = { x, y };
  }

  drawStage() {
    const animation = this.data.rounds[this.number].animation;
    const canvas = byId("stage");
    if (!animation || !canvas.clientWidth) return;
    const { context, width, height } = cleared(canvas);
    const { x, y } = this.view;
    const scale = Math.min(width / (x[1] - x[0]), height / (y[1] - y[0]));
    const px = (value) => width / 2 + scale * (value - (x[0] + x[1]) / 2);
    const py = (value) => height / 2 - scale * (value - (y[0] + y[1]) / 2);
    const before = Math.floor(this.moment);
    const after = Math.min(before + 1, animation.frames.length - 1);
    const share = this.moment - before;
    const path = (from, to) => {
      context.beginPath();
      from.forEach((line, n) => {
        for (let k = 0; k < line.length; k += 2) {
          const [a, b] = [0, 1].map((side) => line[k + side] + share * (to[n][k + side] - line[k + side]));
          if (k) context.lineTo(px(a), py(b));
          else context.moveTo(px(a), py(b));
        }
      });
      context.stroke();
    };
    context.lineCap = context.lineJoin = "round";
    if (animation.goal) {
      context.strokeStyle = COLOURS.good;
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(px(animation.goal[0]), py(animation.goal[1]), 8, 0, 2 * Math.PI);
      context.stroke();
    }
    context.strokeStyle = COLOURS.other;
    context.globalAlpha = 0.22;
    context.lineWidth = 4;
    animation.cloud[before].forEach((pose, n) => path(pose, animation.cloud[after][n]));
    context.globalAlpha = 1;
    context.strokeStyle = animation.known ? COLOURS.truth : COLOURS.other;
    context.lineWidth = 3;
    path(animation.frames[before], animation.frames[after]);
  }
}

/** Which share of the executed costs lies in the sampled band, with a little room for a band of no width. */
function covered({ low, high }, costs) {
  const inside = costs.flatMap((path) => path.map((cost, t) => (cost >= low[t] - 1e-3 && cost <= high[t] + 1e-3 ? 1 : 0)));
  return mean(inside);
}

/** The range of what is drawn, but a band that explodes does not hide what happened. */
function sensible(drawn, happened) {
  const whole = extent(drawn);
  if (!happened || !happened.length) return whole;
  const core = extent(happened);
  const size = core[1] - core[0];
  return [Math.max(whole[0], core[0] - 2 * size), Math.min(whole[1], core[1] + 2 * size)];
}

const setup = JSON.parse(byId("setup").textContent);
window.report = new Report(setup);
if (setup.live) follow(setup.version);
