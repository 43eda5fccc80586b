// Charts as SVG: lines, bands and dots over two axes, redrawn when their place changes its width.
//
//   new Chart(place, { label, xLabel, yLabel, x: [low, high], y: [low, high], height, integers, named, series, rules })
//
//   series   [{ kind: "line" | "band" | "dots", x, y, low, high, colour, dashed, width, opacity, label }]
//   rules    [{ y, label }]: horizontal lines
//   named    [{ x, label }]: places of the horizontal axis that have a name instead of a number
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

/** The smallest and the largest finite number of some arrays, with some room. */
function extent(arrays, room = 0.06) {
  let [low, high] = [Infinity, -Infinity];
  for (const array of arrays)
    for (const value of array)
      if (value !== null && Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high) return [0, 1];
  const pad = room * (high - low) || 0.1 * Math.abs(high) || 0.1;
  return [low - pad, high + pad];
}

class Chart {
  constructor(place, options) {
    this.place = place;
    this.options = options;
    this.cursorTime = null;
    this.drawnWidth = 0;
    new ResizeObserver(() => {
      if (Math.abs(place.clientWidth - this.drawnWidth) > 0.5) this.draw();
    }).observe(place);
    this.draw();
  }

  change(options) {
    this.options = { ...this.options, ...options };
    this.draw();
  }

  draw() {
    const { label, xLabel, yLabel, x, y, height = 200, integers, named = [], series, rules = [] } = this.options;
    const width = this.place.clientWidth;
    this.drawnWidth = width;
    if (!width) return;
    const [left, right, top, bottom] = [52, 8, 22, 34];
    const px = (value) => left + ((width - left - right) * (value - x[0])) / (x[1] - x[0] || 1);
    const py = (value) => height - bottom - ((height - top - bottom) * (value - y[0])) / (y[1] - y[0] || 1);
    this.px = px;
    this.span = [top, height - bottom];
    const drawing = svg("svg", { width, height, role: "img", "aria-label": label });
    for (const value of ticks(y[0], y[1], 4)) {
      drawing.append(svg("line", { x1: left, x2: width - right, y1: py(value), y2: py(value), class: "grid" }));
      drawing.append(svg("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end", class: "tick" }, short(value)));
    }
    const numbers = ticks(x[0], x[1], Math.max(2, Math.floor((width - left - right) / 60)))
      .filter((v) => (!integers || Number.isInteger(v)) && named.every((name) => Math.abs(px(name.x) - px(v)) > 24))
      .map((v) => ({ x: v, label: short(v) }));
    for (const { x: value, label: name } of [...numbers, ...named]) {
      drawing.append(svg("line", { x1: px(value), x2: px(value), y1: height - bottom, y2: height - bottom + 4, class: "axis" }));
      drawing.append(svg("text", { x: px(value), y: height - bottom + 17, "text-anchor": "middle", class: "tick" }, name));
    }
    drawing.append(svg("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }));
    drawing.append(svg("text", { x: 4, y: 13, class: "name" }, yLabel));
    if (xLabel) drawing.append(svg("text", { x: width - right, y: height - 3, "text-anchor": "end", class: "tick" }, xLabel));
    const clip = svg("svg", { x: left, y: top - 4, width: width - left - right, height: height - top - bottom + 8 });
    const inner = svg("g", { transform: `translate(${-left} ${-(top - 4)})` });
    clip.append(inner);
    drawing.append(clip);
    for (const { y: at, label: name } of rules) {
      inner.append(svg("line", { x1: left, x2: width, y1: py(at), y2: py(at), class: "rule" }));
      if (name) inner.append(svg("text", { x: width - right - 4, y: py(at) - 4, "text-anchor": "end", class: "tick" }, name));
    }
    for (const each of series) this.drawSeries(inner, each, px, py);
    this.cursor = svg("line", { y1: top, y2: height - bottom, class: "cursor", visibility: "hidden" });
    drawing.append(this.cursor);
    this.place.replaceChildren(drawing);
    if (this.cursorTime !== null) this.point(this.cursorTime);
  }

  drawSeries(inner, { kind, x, y, low, high, colour, dashed, width = 2, opacity = 1, size = 2 }, px, py) {
    const there = (value) => value !== null && value !== undefined && Number.isFinite(value);
    const at = (value, k) => `${px(x[k]).toFixed(1)} ${py(value).toFixed(1)}`;
    if (kind === "band") {
      const kept = low.map((_, k) => k).filter((k) => there(low[k]) && there(high[k]));
      if (!kept.length) return;
      const around = [...kept.map((k) => at(high[k], k)), ...[...kept].reverse().map((k) => at(low[k], k))];
      inner.append(svg("path", { d: `M${around.join("L")}Z`, fill: colour, "fill-opacity": opacity, stroke: "none" }));
    } else if (kind === "dots") {
      y.forEach((value, k) => {
        if (there(value)) inner.append(svg("circle", { cx: px(x[k]), cy: py(value), r: size, fill: colour, "fill-opacity": opacity }));
      });
    } else {
      let path = "";
      y.forEach((value, k) => {
        if (there(value)) path += `${path && there(y[k - 1]) ? "L" : "M"}${at(value, k)}`;
      });
      const style = { d: path, fill: "none", stroke: colour, "stroke-width": width, "stroke-opacity": opacity };
      inner.append(svg("path", dashed ? { ...style, "stroke-dasharray": dashed } : style));
    }
  }

  /** A line across the chart at this place. */
  point(time) {
    this.cursorTime = time;
    if (!this.cursor) return;
    this.cursor.setAttribute("x1", this.px(time));
    this.cursor.setAttribute("x2", this.px(time));
    this.cursor.setAttribute("visibility", "visible");
  }
}
