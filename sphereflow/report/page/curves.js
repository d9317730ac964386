// Curves over time with one marker through all of them. A press or drag chooses a time, the mouse over them previews one.
class Curves {
  constructor(container, data, on) {
    this.t = data.t;
    this.on = on;
    for (const old of container.querySelectorAll(".panel")) old.remove(); // of a page that was saved from a browser
    this.plots = data.panels.map((panel, k) => this.panel(container, panel, k));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(container);
    this.resize();
  }

  panel(container, panel, k) {
    const card = document.createElement("article");
    card.className = "card panel";
    const head = document.createElement("h2");
    head.textContent = panel.title;
    head.id = "panel-" + k;
    const legend = document.createElement("ul");
    legend.className = "legend";
    const outputs = panel.curves.map((curve) => Curves.legendEntry(legend, curve));
    const holder = document.createElement("div");
    holder.className = "plot";
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", Curves.describe(panel, this.t));
    card.append(head, legend, holder);
    container.append(card);
    const plot = new uPlot(this.options(panel), [this.t, ...panel.curves.map((c) => c.values)], holder);
    const marker = document.createElement("div");
    marker.className = "marker";
    plot.over.append(marker);
    this.listen(plot);
    return { plot, marker, outputs, panel, holder };
  }

  static legendEntry(legend, curve) {
    const item = document.createElement("li");
    item.title = curve.about;
    const space = "http://www.w3.org/2000/svg";
    const sample = document.createElementNS(space, "svg");
    sample.setAttribute("width", "26");
    sample.setAttribute("height", "8");
    sample.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(space, "path");
    line.setAttribute("d", "M0 4H26");
    line.setAttribute("stroke", curve.color);
    line.setAttribute("stroke-width", "2.2");
    line.setAttribute("stroke-dasharray", curve.dash.join(" "));
    sample.append(line);
    const label = document.createElement("span");
    label.textContent = curve.label;
    const output = document.createElement("output");
    output.setAttribute("aria-live", "off");
    item.append(sample, label, output);
    legend.append(item);
    return output;
  }

  // What a screen reader says of a panel.
  static describe(panel, t) {
    const told = panel.curves.map((curve) => {
      const known = curve.values.filter((v) => v !== null);
      if (!known.length) return `${curve.about}: nothing to show`;
      const ends = [known[0], known[known.length - 1]].map((v) => codec.number(v, 4));
      return `${curve.about}: from ${ends[0]} to ${ends[1]}`;
    });
    return `${panel.title}, t = ${codec.number(t[0])} to ${codec.number(t[t.length - 1])}. ${told.join("; ")}.`;
  }

  options(panel) {
    const last = this.t[this.t.length - 1];
    const font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
    const axis = { font, stroke: "#444", grid: { stroke: "#e4e4e4", width: 1 }, ticks: { stroke: "#bbb", width: 1, size: 4 }, gap: 3 };
    const decades = (u, index, low, high) => Curves.decades(low, high);
    const whole = panel.steps ? { incrs: [1, 2, 5, 10, 20, 50, 100, 1000, 10000] } : {};
    const wide = (u, values) => Math.max(34, 14 + 7 * Math.max(0, ...(values || []).map((v) => (v || "").length)));
    return {
      width: 300,
      height: 170,
      padding: [8, 20, 0, 0],
      cursor: { show: false },
      legend: { show: false },
      scales: {
        x: { time: false, range: () => [this.t[0], last > this.t[0] ? last : this.t[0] + 1] },
        y: panel.logarithmic ? { distr: 3, range: (u, a, b) => Curves.logRange(a, b) } : { range: (u, a, b) => Curves.range(a, b, panel.span) },
      },
      axes: [
        { ...axis, size: 26, space: 60, values: (u, v) => v.map((x) => codec.label(x, Curves.step(v))) },
        panel.logarithmic
          ? { ...axis, size: wide, splits: decades, filter: (u, v) => v, values: (u, v) => v.map((x) => codec.number(x, 2)) }
          : { ...axis, size: wide, space: 28, values: (u, v) => v.map((x) => codec.label(x, Curves.step(v))), ...whole },
      ],
      series: [
        {},
        ...panel.curves.map((c) => ({
          stroke: c.color,
          width: 1.8,
          dash: c.dash,
          paths: panel.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: this.t.length === 1 },
        })),
      ],
    };
  }

  static step(values) { return values.length > 1 ? Math.abs(values[1] - values[0]) : Math.abs(values[0]) || 1; }

  // Limits of an axis; differences below `least` are round-off and look flat.
  static range(low, high, least) {
    if (low === null || low === undefined) return [-1, 1];
    const span = Math.max(high - low, least) || Math.abs(high) * 0.1 || 1;
    if (high - low < span) [low, high] = [(low + high - span) / 2, (low + high + span) / 2];
    return [low - 0.06 * span, high + 0.06 * span];
  }

  static logRange(low, high) {
    if (!(low > 0)) return [0.1, 1];
    return low < high ? [low / (high / low) ** 0.05, high * (high / low) ** 0.05] : [low / 2, high * 2];
  }

  // Powers of ten, at most six of them; 2 and 5 times these too where there are fewer than two.
  static decades(low, high) {
    const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const step = Math.max(1, Math.ceil((last - first + 1) / 6));
    const found = [];
    for (let k = Math.ceil(first / step) * step; k <= last; k += step) found.push(10 ** k);
    if (found.length > 1) return found;
    const fine = [];
    for (let k = first - 1; k <= last; k++) for (const m of [1, 2, 5]) fine.push(m * 10 ** k);
    const within = fine.filter((v) => v >= low && v <= high);
    return within.length > 1 ? within : codec.ticks(low, high, 3).found.filter((v) => v > 0);
  }

  listen(plot) {
    const time = (event) => {
      const x = event.clientX - plot.over.getBoundingClientRect().left;
      return Math.min(this.t[this.t.length - 1], Math.max(this.t[0], plot.posToVal(x, "x")));
    };
    let pressed = false;
    plot.over.addEventListener("pointerdown", (event) => {
      pressed = true;
      plot.over.setPointerCapture(event.pointerId);
      this.on.choose(time(event));
    });
    plot.over.addEventListener("pointermove", (event) => {
      if (pressed) this.on.choose(time(event));
      else if (event.pointerType === "mouse") this.on.preview(time(event));
    });
    for (const name of ["pointerup", "pointercancel"]) plot.over.addEventListener(name, () => (pressed = false));
    plot.over.addEventListener("pointerleave", () => this.on.preview(null));
  }

  resize() {
    for (const { plot, holder } of this.plots) {
      const width = Math.floor(holder.clientWidth);
      if (width > 0 && plot.width !== width) plot.setSize({ width, height: 170 });
    }
    if (this.now !== undefined) this.show(this.now);
  }

  // The record nearest to a time.
  nearest(time) {
    let [low, high] = [0, this.t.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.t[middle] <= time) low = middle; else high = middle;
    }
    return Math.abs(this.t[high] - time) < Math.abs(this.t[low] - time) ? high : low;
  }

  // Marker and numbers at a time.
  show(time) {
    this.now = time;
    const index = this.nearest(time);
    for (const { plot, marker, outputs, panel } of this.plots) {
      marker.style.transform = `translateX(${plot.valToPos(time, "x") - 1}px)`;
      outputs.forEach((output, k) => (output.textContent = codec.number(panel.curves[k].values[index])));
    }
  }
}
