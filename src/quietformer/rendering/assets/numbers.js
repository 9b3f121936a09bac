"use strict";
// Numbers as people read them, for what a page itself computes: the functions of results/numbers.py, which a test compares.
const MISSING = "–", BROKEN = "broken";
const known = x => typeof x === "number";
const grouped = (x, places) => x.toLocaleString("en", {minimumFractionDigits: places, maximumFractionDigits: places});
// numbers.rough: three digits that count, or more before the point.
function number(x, digits = 3) {
  if (!known(x)) return MISSING;
  const size = Math.abs(x);
  if (size >= 1e9) return x.toExponential(digits - 1);
  if (Number.isInteger(x) || size >= 100) return grouped(x, 0);
  if (size >= 10) return x.toFixed(1);
  const rounded = Number(x.toPrecision(digits));
  return Math.abs(rounded) < 1e-4 ? rounded.toExponential() : rounded.toString();
}
// numbers.metric
function shown(x, measure) {
  if (!known(x)) return BROKEN;
  if (!["perplexity", "loss"].includes(measure)) return x.toFixed(4);
  return x >= 1e6 ? x.toExponential(1) : grouped(x, 2);
}
// numbers.one_place, two_places, whole and percent
const onePlace = x => known(x) ? x.toFixed(1) : MISSING;
const twoPlaces = x => known(x) ? x.toFixed(2) : MISSING;
const wholeNumber = x => known(x) ? grouped(x, 0) : MISSING;
const percent = (x, places = 1) => known(x) ? `${(100 * x).toFixed(places)}%` : MISSING;
// What a pointer reads off a chart, and the ticks of its axis: only pages have these.
function exact(x) {
  if (!known(x)) return MISSING;
  const isFar = Math.abs(x) >= 1e6 || x !== 0 && Math.abs(x) < 1e-4;
  return isFar ? Number(x.toPrecision(6)).toExponential().replace("e+", "e") : x.toLocaleString("en", {maximumSignificantDigits: 6});
}
