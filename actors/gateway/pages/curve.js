// SPDX-License-Identifier: Apache-2.0
// Draws a metric over the steps of a job.

const kWidth = 640;
const kHeight = 220;
const kMargin = {left: 56, right: 12, top: 10, bottom: 28};
const kMaxDrawn = 1000;  // points; further ones are thinned out

function svg(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  if (text !== undefined) {
    element.textContent = text;
  }
  return element;
}

function short(value) {
  return Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001)
      ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

// Returns a drawing of [{step, value}], which are ordered by step, or a sentence if there are none.
export function drawCurve(name, points) {
  if (points.length === 0) {
    return document.createTextNode("The job has reported no metrics yet.");
  }
  const stride = Math.ceil(points.length / kMaxDrawn);
  const drawn = points.filter((_, i) => i % stride === 0 || i + 1 === points.length);
  const steps = drawn.map((one) => one.step);
  const values = drawn.map((one) => one.value);
  const [first, last] = [steps[0], steps.at(-1)];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (step) => kMargin.left + (kWidth - kMargin.left - kMargin.right) *
      (last > first ? (step - first) / (last - first) : 0.5);
  const y = (value) => kHeight - kMargin.bottom - (kHeight - kMargin.top - kMargin.bottom) *
      (high > low ? (value - low) / (high - low) : 0.5);
  const drawing = svg("svg", {viewBox: `0 0 ${kWidth} ${kHeight}`, role: "img",
    "aria-label": `${name}: ${short(points[0].value)} at step ${first}, ` +
        `${short(points.at(-1).value)} at step ${last}`});
  for (const value of high > low ? [low, (low + high) / 2, high] : [low]) {
    drawing.append(
        svg("line", {x1: kMargin.left, x2: kWidth - kMargin.right, y1: y(value), y2: y(value)}),
        svg("text", {x: kMargin.left - 6, y: y(value) + 4, "text-anchor": "end"}, short(value)));
  }
  drawing.append(
      svg("text", {x: kMargin.left, y: kHeight - 8}, `step ${first}`),
      svg("text", {x: kWidth - kMargin.right, y: kHeight - 8, "text-anchor": "end"},
          `step ${last}`),
      svg("path", {d: drawn.map((one, i) => `${i ? "L" : "M"}${x(one.step).toFixed(1)} ` +
          y(one.value).toFixed(1)).join("")}));
  if (drawn.length === 1) {
    drawing.append(svg("circle", {cx: x(first), cy: y(low), r: 4}));
  }
  return drawing;
}
