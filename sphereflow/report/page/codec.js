"use strict";
// Reads what sphereflow/report/packing.py has packed, and writes numbers.
const codec = {
  // 16-bit integers of a data block, record after record; `each` of them in a record.
  async unpack(id, each) {
    const text = atob(document.getElementById(id).textContent);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = planes.length / 2;
    const out = new Uint16Array(size);
    for (let i = 0; i < size; i++) out[i] = (i >= each ? out[i - each] : 0) + planes[i] + (planes[size + i] << 8);
    return out;
  },
  superscript(power) {
    return String(power).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  },
  // A number for people, with the digits given; powers of ten where it is very small or large.
  number(value, digits = 5) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(digits))).replace("-", "−");
    const [mantissa, power] = value.toExponential(digits - 1).split("e");
    const short = String(Number(mantissa)).replace("-", "−");
    return (short === "1" ? "" : short === "−1" ? "−" : short + "·") + "10" + codec.superscript(Number(power));
  },
  // Round numbers between two limits.
  ticks(low, high, most) {
    const rough = (high - low) / most;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough * 0.999) || 10 * unit;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return { found, step };
  },
  // Labels of evenly spaced numbers: as many decimals as the step needs.
  label(value, step) {
    if (Math.abs(value) < 1e-9 * step) return "0";
    let decimals = Math.ceil(-Math.log10(step) - 1e-9); // 2 for 0.01, 3 for 0.025
    if (Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals += 1;
    if (Math.abs(value) < 1e5 && decimals <= 4) return value.toFixed(Math.max(0, decimals)).replace("-", "−");
    const digits = Math.floor(Math.log10(Math.abs(value)) + 1e-9) + decimals + 1;
    return codec.number(value, Math.min(Math.max(1, digits), 12));
  },
};
