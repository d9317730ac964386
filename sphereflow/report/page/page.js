// The page: one time for sphere, curves and numbers; controls.
(async function () {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const get = (id) => document.getElementById(id);
  const state = { frame: 0, chosen: null, playing: null, limits: "linear" };
  const times = data.frames.length ? data.frames : data.curves.t;
  const d = data.density;
  let sphere = null, density = null, tokens = null, extremes = null, pending = false;

  function trouble(text) {
    const box = get("trouble");
    box.textContent = box.hidden ? text : `${box.textContent} ${text}`;
    box.hidden = false;
  }

  // ---- what is shown

  // Smallest and largest density of a frame.
  function frameExtremes(frame) {
    if (!extremes[frame]) {
      const size = d.nlat * d.nlon;
      let [low, high] = [65535, 0];
      for (let i = frame * size; i < (frame + 1) * size; i++) {
        const q = density[i];
        if (q < low) low = q;
        if (q > high) high = q;
      }
      extremes[frame] = [valueOf(low), valueOf(high)];
    }
    return extremes[frame];
  }

  function valueOf(q) { return d.low + (d.high - d.low) * (q / d.levels) ** 2; }

  function limits() {
    if (state.limits === "logarithmic") return { low: d.floor, high: d.high, logarithmic: true };
    let [low, high] = state.limits === "own" ? frameExtremes(state.frame) : [d.low, d.high];
    if (!(high > low)) [low, high] = [low - 0.01 * (Math.abs(low) || 1), high + 0.01 * (Math.abs(high) || 1)];
    return { low, high, logarithmic: false };
  }

  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      if (!sphere) return;
      sphere.draw(state.frame, d ? limits() : null);
      compass();
    });
  }

  const NAMES = data.tokens && data.tokens.dimension > 3 // a larger sphere than the one that is drawn
    ? ["x₃", "−x₃", "x₁", "x₂", "−x₁", "−x₂"] : ["N", "S", "0°", "90°E", "180°", "90°W"];
  const PLACES = [[0, 0, 1], [0, 0, -1], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]];
  get("compass").replaceChildren();
  const labels = NAMES.map((text) => {
    const label = document.createElement("span");
    label.textContent = text;
    get("compass").append(label);
    return label;
  });

  function compass() {
    const size = get("sphere").clientWidth, unit = 0.47 * size * sphere.turn.zoom;
    labels.forEach((label, k) => {
      const [a, b, out] = sphere.seen(PLACES[k]);
      const [x, y] = [size / 2 + a * unit, size / 2 - b * unit];
      const half = label.offsetWidth / 2 || 10;
      label.hidden = !sphere.graticule || out < 0.1 || x < half || y < 10 || x > size - half || y > size - 10;
      label.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px) translate(-50%, -50%)`;
    });
  }

  // Ticks of the colour scale, in units of the uniform density.
  function drawScale() {
    if (!d) return;
    const { low, high, logarithmic } = limits();
    const [a, b] = [low / d.uniform, high / d.uniform];
    const place = logarithmic ? (v) => Math.log(v / a) / Math.log(b / a) : (v) => (v - a) / (b - a);
    const values = logarithmic ? Curves.decades(a, b) : codec.ticks(a, b, 5).found;
    const step = logarithmic ? 0 : codec.ticks(a, b, 5).step;
    get("ticks").replaceChildren(...values.map((v) => {
      const tick = document.createElement("span"), share = place(v);
      tick.textContent = logarithmic ? codec.number(v, 3) : codec.label(v, step);
      tick.style.left = `${100 * share}%`;
      tick.className = share < 0.03 ? "first" : share > 0.97 ? "last" : "";
      return tick;
    }));
    get("scale-label").textContent = "density / uniform density (1/4π)" + (logarithmic && d.low < low * (1 - 1e-9) ? "; black: below the scale" : "");
    get("colours").setAttribute("aria-label", `Colour scale from ${codec.number(a, 3)}, dark, to ${codec.number(b, 3)}, bright`);
  }

  function paintScale() {
    const context = get("colours").getContext("2d");
    const image = context.createImageData(256, 1);
    data.palette.forEach((colour, k) => image.data.set([...colour, 255], 4 * k));
    context.putImageData(image, 0, 0);
  }

  // ---- time

  function nearestFrame(time) {
    let best = 0;
    for (let k = 1; k < times.length; k++) if (Math.abs(times[k] - time) < Math.abs(times[best] - time)) best = k;
    return best;
  }

  function show(frame, time) {
    state.frame = frame;
    get("slider").value = frame;
    let text = `t = ${codec.number(times[frame], 6)}`;
    if (data.tokens && d) {
      const record = data.tokens.frame[frame];
      const t = record < 0 ? null : data.tokens.t[record];
      if (t === null) text += " (no tokens at this time)";
      else if (Math.abs(t - times[frame]) > 1e-9 * Math.max(1, Math.abs(t))) text += ` (tokens at t = ${codec.number(t, 6)})`;
    }
    get("time-label").textContent = text;
    get("slider").setAttribute("aria-valuetext", `${text}, ${frame + 1} of ${times.length}`);
    if (curves) curves.show(time === undefined ? times[frame] : time);
    if (state.limits === "own") drawScale();
    read();
    redraw();
  }

  function choose(frame, time) {
    state.chosen = { frame, time };
    show(frame, time);
  }

  function stop() {
    clearInterval(state.playing);
    state.playing = null;
    get("play").textContent = "▶";
    get("readout").removeAttribute("aria-live");
    get("play").setAttribute("aria-label", "Play");
  }

  function play() {
    if (state.playing) return stop();
    if (state.frame === times.length - 1) choose(0);
    get("play").textContent = "⏸";
    get("readout").setAttribute("aria-live", "off"); // else a screen reader would read every value
    get("play").setAttribute("aria-label", "Pause");
    state.playing = setInterval(() => {
      if (state.frame < times.length - 1) choose(state.frame + 1);
      if (state.frame === times.length - 1) stop();
    }, 1000 / Number(get("speed").value));
  }

  function move(by) {
    stop();
    choose(Math.min(times.length - 1, Math.max(0, state.frame + by)));
  }

  // ---- reading values

  function angles(point) {
    const latitude = (Math.asin(Math.min(1, Math.max(-1, point[2]))) * 180) / Math.PI;
    const longitude = ((Math.atan2(point[1], point[0]) * 180) / Math.PI + 360) % 360;
    return { latitude, longitude, text: `lat ${latitude.toFixed(1).replace("-", "−")}°, lon ${longitude.toFixed(1)}°` };
  }

  function densityAt(point) {
    const theta = Math.acos(Math.min(1, Math.max(-1, point[2])));
    let row = 0;
    while (row < d.nlat - 1 && d.faces[row + 1] < theta) row++;
    const column = Math.round((angles(point).longitude / 360) * d.nlon) % d.nlon;
    return valueOf(density[(state.frame * d.nlat + row) * d.nlon + column]);
  }

  // The token nearest to a point in the picture, if it is near.
  function tokenAt(point) {
    if (!tokens || !sphere.showTokens || data.tokens.frame[state.frame] < 0) return null;
    const places = sphere.tokensAt(state.frame), [x, y] = sphere.seen(point);
    let best = null, least = 12 / (0.47 * get("sphere").clientWidth * sphere.turn.zoom);
    for (let k = 0; k < data.tokens.count; k++) {
      const place = [0, 1, 2].map((i) => places[3 * k + i] / data.tokens.levels);
      const [a, b, out] = sphere.seen(place);
      const away = Math.hypot(a - x, b - y);
      if (out >= 0 && away < least) [best, least] = [{ k, place }, away];
    }
    return best;
  }

  function read() {
    if (!sphere || !sphere.mark) return;
    const parts = [];
    if (d) {
      const value = densityAt(sphere.mark);
      parts.push(`${angles(sphere.mark).text}: density ${codec.number(value)} (${codec.number(value / d.uniform, 4)} × uniform)`);
    }
    const found = tokenAt(sphere.mark);
    if (found) {
      const where = data.tokens.dimension > 3 ? "" : `, ${angles(found.place).text}`;
      parts.push(`token ${data.tokens.index[found.k]}${where}, weight ${codec.number(data.tokens.weight[found.k], 4)}`);
    }
    if (!parts.length) parts.push(`${angles(sphere.mark).text}: no token here`);
    get("readout").textContent = `${parts.join("; ")}, at t = ${codec.number(times[state.frame], 6)}`;
  }

  function mark(point) {
    sphere.mark = point;
    if (point) read();
    else get("readout").textContent = "Drag to rotate, click to read a value.";
    redraw();
  }

  // ---- turning

  function turn(east, north) {
    sphere.turn.longitude = (sphere.turn.longitude + east + 540) % 360 - 180;
    sphere.turn.latitude = Math.min(90, Math.max(-90, sphere.turn.latitude + north));
    redraw();
  }

  function zoom(factor) {
    sphere.turn.zoom = Math.min(16, Math.max(1, sphere.turn.zoom * factor));
    redraw();
  }

  function reset() {
    Object.assign(sphere.turn, sphere.home);
    mark(null);
  }

  function listenToSphere(canvas) {
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 0) return;
      canvas.setPointerCapture(event.pointerId);
      from = { id: event.pointerId, x: event.clientX, y: event.clientY, way: 0 };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from || event.pointerId !== from.id) return;
      const [x, y] = [event.clientX - from.x, event.clientY - from.y];
      from.way += Math.hypot(x, y);
      if (from.way < 5) return; // still a click
      canvas.classList.add("dragging");
      [from.x, from.y] = [event.clientX, event.clientY];
      const degrees = 180 / Math.PI / (0.47 * canvas.clientWidth * sphere.turn.zoom);
      turn(-x * degrees, y * degrees);
    });
    const end = (event) => {
      if (from && event.type === "pointerup" && from.way < 5) {
        const point = sphere.pointAt(event.clientX, event.clientY);
        if (point) mark(point);
      }
      from = null;
      canvas.classList.remove("dragging");
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    const keys = {
      ArrowLeft: () => turn(-5, 0), ArrowRight: () => turn(5, 0), ArrowUp: () => turn(0, 5), ArrowDown: () => turn(0, -5),
      "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: reset, Home: reset,
      Enter: () => mark(sphere.frame()[2]), " ": () => mark(sphere.frame()[2]), Escape: () => mark(null),
    };
    canvas.addEventListener("keydown", (event) => {
      const action = keys[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    });
    canvas.addEventListener("webglcontextlost", (event) => {
      event.preventDefault();
      get("readout").textContent = "The browser has taken the graphics away; it may give them back.";
    });
    canvas.addEventListener("webglcontextrestored", () => {
      sphere.prepare();
      mark(sphere.mark);
    });
    new ResizeObserver(redraw).observe(canvas);
    get("zoom-in").addEventListener("click", () => zoom(1.25));
    get("zoom-out").addEventListener("click", () => zoom(0.8));
    get("reset").addEventListener("click", reset);
    for (const [id, name] of [["show-tokens", "showTokens"], ["show-graticule", "graticule"]]) {
      get(id).addEventListener("change", (event) => {
        sphere[name] = event.target.checked;
        redraw();
      });
    }
  }

  function listenToTime() {
    get("slider").max = times.length - 1;
    get("slider").addEventListener("input", (event) => {
      stop();
      choose(Number(event.target.value));
    });
    get("play").addEventListener("click", play);
    get("back").addEventListener("click", () => move(-1));
    get("forward").addEventListener("click", () => move(1));
    get("speed").addEventListener("change", () => {
      if (state.playing) {
        stop();
        play();
      }
    });
    get("limits").addEventListener("change", (event) => {
      state.limits = event.target.value;
      drawScale();
      redraw();
    });
    for (const id of ["play", "back", "forward", "slider"]) get(id).disabled = times.length < 2;
  }

  // ---- start

  const curves = new Curves(get("curves"), data.curves, {
    choose(time) {
      stop();
      choose(nearestFrame(time), time);
    },
    preview(time) {
      if (state.playing) return;
      if (time === null) show(state.chosen.frame, state.chosen.time);
      else show(nearestFrame(time), time);
    },
  });
  const without = (...ids) => ids.forEach((id) => (get(id).hidden = true));
  if (!d) without("scale", "limits-option");
  if (!data.tokens || !d) without("tokens-option");
  if (d && !(d.floor > 0)) get("limits").querySelector('[value="logarithmic"]').remove();
  listenToTime();
  try {
    if (d) density = await codec.unpack("density-data", d.nlat * d.nlon);
    if (data.tokens) tokens = await codec.unpack("tokens-data", 3 * data.tokens.count);
    if (d) {
      extremes = [];
      state.limits = get("limits").value = d.logarithmic ? "logarithmic" : "linear";
      paintScale();
      drawScale();
    }
    if (d || data.tokens) {
      sphere = new Sphere(get("sphere"), data, density, tokens);
      listenToSphere(get("sphere"));
    }
  } catch (error) {
    trouble(`The sphere cannot be drawn (${error.message}). It needs a browser with WebGL 2 that is not switched off; the curves ` +
      "and tables below are complete.");
  }
  if (!sphere) {
    without("stage", "readout", "options", "scale");
    if (!data.frames.length && !data.curves.panels.length) without("time");
  }
  choose(0);
  document.documentElement.dataset.ready = "true";
})();
