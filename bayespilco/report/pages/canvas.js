// Drawing on a canvas: sizes in CSS pixels on any screen, and colours from the style sheet, light or dark.
"use strict";

const COLOURS = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "panel", "line", "text", "quiet", "truth", "belief", "seen", "executed", "good", "other"])
    COLOURS[name] = style.getPropertyValue(`--${name}`).trim();
}

/** A context cleared and scaled to CSS pixels, with the canvas's size. */
function cleared(canvas) {
  const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** A number with three digits, without exponents where that is possible. */
function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

/** Round numbers between low and high, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

/**
 * A strip over the last seconds: `low` to `high` upwards, now at the right.
 * Returns the context and the maps from time and value to pixels.
 */
function strip(canvas, now, seconds, low, high, lines = []) {
  const { context, width, height } = cleared(canvas);
  const left = 44;
  const x = (time) => left + ((width - left - 4) * (time - now + seconds)) / seconds;
  const y = (value) => height - 6 - ((height - 14) * (value - low)) / (high - low);
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  for (const value of ticks(low, high, 3)) {
    context.strokeStyle = COLOURS.line;
    context.beginPath();
    context.moveTo(left, Math.round(y(value)) + 0.5);
    context.lineTo(width, Math.round(y(value)) + 0.5);
    context.stroke();
    context.fillStyle = COLOURS.quiet;
    context.fillText(short(value), left - 6, Math.min(Math.max(y(value), 7), height - 7));
  }
  for (const value of lines) {
    context.setLineDash([2, 4]);
    context.strokeStyle = COLOURS.quiet;
    context.beginPath();
    context.moveTo(left, y(value));
    context.lineTo(width, y(value));
    context.stroke();
    context.setLineDash([]);
  }
  context.save();
  context.beginPath();
  context.rect(left, 0, width - left, height);
  context.clip();
  return { context, x, y };
}

/** A line through the points of a history; a gap where `value` gives null. */
function trace(context, history, x, y, value) {
  context.beginPath();
  let drawing = false;
  for (const entry of history) {
    const v = value(entry);
    if (v === null || !Number.isFinite(v)) {
      drawing = false;
      continue;
    }
    if (drawing) context.lineTo(x(entry.time), y(v));
    else context.moveTo(x(entry.time), y(v));
    drawing = true;
  }
  context.stroke();
}
