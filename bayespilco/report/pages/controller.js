// The exported controller, as `bayespilco.deploy.controller` runs it: the same file, the same formulas, the same order.
// `innovation`, `update`, `features`, `policy` and `predict` are those of `filter.py`, `judge` that of `gate.py`, and
// `Controller` that of `controller.py`.
"use strict";

/** The description and the arrays of a controller's file (safetensors: a length, a JSON header, numbers). */
function parseController(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const described = Object.entries(metadata).filter(([name]) => name !== "format" && name !== "sha256");
  const description = Object.fromEntries(described.map(([name, text]) => [name, JSON.parse(text)]));
  const arrays = {};
  for (const [name, { shape, data_offsets: offsets }] of Object.entries(entries)) {
    const numbers = new Float64Array(bytes.buffer.slice(8 + length + offsets[0], 8 + length + offsets[1]));
    arrays[name] = shaped(numbers, shape);
  }
  return { description, arrays };
}

/** Nested arrays of this shape; the innermost are Float64Arrays. */
function shaped(numbers, shape) {
  if (shape.length === 1) return numbers;
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  return Array.from({ length: shape[0] }, (_, i) => shaped(numbers.slice(i * size, (i + 1) * size), shape.slice(1)));
}

/** The variances that are expected of the sensors under a belief. */
function sensorNoise(a, m, V) {
  if (!a.sensor_growth) return a.sensor_noise;
  return a.sensor_noise.map((noise, s) => {
    let times = 1;
    a.sensor_growth[s].forEach((growth, i) => (times += growth * ((m[i] - a.sensor_best_at[s][i]) ** 2 + V[i][i])));
    return noise * times;
  });
}

/**
 * What was measured minus what was expected, and the predicted variance of that, per sensor. NaN is missing.
 * Sensors of an angle may wrap: the difference is the shortest way around.
 */
function innovation(a, m, V, z) {
  const C = a.sensor_matrix;
  const difference = C.map((row, i) => {
    if (!isSeen(z[i])) return NaN;
    const [away, turn] = [z[i] - dot(row, m) - a.sensor_offset[i], a.sensor_turn[i]];
    return turn > 0 ? away - Math.round(away / turn) * turn : away;
  });
  const noise = sensorNoise(a, m, V);
  const variance = C.map((row, i) => dot(row, apply(V, row)) + noise[i]);
  return { difference, variance };
}

/** Combine a belief with the entries of an innovation that are there. */
function update(a, m, V, difference) {
  const C = a.sensor_matrix;
  const seen = difference.map(isSeen);
  if (!seen.some(Boolean)) return { mean: m, cov: V };
  const noises = sensorNoise(a, m, V);
  const precisionRoot = diagonal(noises.map((noise, i) => (seen[i] ? Math.sqrt(1 / noise) : 0)));
  const CVC = multiply(C, multiply(V, transpose(C)));
  const { inverse } = shrink(precisionRoot, CVC); // (C V C' + R)^-1, zero where nothing is seen
  const K = multiply(multiply(V, transpose(C)), inverse);
  const rest = sum(identity(m.length), multiply(K, C).map((row) => row.map((value) => -value)));
  const noisy = K.map((row) => row.map((value, j) => value * noises[j]));
  const updated = sum(multiply(multiply(rest, V), transpose(rest)), multiply(noisy, transpose(K)));
  const step = apply(K, difference.map((value, i) => (seen[i] ? value : 0)));
  const mean = m.map((value, i) => value + step[i]);
  requireFinite(mean, updated);
  return { mean, cov: symmetrised(updated) };
}

const FIRST_CREDIT = 1;

/** Which entries of an observation are believed, and whether the belief has to be widened (`gate.py`). */
function judge(difference, variance, wideVariance, repeated, credit, gate, patience) {
  const seen = difference.map(isSeen);
  if (gate === 0) return { accepted: seen, rejected: seen.map(() => false), widen: false, credit };
  const beyond = (i, variances) => seen[i] && Math.abs(difference[i]) > gate * Math.sqrt(variances[i]);
  const doubtful = seen.map((_, i) => beyond(i, variance));
  const absurd = seen.map((_, i) => beyond(i, wideVariance));
  const widen = seen.some((_, i) => doubtful[i] && !absurd[i] && !repeated[i] && credit[i] === 0);
  const rejected = seen.map((there, i) => (widen ? absurd : doubtful)[i] || (there && repeated[i] && credit[i] > 0));
  const left = credit.map((value, i) => {
    const earned = seen[i] ? (rejected[i] ? -1 : 1) : 0;
    return Math.min(Math.max((widen ? 0 : value) + earned, 0), patience);
  });
  return { accepted: seen.map((there, i) => there && !rejected[i]), rejected, widen, credit: left };
}

/** `L x + M u + k_t`: what is known of the next state. */
function knownRows(a, x, u, t) {
  const moved = apply(a.transition, x);
  const acted = apply(a.action_matrix, u);
  return moved.map((value, i) => value + acted[i] + (t < a.drift.length ? a.drift[t][i] : 0));
}

/** Mean, covariance and gain of `[x[keep], sin x_a, cos x_a, ...]`. The gain is how they change with x on average. */
function features(m, V, angles, keep) {
  const twice = angles.flatMap((angle) => [angle, angle]);
  const size = keep.length + twice.length;
  const t = twice.map((index, k) => m[index] + (k % 2 ? Math.PI / 2 : 0));
  const variance = twice.map((index) => V[index][index]);
  const damping = variance.map((value) => Math.exp(-Math.max(value, 0) / 2));
  const mean = vector([...keep.map((index) => m[index]), ...t.map((angle, k) => damping[k] * Math.sin(angle))]);
  const cov = zeros(size, size);
  const gain = zeros(m.length, size);
  keep.forEach((index, i) => {
    gain[index][i] = 1;
    keep.forEach((other, j) => (cov[i][j] = V[index][other]));
    twice.forEach((angle, k) => {
      cov[i][keep.length + k] = cov[keep.length + k][i] = V[index][angle] * damping[k] * Math.cos(t[k]);
    });
  });
  twice.forEach((angle, k) => {
    gain[angle][keep.length + k] = damping[k] * Math.cos(t[k]);
    twice.forEach((other, l) => {
      // exp(-(v_k + v_l)/2) (exp(+-S) - 1), written so that small S does not cancel and large S does not overflow.
      const S = V[angle][other];
      const spread = (variance[k] + variance[l]) / 2;
      const above = Math.max(S, 0);
      const below = Math.min(S, 0);
      const excess = -Math.expm1(-above) * Math.exp(above - spread) + Math.expm1(below) * Math.exp(-spread);
      const deficit = Math.expm1(-above) * Math.exp(-spread) - Math.expm1(below) * Math.exp(-below - spread);
      cov[keep.length + k][keep.length + l] = (excess * Math.cos(t[k] - t[l]) - deficit * Math.cos(t[k] + t[l])) / 2;
    });
  });
  return { mean, cov, gain };
}

/**
 * The action for the mean of the policy's features: kernels plus a linear map, squashed to the limits. A policy of the
 * whole belief also looks at its covariance V.
 */
function policy(a, x, V) {
  const doubt = a.policy_scale ? Array.from(a.policy_doubt, (r, i) => Math.log1p(Math.max(V[i][i], 0) / r)) : null;
  return a.limits.map((limit, output) => {
    let y = dot(a.policy_slope[output], x) + a.policy_offset[output];
    const scales = a.policy_length_scales[output];
    a.policy_inputs.forEach((centre, p) => {
      let squares = 0;
      for (let i = 0; i < x.length; i++) squares += ((x[i] - centre[i]) / scales[i]) ** 2;
      y += a.policy_weights[output][p] * a.policy_signal_variance[output] * Math.exp(-squares / 2);
    });
    if (doubt) {
      const exponent = Math.min(Math.max(dot(a.policy_scale[output], doubt), -20), 20);
      y = Math.exp(exponent) * y + dot(a.policy_shift[output], doubt);
    }
    const squashed = (9 * Math.sin(y) + Math.sin(3 * y)) / 8;
    return a.middle[output] + limit * Math.min(Math.max(squashed, -1), 1);
  });
}

/** `H (E - G')`: how the slope of the GP corrects the known rows (`structure.py`). */
function correction(a, G) {
  const difference = a.rate_rows.map((row, o) => row.map((value, k) => value - G[k][o]));
  return multiply(a.correction, difference);
}

/** The next belief: the joint of belief and action through the GP, between the known rows. */
function predict(a, m, V, u, t, angles, keep) {
  const n = m.length;
  const S = zeros(n + u.length, n + u.length);
  for (let i = 0; i < n; i++) S[i].set(V[i]);
  const joint = vector([...m, ...u]);
  const input = features(joint, S, angles, keep);
  const output = throughGp(a, input.mean, input.cov);
  const G = multiply(input.gain, output.gain);
  const turned = correction(a, G);
  const more = multiply(turned, a.moves);
  const N = sum(
    a.transition.map((row, i) => vector([...row, ...a.action_matrix[i]])),
    more
  );
  const B = sum(a.output_matrix, multiply(turned, a.output_matrix));
  const cross = multiply(multiply(multiply(N, S), G), transpose(B));
  const known = knownRows(a, m, u, t);
  const learned = apply(B, output.mean);
  const corrected = apply(more, joint);
  const mean = known.map((value, i) => value + corrected[i] + learned[i]);
  const cov = sum(
    multiply(multiply(N, S), transpose(N)),
    multiply(multiply(B, output.cov), transpose(B)),
    cross,
    transpose(cross),
    diagonal(a.process_noise)
  );
  requireFinite(mean, cov);
  return { mean, cov: symmetrised(cov) };
}

/** Mean, covariance and gain of the GP's output at an input `N(mu, S)`. */
function throughGp(a, mu, S) {
  const outputs = a.signal_variance.length;
  const points = a.inputs.length;
  const size = mu.length;
  const X = a.inputs.map((row) => row.map((value, i) => value - mu[i]));
  const inverse = a.length_scales.map((scales) => scales.map((scale) => scale ** -2));
  const beta = a.weights.map((row, o) => row.map((weight) => a.signal_variance[o] * weight));
  const mean = new Float64Array(outputs);
  const kernelMean = new Float64Array(outputs);
  const variance = new Float64Array(outputs);
  const C = zeros(size, outputs);
  const moment = zeros(1 + size, 1 + size); // of [1, input]
  const one = [1, ...mu];
  for (let i = 0; i <= size; i++)
    for (let j = 0; j <= size; j++) moment[i][j] = one[i] * one[j] + (i && j ? S[i - 1][j - 1] : 0);
  for (let o = 0; o < outputs; o++) {
    // q: the expectation of each kernel. From it follow the mean, its slope, and part of the variance.
    const { inverse: A, logDet } = shrink(diagonal(inverse[o].map(Math.sqrt)), S); // (L + S)^-1
    const weighted = new Float64Array(size);
    for (let p = 0; p < points; p++) {
      const AX = apply(A, X[p]);
      const q = Math.exp(logDet - dot(AX, X[p]) / 2);
      const part = beta[o][p] * q;
      kernelMean[o] += part;
      for (let i = 0; i < size; i++) weighted[i] += part * X[p][i];
      const H = a.cross_cov[o][p];
      let linear = H[0];
      for (let i = 0; i < size; i++) linear += H[1 + i] * (mu[i] + dot(AX, S[i]));
      variance[o] += 2 * a.signal_variance[o] * q * linear;
    }
    mean[o] = kernelMean[o] + dot(a.slope[o], mu) + a.offset[o];
    const slope = apply(A, weighted);
    for (let i = 0; i < size; i++) C[i][o] = slope[i];
    for (let i = 0; i <= size; i++) variance[o] += dot(a.linear_cov[o][i], moment[i]);
  }
  // Q: the expectation of each product of two kernels. From it follows the covariance.
  const inputRoot = root(S);
  const b = inverse.map((row) => X.map((x) => x.map((value, i) => value * row[i])));
  const cov = zeros(outputs, outputs);
  for (let i = 0; i < outputs; i++)
    for (let j = i; j < outputs; j++) {
      const both = diagonal(inverse[i].map((value, k) => value + inverse[j][k]));
      const { inverse: T, logDet: scale } = shrink(inputRoot, both);
      const bT = b[i].map((row) => apply(T, row));
      const side = (o) => b[o].map((row, p) => (dot(row, apply(T, row)) - dot(row, X[p]) + scale) / 2);
      const left = side(i);
      const right = i === j ? left : side(j);
      const W = i === j ? a.precision[i] : null;
      let second = 0;
      let explained = 0;
      for (let p = 0; p < points; p++) {
        let inner = 0;
        for (let q = 0; q < points; q++) {
          const E = Math.exp(left[p] + right[q] + dot(bT[p], b[j][q]));
          inner += E * beta[j][q];
          if (W) explained += W[p][q] * E;
        }
        second += beta[i][p] * inner;
      }
      cov[i][j] = cov[j][i] = second - kernelMean[i] * kernelMean[j];
      if (W) variance[i] += a.signal_variance[i] - a.signal_variance[i] ** 2 * explained;
    }
  const cross = multiply(multiply(transpose(C), S), transpose(a.slope));
  const ofSlope = multiply(multiply(a.slope, S), transpose(a.slope));
  const gain = sum(C, transpose(a.slope));
  return { mean, cov: sum(cov, cross, transpose(cross), ofSlope, diagonal(variance)), gain };
}

/** One step at a time: `observe` what the sensors say, `decide` on an action, `advance` to the next step. */
class Controller {
  constructor(base64) {
    Object.assign(this, parseController(base64));
    this.filters = "inputs" in this.arrays;
    this.reset();
  }

  reset() {
    this.mean = Float64Array.from(this.arrays.initial_mean);
    this.cov = copied(this.arrays.initial_cov);
    this.latest = this.description.sensors.map(() => NaN);
    this.credit = this.latest.map(() => Math.min(FIRST_CREDIT, this.description.patience));
    this.rejected = this.latest.map(() => false);
    this.surprise = this.latest.map(() => NaN); // of each sensor, in predicted standard deviations
    this.steps = 0;
    this.restarts = 0;
  }

  act(z) {
    this.observe(z);
    const u = this.decide();
    this.advance(u);
    return u;
  }

  observe(z) {
    if (this.filters) this._filter(z);
    else this._takeAsItIs(z);
  }

  decide() {
    const d = this.description;
    const cov = this.filters ? this.cov : zeros(this.mean.length, this.mean.length);
    return policy(this.arrays, features(this.mean, cov, d.policy_angles, d.policy_keep).mean, cov);
  }

  /** Whatever was decided, `u` is what the plant gets. */
  advance(u) {
    const [a, d] = [this.arrays, this.description];
    if (this.filters) {
      try {
        Object.assign(this, predict(a, this.mean, this.cov, u, this.steps, d.model_angles, d.model_keep));
      } catch (error) {
        this._restart(error, knownRows(a, this.mean, u, this.steps));
      }
    } else {
      const known = knownRows(a, this.mean, u, this.steps);
      for (let i = a.estimate.length; i < known.length; i++) this.mean[i] = known[i];
    }
    this.steps += 1;
  }

  /** The targets' values, where they are not those of the path. */
  follow(targets) {
    this.description.references.forEach((row, i) => (this.mean[row] = targets[i]));
  }

  _filter(z) {
    const a = this.arrays;
    try {
      Object.assign(this, this._gated(z));
    } catch (error) {
      this._restart(error, this.mean);
      try {
        Object.assign(this, update(a, this.mean, this.cov, innovation(a, this.mean, this.cov, z).difference));
      } catch (again) {
        if (!(again instanceof NotFinite)) throw again;
      }
    }
  }

  /** The belief combined with those entries of an observation that pass the gate. */
  _gated(z) {
    const [a, { gate, patience }] = [this.arrays, this.description];
    const { difference, variance } = innovation(a, this.mean, this.cov, z);
    const [noise, wide] = [this.cov, sum(this.cov, a.wide_cov)].map((cov) => sensorNoise(a, this.mean, cov));
    const added = a.sensor_matrix.map((row, i) => dot(row, apply(a.wide_cov, row)) + (wide[i] - noise[i]));
    const wider = variance.map((value, i) => value + added[i]);
    const repeated = this.latest.map((value, i) => z[i] === value);
    this.latest = this.latest.map((value, i) => (isSeen(z[i]) ? z[i] : value));
    const verdict = judge(difference, variance, wider, repeated, this.credit, gate, patience);
    this.surprise = difference.map((value, i) => value / Math.sqrt(variance[i]));
    [this.rejected, this.credit] = [verdict.rejected, verdict.credit];
    if (verdict.widen) this.restarts += 1;
    const cov = verdict.widen ? sum(this.cov, a.wide_cov) : this.cov;
    return update(a, this.mean, cov, difference.map((value, i) => (verdict.accepted[i] ? value : NaN)));
  }

  /** The policy sees what the last observation alone says. Before its first sample a sensor says what is expected. */
  _takeAsItIs(z) {
    const { estimate, sensor_offset: offset } = this.arrays;
    this.latest = this.latest.map((value, i) => (isSeen(z[i]) ? z[i] : value));
    const there = this.latest.map(isSeen);
    const told = vector(this.latest.map((value, i) => (there[i] ? value - offset[i] : 0)));
    estimate.forEach((row, i) => {
      if (row.every((weight, j) => weight === 0 || there[j])) this.mean[i] = dot(row, told);
    });
  }

  /** The way out after an overflow, which happens when the plant is far from everything in the data. */
  _restart(error, rows) {
    if (!(error instanceof NotFinite)) throw error;
    this.restarts += 1;
    const mean = Float64Array.from(this.arrays.initial_mean);
    for (const row of this.description.known) if (isSeen(rows[row])) mean[row] = rows[row];
    this.mean = mean;
    this.cov = sum(this.arrays.initial_cov, this.arrays.wide_cov);
  }
}
