// The controller live on the simulated plant: observe, decide, advance, as often as a second of the plant has samples.
"use strict";

const BLIND_SECONDS = 0.5;
const BLIND_SAMPLES = 2; // at least, of a slow plant
const CLOUD = 28; // states drawn from the belief
const DRAWN_SECONDS = 8; // how long an episode should take to watch, about
const LOST = 1e3; // initial standard deviations from the start: nothing will bring it back

/** Random numbers with a seed, so that a page can be repeated (mulberry32), and normal ones from them. */
class Chance {
  constructor(seed) {
    this.state = seed >>> 0;
  }

  uniform() {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let t = this.state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }

  gauss() {
    return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }
}

/** The plant with its sensors, and the controllers that run on it. Knows nothing of the page. */
class Loop {
  constructor(setup, seed) {
    this.setup = setup;
    this.chance = new Chance(seed);
    this.controllers = setup.choices.map(({ filtered, raw }) => ({
      filter: new Controller(filtered),
      raw: raw === null ? null : new Controller(raw),
    }));
    const n = setup.states.length;
    const model = this.controllers[0].filter;
    this.plant = setup.equation ? new Equation(setup.equation, setup.dt) : new LearnedModel(model, n);
    this.choice = 0;
    this.sees = setup.choices[0].sees;
    this.noise = 1;
    this.dropout = null; // the task's own
    this.blindSeconds = Math.max(BLIND_SECONDS, BLIND_SAMPLES * setup.dt);
    this.push = null; // {handle, force: [fx, fy]} or, on a learned model, {state, by}
    this.restart();
  }

  get active() {
    return this.controllers[this.choice];
  }

  restart() {
    const { setup } = this;
    const draws = setup.initial_mean.map(() => this.chance.gauss());
    const first = setup.initial_mean.map((mean, i) => mean + dot(setup.initial_root[i], draws));
    this.rows = apply(setup.embedding, first);
    setup.references.forEach(({ row, level, std }) => (this.rows[row] = level + std * this.chance.gauss()));
    for (const { filter, raw } of this.controllers)
      for (const controller of raw ? [filter, raw] : [filter]) {
        controller.reset();
        controller.follow(setup.references.map(({ row }) => this.rows[row]));
      }
    [this.time, this.sub, this.blindUntil, this.step] = [0, 0, 0, 0];
    this.inBurst = false;
    this.before = this.rows;
    this.history = [];
    this.control();
  }

  choose(index) {
    const { mean, cov, steps, credit, latest } = this.active.filter;
    this.choice = index;
    Object.assign(this.active.filter, { mean: Float64Array.from(mean), cov: copied(cov), steps, credit, latest });
    if (this.active.raw) {
      this.active.raw.steps = steps;
      const n = this.setup.states.length;
      this.active.raw.mean.set(mean.subarray(n), n);
    }
    this.sees = this.setup.choices[index].sees;
  }

  blind() {
    this.blindUntil = this.time + this.blindSeconds;
  }

  get isBlind() {
    return this.time < this.blindUntil - 1e-9;
  }

  measure() {
    const { sensors, bursts } = this.setup;
    if (bursts && this.step > 0) {
      this.inBurst = this.inBurst ? this.chance.uniform() >= bursts.end : this.chance.uniform() < bursts.begin;
    }
    return sensors.map(({ of, offset, std, dropout, period, growth, best_at }) => {
      let times = 1; // how much more noise there is here than where it is least
      growth.forEach((value, i) => (times += value * (this.rows[i] - best_at[i]) ** 2));
      const error = this.noise * std * Math.sqrt(times) * this.chance.gauss();
      const lost = this.chance.uniform() < (this.dropout ?? dropout);
      return lost || this.inBurst || this.isBlind || this.step % period ? NaN : dot(of, this.rows) + offset + error;
    });
  }

  /** One step of the controller. */
  control() {
    const { filter, raw } = this.active;
    const z = this.measure();
    const expected = filter.mean;
    const { belief, observation } = this;
    filter.observe(z);
    this.belief = { mean: filter.mean, cov: filter.cov };
    const seen = z.some(isSeen);
    if (raw) raw.observe(z);
    this.action = (this.sees === "raw" && raw ? raw : filter).decide();
    this.t = filter.steps;
    filter.advance(this.action);
    if (raw) raw.advance(this.action);
    this.predicted = { mean: filter.mean, cov: filter.cov };
    this.observation = seen ? this.estimate(z, expected) : null;
    this.previous = this.step ? { belief, observation } : { belief: this.belief, observation: this.observation };
    this.known = knownRows(filter.arrays, this.rows, this.action, this.t);
    this.drawnCloud = null;
    this.history.push({
      time: this.time,
      truth: Array.from(this.rows),
      mean: Array.from(this.belief.mean),
      std: this.belief.mean.map((_, i) => Math.sqrt(Math.max(this.belief.cov[i][i], 0))),
      observation: this.observation,
      told: this.setup.told.map((by) => by.some((sensor) => isSeen(z[sensor]))),
      action: Array.from(this.action),
      surprise: seen ? rootMeanSquare(filter.surprise.filter(isSeen)) : null,
      rejected: filter.rejected.some(Boolean),
    });
    if (this.history.length > 4000) this.history.splice(0, 1000);
    if (this.setup.loops && filter.steps === this.setup.steps) filter.steps = 0;
    if (raw) raw.steps = filter.steps;
    this.step += 1;
  }

  /** The state that this observation alone says, where it says something; as expected elsewhere. */
  estimate(z, expected) {
    const { sensors, estimate } = this.setup;
    const filled = sensors.map(({ of, offset }, i) => (isSeen(z[i]) ? z[i] - offset : dot(of, expected)));
    return estimate.map((row, i) => (row === null ? expected[i] : dot(row, filled)));
  }

  /** One small step of the plant; at the end of a sampling period also one of the controller. */
  advance() {
    const { setup, plant } = this;
    const n = setup.states.length;
    if (plant instanceof Equation) {
      const joint = [...this.rows, ...this.action];
      const acting = setup.acting.map((index) => joint[index]);
      const { push } = this;
      const response = push ? (x) => plant.handles[push.handle].response(x, push.force) : null;
      const x = plant.advance(Array.from(this.rows.subarray(0, n)), acting, response);
      this.rows = Float64Array.from(this.rows);
      this.rows.set(x);
    } else {
      this.before = this.rows;
      this.rows = plant.next(this.rows, this.action, this.t, () => this.chance.gauss());
      if (this.push) this.rows[this.push.state] += this.push.by;
    }
    this.sub += 1;
    this.time += setup.dt / plant.substeps;
    if (this.sub < plant.substeps) return;
    this.sub = 0;
    for (let i = n; i < this.rows.length; i++) this.rows[i] = this.known[i];
    if (this.isLost()) throw new Lost();
    this.control();
  }

  isLost() {
    const { initial_mean: mean, initial_root: roots } = this.setup;
    return mean.some((value, i) => !(Math.abs(this.rows[i] - value) < LOST * Math.max(...roots[i].map(Math.abs))));
  }
}

class Lost extends Error {}

const rootMeanSquare = (values) => Math.sqrt(values.reduce((total, value) => total + value ** 2, 0) / values.length);

/** The largest difference between this page and the Python controller on one recorded episode, relative to the limits. */
function agreement(setup) {
  let worst = 0;
  for (const { filtered, raw, reference } of setup.choices)
    for (const [file, kind] of [[filtered, "filter"], [raw, "raw"]]) {
      if (file === null) continue;
      const controller = new Controller(file);
      reference.observations.forEach((z, t) => {
        const u = controller.act(z.map((value) => (value === null ? NaN : value)));
        u.forEach((value, i) => {
          const difference = Math.abs(value - reference[kind].actions[t][i]) / controller.arrays.limits[i];
          worst = Math.max(worst, Number.isNaN(difference) ? Infinity : difference);
        });
        reference[kind].means[t].forEach((value, i) => {
          const difference = Math.abs(controller.mean[i] - value) / Math.max(1, Math.abs(value));
          worst = Math.max(worst, Number.isNaN(difference) ? Infinity : difference);
        });
      });
    }
  return worst;
}

/** What is on the screen, and what the user does there. */
class Page {
  constructor(setup, loop) {
    this.setup = setup;
    this.loop = loop;
    this.stage = document.getElementById("stage");
    this.normals = Array.from({ length: CLOUD }, () => setup.states.map(() => loop.chance.gauss()));
    this.budget = 0;
    this.speed = 1;
    this.paused = false;
    this.keys = new Set();
    this.pulling = null;
    this.held = 0;
    this.lastStep = -1;
    this.work = { seconds: 0, frames: 0 };
    this.range = setup.states.map((_, i) => {
      const reach = 3 * Math.max(...setup.initial_root[i].map(Math.abs)) || 1;
      return [setup.initial_mean[i] - reach, setup.initial_mean[i] + reach];
    });
    readColours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);
    this.listen();
    this.show();
    requestAnimationFrame((now) => this.frame(now, now));
  }

  get posed() {
    return this.loop.plant instanceof Equation;
  }

  get blindTime() {
    return this.loop.blindSeconds === 0.5 ? "½ s" : `${short(this.loop.blindSeconds)} s`;
  }

  say(sentence) {
    document.getElementById("said").textContent = sentence;
  }

  // Controls.

  listen() {
    const { setup, loop } = this;
    const byId = (id) => document.getElementById(id);
    if (!this.posed) {
      byId("stand-in").hidden = false;
      byId("stand-in").textContent =
        `This page does not know the equation of motion of “${setup.task}”. The learned model plays the plant: its mean, ` +
        "with the process noise that was learned.";
      byId("goal-key").hidden = true;
    }
    const options = (select, names) =>
      select.replaceChildren(...names.map((name, i) => Object.assign(new Option(name, i))));
    options(byId("state"), setup.states);
    byId("state").value = setup.shown;
    byId("state").addEventListener("change", () => (this.lastStep = -1));
    options(byId("handle"), this.posed ? loop.plant.handles.map(({ name }) => name) : setup.states);
    byId("blind").textContent = `Blind for ${this.blindTime}`;
    byId("action-name").textContent = setup.actions.join(", ");
    const speeds = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16];
    const natural = (setup.steps * setup.dt) / DRAWN_SECONDS;
    this.speed = natural > 1.5 ? speeds.reduce((a, b) => (Math.abs(b - natural) < Math.abs(a - natural) ? b : a)) : 1;
    byId("speed").replaceChildren(...speeds.map((value) => new Option(`${value} ×`, value)));
    byId("speed").value = this.speed;
    byId("speed").addEventListener("change", (event) => (this.speed = Number(event.target.value)));

    if (setup.choices.length > 1) {
      byId("methods").hidden = false;
      byId("method-keys").innerHTML = ", <kbd>1</kbd> to <kbd></kbd> method";
      byId("method-keys").lastElementChild.textContent = setup.choices.length;
      byId("method-choices").replaceChildren(
        ...setup.choices.map(({ label }, i) => {
          const line = document.createElement("label");
          const input = Object.assign(document.createElement("input"), { type: "radio", name: "method", value: i });
          input.addEventListener("change", () => this.choose(i));
          line.append(input, ` ${label}`);
          return line;
        })
      );
    }
    for (const sees of ["filter", "raw"])
      byId(`sees-${sees}`).addEventListener("change", () => {
        loop.sees = sees;
        this.show();
      });
    byId("noise").addEventListener("input", (event) => {
      loop.noise = Number(event.target.value);
      this.show();
    });
    byId("dropout").addEventListener("input", (event) => {
      loop.dropout = Number(event.target.value) / 100;
      this.show();
    });
    byId("blind").addEventListener("click", () => this.blind());
    byId("restart").addEventListener("click", () => this.restart());
    byId("pause").addEventListener("click", () => this.pause());
    for (const [id, direction] of [["push-left", -1], ["push-right", 1]]) {
      const button = byId(id);
      button.addEventListener("pointerdown", (event) => {
        button.setPointerCapture(event.pointerId);
        this.held = direction;
      });
      for (const end of ["pointerup", "pointercancel", "lostpointercapture"])
        button.addEventListener(end, () => (this.held = 0));
      button.addEventListener("click", (event) => {
        if (event.detail === 0) this.nudge(direction); // by keyboard or a screen reader
      });
    }
    this.stage.addEventListener("pointerdown", (event) => {
      this.stage.setPointerCapture(event.pointerId);
      this.stage.focus({ preventScroll: true });
      this.grab(event);
    });
    this.stage.addEventListener("pointermove", (event) => this.pulling && this.pull(event));
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"])
      this.stage.addEventListener(end, () => (this.pulling = null));
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("keyup", (event) => this.keys.delete(event.key));
    window.addEventListener("blur", () => this.keys.clear());
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const elsewhere = event.target.closest("input, select");
    if (event.key.startsWith("Arrow")) {
      if (elsewhere) return; // arrows move sliders and choices
      event.preventDefault();
      this.keys.add(event.key);
      return;
    }
    if (event.repeat || event.target.closest("select")) return;
    const press = event.key.toLowerCase();
    if (press === "b") this.blind();
    else if (press === "r") this.restart();
    else if (press === "p") this.pause();
    else if (press === "f" && this.loop.active.raw) {
      this.loop.sees = this.loop.sees === "raw" ? "filter" : "raw";
      this.show();
    } else if (/^[1-9]$/.test(press) && this.setup.choices[press - 1]) this.choose(press - 1);
  }

  choose(index) {
    this.loop.choose(index);
    this.say(`${this.setup.choices[index].label} controls now.`);
    this.show();
  }

  blind() {
    this.loop.blind();
    this.say(`The sensors are blind for ${this.blindTime}.`);
  }

  restart() {
    this.loop.restart();
    this.lastStep = -1;
    this.say("Started again.");
  }

  pause() {
    this.paused = !this.paused;
    this.show();
  }

  show() {
    const { loop } = this;
    const byId = (id) => document.getElementById(id);
    byId("sees-filter").checked = loop.sees === "filter";
    byId("sees-raw").checked = loop.sees === "raw";
    byId("sees-raw").disabled = !loop.active.raw;
    byId("no-raw").hidden = Boolean(loop.active.raw);
    byId("no-raw").textContent = this.setup.no_raw;
    byId("noise-value").textContent = `${loop.noise.toFixed(1)} × the task's`;
    const share = loop.dropout ?? Math.max(...this.setup.sensors.map(({ dropout }) => dropout));
    byId("dropout").value = Math.round(100 * share);
    byId("dropout-value").textContent = `${Math.round(100 * share)} %`;
    byId("pause").textContent = this.paused ? "Go on" : "Pause";
    byId("pause").setAttribute("aria-pressed", String(this.paused));
    for (const input of document.getElementsByName("method")) input.checked = Number(input.value) === loop.choice;
  }

  // Pushes.

  nudge(direction) {
    this.held = direction;
    setTimeout(() => (this.held = 0), 150);
  }

  grab(event) {
    const point = this.pointer(event);
    if (this.posed) {
      const { handles } = this.loop.plant;
      const distance = ({ at }) => {
        const [x, y] = at(this.loop.rows);
        return Math.hypot(x - point[0], y - point[1]);
      };
      const nearest = handles.reduce((a, b) => (distance(b) < distance(a) ? b : a));
      this.pulling = { handle: handles.indexOf(nearest), point };
      document.getElementById("handle").value = this.pulling.handle;
    } else {
      const state = this.gaugeAt(event);
      this.pulling = { handle: state, point };
      document.getElementById("handle").value = state;
    }
  }

  pull(event) {
    this.pulling.point = this.pointer(event);
  }

  /** Where the pointer is: in the plant's plane, or in the units of the gauge that was grabbed. */
  pointer(event) {
    const box = this.stage.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    return this.posed ? this.fromPixels(px, py) : [px, py];
  }

  /** What the user does to the plant at this moment. */
  pushNow() {
    const { loop } = this;
    const handle = Number(document.getElementById("handle").value);
    const right = this.held + this.keys.has("ArrowRight") - this.keys.has("ArrowLeft");
    const up = this.keys.has("ArrowUp") - this.keys.has("ArrowDown");
    if (!this.posed) {
      const [low, high] = this.range[this.pulling ? this.pulling.handle : handle];
      if (this.pulling) {
        const [left, width] = this.gaugeBox;
        const wanted = low + ((high - low) * (this.pulling.point[0] - left)) / width;
        return { state: this.pulling.handle, by: 0.3 * (wanted - loop.rows[this.pulling.handle]) };
      }
      return right + up ? { state: handle, by: 0.05 * (right + up) * (high - low) } : null;
    }
    const { plant } = loop;
    const strength = (h) => plant.force * (plant.handles[h].strength ?? 1);
    if (this.pulling) {
      const [x, y] = plant.handles[this.pulling.handle].at(loop.rows);
      const [dx, dy] = [this.pulling.point[0] - x, this.pulling.point[1] - y];
      const reach = (plant.view[2] - plant.view[0]) / 6; // where it pulls as hard as a key
      const most = 2 * strength(this.pulling.handle);
      const size = Math.hypot(dx, dy) || 1e-9;
      const pull = Math.min((strength(this.pulling.handle) * size) / reach, most) / size;
      return { handle: this.pulling.handle, force: [pull * dx, pull * dy] };
    }
    return right || up ? { handle, force: [right * strength(handle), up * strength(handle)] } : null;
  }

  // Frames.

  frame(now, last) {
    requestAnimationFrame((next) => this.frame(next, now));
    const begin = performance.now();
    if (!this.paused) {
      this.budget += (this.speed * Math.min(now - last, 100)) / 1000;
      const { loop } = this;
      const h = this.setup.dt / loop.plant.substeps;
      loop.push = this.pushNow();
      try {
        for (; this.budget >= h; this.budget -= h) loop.advance();
      } catch (error) {
        if (!(error instanceof Lost)) throw error;
        this.budget = 0;
        this.restart();
        this.say("It was lost, and started again.");
      }
    }
    this.draw();
    this.work.seconds += (performance.now() - begin) / 1000;
    this.work.frames += 1;
  }

  draw() {
    const { loop } = this;
    const signal = document.getElementById("signal");
    signal.textContent = loop.isBlind ? "sensors blind" : `${loop.time.toFixed(1)} s`;
    signal.classList.toggle("blind", loop.isBlind);
    const { context, width, height } = cleared(this.stage);
    if (this.posed) this.drawPlant(context, width, height);
    else this.drawGauges(context, width, height);
    if (loop.step !== this.lastStep) {
      this.lastStep = loop.step;
      this.drawStrips();
    }
  }

  /** States drawn from the belief, carried from this sample to the next as the belief is predicted to move. */
  cloud(fraction) {
    const { loop, setup } = this;
    const n = setup.states.length;
    if (!loop.drawnCloud) {
      const drawn = ({ mean, cov }) => {
        const block = cov.slice(0, n).map((row) => row.subarray(0, n));
        const C = root(block);
        return this.normals.map((normals) => C.map((row, i) => mean[i] + dot(row, normals)));
      };
      loop.drawnCloud = [drawn(loop.belief), drawn(loop.predicted)];
    }
    const [from, to] = loop.drawnCloud;
    return from.map((x, k) => x.map((value, i) => value + fraction * (to[k][i] - value)));
  }

  get fraction() {
    const { loop, setup } = this;
    const inside = this.posed ? loop.sub / loop.plant.substeps : this.budget / setup.dt;
    return Math.min(Math.max(inside, 0), 1);
  }

  /** From the plant's plane to pixels and back. */
  frameView(width, height) {
    const { view, follows } = this.loop.plant;
    const [left, bottom, right, top] = view;
    const scale = Math.min(width / (right - left), height / (top - bottom));
    let middle = (left + right) / 2;
    if (follows !== undefined) {
      const reach = width / scale / 2 - 0.35 * (top - bottom);
      const beyond = Math.abs(this.loop.rows[follows]) - reach;
      if (beyond > 0) middle += Math.sign(this.loop.rows[follows]) * beyond;
    }
    this.toPixels = ([x, y]) => [width / 2 + scale * (x - middle), height / 2 - scale * (y - (bottom + top) / 2)];
    this.fromPixels = (px, py) => [middle + (px - width / 2) / scale, (bottom + top) / 2 - (py - height / 2) / scale];
  }

  drawPlant(context, width, height) {
    const { loop } = this;
    const { plant } = loop;
    this.frameView(width, height);
    const path = (lines) => {
      context.beginPath();
      for (const line of lines)
        line.forEach((point, k) => (k ? context.lineTo(...this.toPixels(point)) : context.moveTo(...this.toPixels(point))));
      context.stroke();
    };
    context.lineCap = context.lineJoin = "round";
    if (plant.track !== undefined) {
      const [, y] = this.toPixels([0, plant.track]);
      context.strokeStyle = COLOURS.line;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(0, y + 2);
      context.lineTo(width, y + 2);
      context.stroke();
    }
    const targets = this.setup.references.map(({ row }) => loop.rows[row]);
    const [gx, gy] = this.toPixels(plant.goal(targets));
    context.strokeStyle = COLOURS.good;
    context.lineWidth = 2.5;
    context.beginPath();
    context.arc(gx, gy, 9, 0, 2 * Math.PI);
    context.stroke();
    context.strokeStyle = COLOURS.belief;
    context.lineWidth = 5;
    context.globalAlpha = 0.13;
    for (const x of this.cloud(this.fraction)) path(plant.lines(x));
    context.globalAlpha = 1;
    if (loop.observation) {
      context.globalAlpha = 1 - 0.7 * this.fraction;
      context.strokeStyle = COLOURS.seen;
      context.lineWidth = 2.5;
      context.setLineDash([7, 6]);
      path(plant.lines(loop.observation));
      context.setLineDash([]);
      context.globalAlpha = 1;
    }
    context.strokeStyle = COLOURS.truth;
    context.lineWidth = 3.5;
    path(plant.lines(loop.rows));
    if (loop.push) this.drawArrow(context, plant);
  }

  drawArrow(context, plant) {
    const { handle, force } = this.loop.push;
    const strength = plant.force * (plant.handles[handle].strength ?? 1);
    const [x, y] = this.toPixels(plant.handles[handle].at(this.loop.rows));
    const [dx, dy] = [(60 * force[0]) / strength, (-60 * force[1]) / strength];
    const size = Math.hypot(dx, dy);
    if (size < 2) return;
    const [ux, uy] = [dx / size, dy / size];
    context.strokeStyle = COLOURS.executed;
    context.lineWidth = 4;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + dx, y + dy);
    context.moveTo(x + dx - 12 * ux + 7 * uy, y + dy - 12 * uy - 7 * ux);
    context.lineTo(x + dx, y + dy);
    context.lineTo(x + dx - 12 * ux - 7 * uy, y + dy - 12 * uy + 7 * ux);
    context.stroke();
  }

  /** Without a picture of the plant: a scale for each state, with the belief as a band. */
  drawGauges(context, width, height) {
    const { loop, setup } = this;
    const [left, right] = [16, 16];
    this.gaugeBox = [left, width - left - right];
    const each = (height - 30) / setup.states.length;
    this.gaugeHeight = each;
    // The model moves in whole samples. Between them all that is drawn goes from the sample before to this one.
    const f = this.fraction;
    const { observation, belief: from } = loop.previous;
    const to = loop.belief;
    setup.states.forEach((name, i) => {
      const truth = loop.before[i] + f * (loop.rows[i] - loop.before[i]);
      const range = this.range[i];
      const margin = 0.05 * (range[1] - range[0]);
      if (truth < range[0] + margin) range[0] = truth - margin;
      if (truth > range[1] - margin) range[1] = truth + margin;
      const x = (value) => left + ((width - left - right) * (value - range[0])) / (range[1] - range[0]);
      const y = 30 + each * (i + 0.6);
      context.fillStyle = COLOURS.quiet;
      context.font = "13px system-ui, sans-serif";
      context.textBaseline = "alphabetic";
      context.textAlign = "left";
      context.fillText(`${name}: ${short(truth)}`, left, y - each * 0.28);
      context.strokeStyle = COLOURS.line;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(width - right, y);
      context.stroke();
      const mean = from.mean[i] + f * (to.mean[i] - from.mean[i]);
      const std = Math.sqrt(Math.max(from.cov[i][i] + f * (to.cov[i][i] - from.cov[i][i]), 0));
      context.fillStyle = COLOURS.belief;
      context.globalAlpha = 0.35;
      const [low, high] = [x(mean - 2 * std), x(mean + 2 * std)];
      context.fillRect(low, y - each * 0.16, Math.max(high - low, 3), each * 0.32);
      context.globalAlpha = 1;
      if (observation && setup.told[i].length) {
        context.strokeStyle = COLOURS.seen;
        context.lineWidth = 3;
        context.beginPath();
        context.moveTo(x(observation[i]), y - each * 0.2);
        context.lineTo(x(observation[i]), y + each * 0.2);
        context.stroke();
      }
      context.fillStyle = COLOURS.truth;
      context.beginPath();
      context.arc(x(truth), y, 6, 0, 2 * Math.PI);
      context.fill();
    });
  }

  gaugeAt(event) {
    const box = this.stage.getBoundingClientRect();
    const place = Math.floor((event.clientY - box.top - 30) / this.gaugeHeight);
    return Math.min(Math.max(place, 0), this.setup.states.length - 1);
  }

  drawStrips() {
    const { loop, setup } = this;
    const byId = (id) => document.getElementById(id);
    const seconds = Math.max(setup.steps * setup.dt, 4 * this.speed);
    const shown = loop.history.filter(({ time }) => time >= loop.time - seconds - setup.dt);
    const latest = shown[shown.length - 1];
    const i = Number(byId("state").value);
    const span = [Infinity, -Infinity];
    for (const { truth, mean, std } of shown) {
      span[0] = Math.min(span[0], truth[i], mean[i] - 2 * std[i]);
      span[1] = Math.max(span[1], truth[i], mean[i] + 2 * std[i]);
    }
    const pad = 0.06 * (span[1] - span[0]) || 0.1;
    const state = strip(byId("state-strip"), loop.time, seconds, span[0] - pad, span[1] + pad);
    const band = state.context;
    band.fillStyle = COLOURS.belief;
    band.globalAlpha = 0.3;
    band.beginPath();
    shown.forEach(({ time, mean, std }) => band.lineTo(state.x(time), state.y(mean[i] + 2 * std[i])));
    [...shown].reverse().forEach(({ time, mean, std }) => band.lineTo(state.x(time), state.y(mean[i] - 2 * std[i])));
    band.fill();
    band.globalAlpha = 1;
    band.fillStyle = COLOURS.seen;
    for (const { time, observation, told } of shown)
      if (observation && told[i]) band.fillRect(state.x(time) - 1.5, state.y(observation[i]) - 1.5, 3, 3);
    band.strokeStyle = COLOURS.truth;
    band.lineWidth = 1.8;
    trace(band, shown, state.x, state.y, ({ truth }) => truth[i]);
    band.restore();
    byId("state-value").textContent = `${short(latest.truth[i])}, believed ${short(latest.mean[i])} ± ${short(latest.std[i])}`;

    const low = Math.min(...setup.low);
    const high = Math.max(...setup.high);
    const room = 0.08 * (high - low);
    const action = strip(byId("action-strip"), loop.time, seconds, low - room, high + room, [low, high]);
    setup.actions.forEach((_, k) => {
      action.context.strokeStyle = [COLOURS.belief, COLOURS.executed, COLOURS.good, COLOURS.other][k % 4];
      action.context.lineWidth = 1.8;
      const held = shown.flatMap((entry) => [entry, { ...entry, time: entry.time + setup.dt }]);
      trace(action.context, held, action.x, action.y, (entry) => entry.action[k]);
    });
    action.context.restore();
    byId("action-value").textContent = latest.action.map(short).join(", ");

    const surprise = strip(byId("surprise-strip"), loop.time, seconds, 0, 5, [1]);
    surprise.context.strokeStyle = COLOURS.executed;
    surprise.context.lineWidth = 1.8;
    trace(surprise.context, shown, surprise.x, surprise.y, (entry) => (entry.surprise === null ? null : Math.min(entry.surprise, 5)));
    surprise.context.fillStyle = COLOURS.text;
    for (const entry of shown)
      if (entry.rejected) {
        surprise.context.beginPath();
        surprise.context.arc(surprise.x(entry.time), surprise.y(Math.min(entry.surprise ?? 5, 5)), 4, 0, 2 * Math.PI);
        surprise.context.fill();
      }
    surprise.context.restore();
  }
}

/** Numbers of the setup that are used as matrices. */
function prepared(setup) {
  const matrix = (rows) => rows.map((row) => (row === null ? null : vector(row)));
  for (const name of ["embedding", "initial_root", "estimate"]) setup[name] = matrix(setup[name]);
  for (const sensor of setup.sensors) sensor.of = vector(sensor.of);
  return setup;
}

if (typeof document !== "undefined") {
  const setup = prepared(JSON.parse(document.getElementById("setup").textContent));
  const loop = new Loop(setup, Number(new URLSearchParams(location.search).get("seed") ?? Date.now()));
  window.playground = { setup, loop, page: new Page(setup, loop), agreement: null };
  setTimeout(() => {
    const worst = agreement(setup);
    window.playground.agreement = worst;
    const sentence =
      worst < 1e-9
        ? `The controller on this page agrees with the Python controller on a recorded episode: the largest difference is ${worst.toExponential(1)}.`
        : `Attention: the controller on this page differs from the Python controller by ${worst.toExponential(1)} on a recorded episode.`;
    document.getElementById("agreement").textContent = sentence;
  }, 300);
}
