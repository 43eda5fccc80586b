// The built-in plants: their equations of motion and how they look, as in `bayespilco.tasks`, and what a push does.
//
//   substeps               Runge-Kutta steps in one sampling period
//   derivative(x, u)       the equation of motion
//   lines(x)               what to draw: lines in a plane, in metres
//   goal(targets)          where the last line should end
//   track                  the height of the ground, if there is one
//   view                   the part of the plane to show: [left, bottom, right, top]
//   follows                the state that moves the view sideways, if any
//   handles                what can be pushed: where it is, and how a force (fx, fy) on it changes the derivative
//   force                  how hard a key pushes, times the handle's own strength
"use strict";

const { sin, cos } = Math;

const CART = { mc: 0.5, mp: 0.5, l: 0.2, b: 0.1, g: 9.82 };
const PENDULUM = { m: 1, l: 1, b: 0.01, g: 9.82 };
const DOUBLE = { m: 0.5, l: 0.5, g: 9.82, friction: 0.1 };
const SPRING = { mass: 1, stiffness: 1, damping: 0.4 };
const TANK = { area: 15.5, outlet: 0.18, pump: 4.6, g: 982 };
const SERVO = { friction: 2, gain: 6, spring: 3 };
const VEHICLE = { lag: 0.3, light: [2.5, 3], goal: [5, 0] };

/** Accelerations of cart and pole due to generalised forces. */
function cartPoleResponse(theta, along, around) {
  const { mc, mp, l } = CART;
  const c = cos(theta);
  const shared = 4 * (mc + mp) - 3 * mp * c ** 2;
  const cart = (4 * along + (6 * c * around) / l) / shared;
  const pole = ((6 * c * along) / l + (12 * (mc + mp) * around) / (mp * l ** 2)) / shared;
  return [0, 0, cart, pole];
}

/** Accelerations of the two links due to generalised forces. */
function doubleResponse(x, inner, outer) {
  const { m, l } = DOUBLE;
  const c = cos(x[0] - x[1]);
  const [first, second] = [inner / (m * l ** 2), outer / (m * l ** 2)];
  const determinant = 4 / 9 - c ** 2 / 4;
  return [0, 0, (first / 3 - (c * second) / 2) / determinant, ((4 * second) / 3 - (c * first) / 2) / determinant];
}

const PLANTS = {
  "cart-pole": {
    substeps: 40,
    derivative(x, u) {
      const { mc, mp, l, b, g } = CART;
      const [, theta, v, omega] = x;
      const [s, c, force] = [sin(theta), cos(theta), u[0]];
      const shared = 4 * (mc + mp) - 3 * mp * c ** 2;
      const acceleration = (-2 * mp * l * omega ** 2 * s + 3 * mp * g * s * c + 4 * force - 4 * b * v) / shared;
      const spin =
        (-3 * mp * l * omega ** 2 * s * c + 6 * (mc + mp) * g * s + 6 * (force - b * v) * c) / (l * shared);
      return [v, omega, acceleration, spin];
    },
    lines(x) {
      const box = [[-0.1, -0.03], [0.1, -0.03], [0.1, 0.03], [-0.1, 0.03], [-0.1, -0.03]];
      const tip = [x[0] - CART.l * sin(x[1]), CART.l * cos(x[1])];
      return [box.map(([a, b]) => [x[0] + a, b]), [[x[0], 0], tip]];
    },
    goal: () => [0, CART.l],
    view: [-0.75, -0.27, 0.75, 0.3],
    follows: 0,
    track: -0.03,
    force: 8,
    handles: [
      {
        name: "pole",
        at: (x) => [x[0] - CART.l * sin(x[1]), CART.l * cos(x[1])],
        response: (x, [fx, fy]) => cartPoleResponse(x[1], fx, -CART.l * (cos(x[1]) * fx + sin(x[1]) * fy)),
        strength: 0.12,
      },
      {
        name: "cart",
        at: (x) => [x[0], 0],
        response: (x, [fx]) => cartPoleResponse(x[1], fx, 0),
        strength: 0.5,
      },
    ],
  },
  pendulum: {
    substeps: 40,
    derivative(x, u) {
      const { m, l, b, g } = PENDULUM;
      const [theta, omega] = x;
      return [omega, (u[0] - b * omega + (m * g * l * sin(theta)) / 2) / ((m * l ** 2) / 3)];
    },
    lines: (x) => [[[0, 0], [PENDULUM.l * sin(x[0]), PENDULUM.l * cos(x[0])]]],
    goal: () => [0, PENDULUM.l],
    view: [-1.5, -1.15, 1.5, 1.15],
    force: 5,
    handles: [
      {
        name: "tip",
        at: (x) => [PENDULUM.l * sin(x[0]), PENDULUM.l * cos(x[0])],
        response: (x, [fx, fy]) => {
          const { m, l } = PENDULUM;
          return [0, (l * (cos(x[0]) * fx - sin(x[0]) * fy)) / ((m * l ** 2) / 3)];
        },
      },
    ],
  },
  "double-pendulum": {
    substeps: 320,
    derivative(x, u) {
      const { m, l, g, friction } = DOUBLE;
      const [inner, outer, a, b] = x;
      const shoulder = u[0] - friction * a;
      const elbow = u[1] - friction * (b - a);
      const [s, c] = [sin(inner - outer), cos(inner - outer)];
      const first = (shoulder - elbow) / (m * l ** 2) + ((3 / 2) * g * sin(inner)) / l - (b ** 2 * s) / 2;
      const second = elbow / (m * l ** 2) + (g / (2 * l)) * sin(outer) + (a ** 2 * s) / 2;
      const determinant = 4 / 9 - c ** 2 / 4;
      return [a, b, (first / 3 - (c * second) / 2) / determinant, ((4 * second) / 3 - (c * first) / 2) / determinant];
    },
    lines(x) {
      const elbow = [DOUBLE.l * sin(x[0]), DOUBLE.l * cos(x[0])];
      return [[[0, 0], elbow, [elbow[0] + DOUBLE.l * sin(x[1]), elbow[1] + DOUBLE.l * cos(x[1])]]];
    },
    goal: () => [0, 2 * DOUBLE.l],
    view: [-1.5, -1.15, 1.5, 1.15],
    force: 4,
    handles: [
      {
        name: "tip",
        at: (x) => [DOUBLE.l * (sin(x[0]) + sin(x[1])), DOUBLE.l * (cos(x[0]) + cos(x[1]))],
        response: (x, [fx, fy]) => {
          const torque = (angle) => DOUBLE.l * (cos(angle) * fx - sin(angle) * fy);
          return doubleResponse(x, torque(x[0]), torque(x[1]));
        },
      },
      {
        name: "elbow",
        at: (x) => [DOUBLE.l * sin(x[0]), DOUBLE.l * cos(x[0])],
        response: (x, [fx, fy]) => doubleResponse(x, DOUBLE.l * (cos(x[0]) * fx - sin(x[0]) * fy), 0),
      },
    ],
  },
  spring: {
    substeps: 40,
    derivative(x, u) {
      const { mass, stiffness, damping } = SPRING;
      return [x[1], (u[0] - stiffness * x[0] - damping * x[1]) / mass];
    },
    lines(x) {
      const side = [0, 0, ...Array.from({ length: 12 }, (_, i) => (i % 2 ? -1 : 1)), 0, 0];
      const coil = side.map((up, i) => [-1 + ((x[0] - 0.1 + 1) * i) / 15, 0.05 * up]);
      const box = [[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]].map(([a, b]) => [x[0] + 0.1 * a, 0.1 * b]);
      return [coil, box, [[x[0], 0]]];
    },
    goal: () => [0.5, 0],
    view: [-1.05, -0.4, 1.25, 0.4],
    track: -0.1,
    force: 2,
    handles: [{ name: "mass", at: (x) => [x[0], 0], response: (x, [fx]) => [0, fx / SPRING.mass] }],
  },
  tank: {
    substeps: 100,
    derivative(x, u) {
      const { area, outlet, pump, g } = TANK;
      const outflow = [0, 1].map((i) => {
        const level = Math.max(x[i], 0);
        return (outlet * Math.sqrt(2 * g) * level) / Math.sqrt(level + 0.1);
      });
      return [(pump * u[0] - outflow[0]) / area, (outflow[0] - outflow[1]) / area];
    },
    lines(x) {
      const walls = (bottom) => [[0, bottom + 3], [0, bottom], [1, bottom], [1, bottom + 3]];
      const level = (bottom, height) => [[0, bottom + height / 10], [1, bottom + height / 10]];
      return [walls(3.5), level(3.5, x[0]), walls(0), level(0, x[1])];
    },
    goal: () => [1, 1.5],
    view: [-3.5, -0.2, 4.5, 6.7],
    force: 10,
    handles: [
      { name: "upper tank", at: (x) => [0.5, 3.5 + x[0] / 10], response: (x, [fx, fy]) => [(fx + fy) / 8, 0] },
      { name: "lower tank", at: (x) => [0.5, x[1] / 10], response: (x, [fx, fy]) => [0, (fx + fy) / 8] },
    ],
  },
  servo: {
    substeps: 20,
    derivative(x, u) {
      const { friction, gain, spring } = SERVO;
      return [x[1], gain * u[0] - friction * x[1] - spring * sin(x[0])];
    },
    lines: (x) => [[[0, 0], [sin(x[0]), cos(x[0])]]],
    goal: (targets) => [sin(targets[0]), cos(targets[0])],
    view: [-1.5, -0.35, 1.5, 1.2],
    force: 8,
    handles: [
      {
        name: "arm",
        at: (x) => [sin(x[0]), cos(x[0])],
        response: (x, [fx, fy]) => [0, cos(x[0]) * fx - sin(x[0]) * fy],
      },
    ],
  },
  "light-dark": {
    substeps: 150,
    derivative: (x, u) => [x[2], x[3], (u[0] - x[2]) / VEHICLE.lag, (u[1] - x[3]) / VEHICLE.lag],
    lines(x) {
      const [a, b] = VEHICLE.light;
      const rays = [0, 1, 2, 3].map((k) => {
        const [right, up] = [0.4 * cos((k * Math.PI) / 4), 0.4 * sin((k * Math.PI) / 4)];
        return [[a - right, b - up], [a + right, b + up]];
      });
      const box = [[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]].map(([i, j]) => [x[0] + 0.15 * i, x[1] + 0.15 * j]);
      return [...rays, box, [[x[0], x[1]]]];
    },
    goal: () => VEHICLE.goal,
    view: [-3, -2.5, 7, 4.5],
    force: 4,
    handles: [{ name: "vehicle", at: (x) => [x[0], x[1]], response: (x, [fx, fy]) => [0, 0, fx, fy] }],
  },
};

/** One Runge-Kutta step of order 4. */
function rungeKutta(slope, x, h) {
  const along = (k, factor) => x.map((value, i) => value + factor * k[i]);
  const k1 = slope(x);
  const k2 = slope(along(k1, h / 2));
  const k3 = slope(along(k2, h / 2));
  const k4 = slope(along(k3, h));
  return x.map((value, i) => value + (h / 6) * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]));
}

/** A plant that follows its equation of motion: `advance` by a number of its own small steps. */
class Equation {
  constructor(name, dt) {
    Object.assign(this, PLANTS[name]);
    this.h = dt / this.substeps;
  }

  /** `push` is the derivative's change in a state, or null. */
  advance(x, u, push) {
    const slope = push
      ? (x) => {
          const extra = push(x);
          return this.derivative(x, u).map((value, i) => value + extra[i]);
        }
      : (x) => this.derivative(x, u);
    return rungeKutta(slope, x, this.h);
  }
}

/** The learned model in the plant's place: the GP's mean, and the process noise that was learned. */
class LearnedModel {
  constructor(controller, states) {
    [this.controller, this.states, this.substeps] = [controller, states, 1];
  }

  /** How the outputs of the GP change with `[x, u]`. */
  slope(joint) {
    const { arrays: a, description: d } = this.controller;
    const nothing = zeros(joint.length, joint.length);
    const input = features(joint, nothing, d.model_angles, d.model_keep);
    const gain = throughGp(
      a,
      input.mean,
      input.mean.map(() => new Float64Array(input.mean.length))
    ).gain;
    return multiply(input.gain, gain);
  }

  /** All rows of the next state. */
  next(rows, u, t, gauss) {
    const { arrays: a, description: d } = this.controller;
    const joint = vector([...rows, ...u]);
    const nothing = zeros(joint.length, joint.length);
    const input = features(joint, nothing, d.model_angles, d.model_keep).mean;
    const y = a.offset.map((offset, o) => {
      let value = offset + dot(a.slope[o], input);
      a.inputs.forEach((centre, p) => {
        let squares = 0;
        for (let i = 0; i < input.length; i++) squares += ((input[i] - centre[i]) / a.length_scales[o][i]) ** 2;
        value += a.weights[o][p] * a.signal_variance[o] * Math.exp(-squares / 2);
      });
      return value;
    });
    const known = knownRows(a, rows, u, t);
    const learned = apply(a.output_matrix, y);
    const turned = correction(a, this.slope(joint));
    const moved = apply(a.moves, joint).map((value, i) => value + learned[i]);
    const corrected = apply(turned, moved);
    return known.map((value, i) => value + learned[i] + corrected[i] + Math.sqrt(a.process_noise[i]) * gauss());
  }
}
