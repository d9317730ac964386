// The sphere: one ray for every pixel, seen from far away; density from a texture of integers, tokens as points.
const SHADERS = {
  square: `#version 300 es
in vec2 corner;
void main() { gl_Position = vec4(corner, 0.0, 1.0); }`,
  sphere: `#version 300 es
precision highp float;
precision highp int;
precision highp usampler2D;
precision highp sampler2D;
uniform vec2 centre;      // of the picture, in pixels
uniform float radius;     // of the sphere, in pixels
uniform mat3 view;        // columns: east, north and out of the observer
uniform bool filled;      // whether there is a density
uniform usampler2D field; // q, north to south, from longitude 0
uniform sampler2D rows;   // row of the grid at evenly spaced colatitudes
uniform sampler2D palette;
uniform float levels;
uniform float bottom;     // low / (high - low)
uniform vec2 limits;      // of the colour scale, as (value - low) / (high - low); of the logarithm of value / (high - low) if
uniform bool logarithmic; // it is logarithmic
uniform bool graticule;
uniform vec4 mark;        // view coordinates of the point that was clicked, and whether there is one
out vec4 colour;
float at(int row, int column, ivec2 size) { // beyond a pole comes the ring again, half way around
  if (row < 0 || row >= size.y) { row = row < 0 ? -1 - row : 2 * size.y - 1 - row; column += size.x / 2; }
  float q = float(texelFetch(field, ivec2((column + size.x) % size.x, row), 0).r) / levels;
  return q * q;
}
float value(vec3 point) {
  ivec2 size = textureSize(field, 0);
  int last = textureSize(rows, 0).x - 1;
  float place = acos(clamp(point.z, -1.0, 1.0)) / 3.14159265358979 * float(last);
  int k = min(int(place), last - 1);
  float row = mix(texelFetch(rows, ivec2(k, 0), 0).r, texelFetch(rows, ivec2(k + 1, 0), 0).r, place - float(k));
  float column = atan(point.y, point.x) / 6.28318530717959 * float(size.x) + float(size.x);
  int i = int(floor(row)), j = int(floor(column));
  vec2 part = vec2(column - float(j), row - float(i));
  return mix(mix(at(i, j, size), at(i, j + 1, size), part.x), mix(at(i + 1, j, size), at(i + 1, j + 1, size), part.x), part.y);
}
void main() {
  vec2 place = (gl_FragCoord.xy - centre) / radius;
  float r = length(place);
  float cover = clamp((1.0 - r) * radius + 0.5, 0.0, 1.0);
  if (cover == 0.0) { colour = vec4(0.0); return; }
  vec3 local = vec3(place, sqrt(max(0.0, 1.0 - r * r)));
  if (r > 1.0) local.xy /= r;
  vec3 point = view * local;
  vec3 paint = vec3(0.93);
  if (filled) {
    float v = value(point);
    float s = logarithmic ? log(max(v + bottom, 1e-30)) : v;
    s = clamp((s - limits.x) / (limits.y - limits.x), 0.0, 1.0) * 255.0;
    int k = min(int(s), 254);
    paint = mix(texelFetch(palette, ivec2(k, 0), 0).rgb, texelFetch(palette, ivec2(k + 1, 0), 0).rgb, s - float(k));
  }
  if (graticule) { // a line every 30 degrees, one pixel wide
    float bright = dot(paint, vec3(0.3, 0.59, 0.11));
    float lat = sin(6.0 * asin(clamp(point.z, -1.0, 1.0))), lon = sin(6.0 * atan(point.y, point.x));
    float line = 1.0 - smoothstep(0.2, 1.1, abs(lat) / max(fwidth(lat), 1e-6));
    float meridian = 1.0 - smoothstep(0.2, 1.1, abs(lon) / max(fwidth(lon), 1e-6));
    line = max(line, meridian * smoothstep(0.0, 0.12, 1.0 - abs(point.z) - 0.01));
    paint = mix(paint, vec3(bright > 0.5 ? 0.0 : 1.0), 0.3 * line);
  }
  paint = mix(vec3(0.35), paint, smoothstep(0.5, 2.0, (1.0 - r) * radius));
  if (mark.w > 0.0 && mark.z > 0.0) {
    float away = abs(length(place - mark.xy) * radius - 9.0);
    paint = mix(paint, vec3(0.0), 1.0 - smoothstep(2.0, 3.0, away));
    paint = mix(paint, vec3(1.0), 1.0 - smoothstep(0.8, 1.6, away));
  }
  colour = vec4(paint * cover, cover);
}`,
  token: `#version 300 es
in vec3 position;
in float size;
uniform mat3 view;
uniform vec2 scale;
uniform float diameter;
uniform float side; // 1: in front of the plane through the centre, -1: behind it
out float width;
void main() {
  vec3 local = position * view; // components to the east, north and out
  width = diameter * size + 2.0;
  gl_PointSize = width;
  gl_Position = vec4(local.xy * scale, 0.0, 1.0);
  if (local.z * side < 0.0) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
}`,
  dot: `#version 300 es
precision highp float;
uniform vec3 fill;
uniform float alpha;
in float width;
out vec4 colour;
void main() {
  float r = length(gl_PointCoord - 0.5) * width, edge = 0.5 * width - 1.0;
  float cover = clamp(edge - r + 0.5, 0.0, 1.0) * alpha;
  colour = vec4(mix(fill, vec3(0.0), smoothstep(edge - 2.0, edge - 1.0, r) * 0.85) * cover, cover);
}`,
};

class Sphere {
  // Throws if the browser has no WebGL 2.
  constructor(canvas, data, density, tokens) {
    Object.assign(this, { canvas, data, density, tokens });
    this.home = { longitude: 30, latitude: 25, zoom: 1 };
    this.turn = { ...this.home };
    this.mark = null;
    this.graticule = this.showTokens = true;
    this.gl = canvas.getContext("webgl2", { antialias: false, alpha: true, premultipliedAlpha: true });
    if (!this.gl) throw new Error("WebGL 2 is not available");
    this.prepare();
  }

  prepare() {
    const gl = this.gl;
    this.loaded = -1;
    this.surface = this.program(SHADERS.square, SHADERS.sphere);
    this.corners = this.buffer(new Float32Array([-1, -1, 1, -1, -1, 1, 1, 1]));
    this.textures = { field: this.texture(0), rows: this.texture(1), palette: this.texture(2) };
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    this.select("palette", 2);
    const colours = new Uint8Array(this.data.palette.flatMap((c) => [...c, 255]));
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, colours);
    this.select("rows", 1);
    const rows = this.rowTable();
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R32F, rows.length, 1, 0, gl.RED, gl.FLOAT, rows);
    this.select("field", 0);
    const d = this.data.density;
    const [width, height] = d ? [d.nlon, d.nlat] : [1, 1];
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R16UI, width, height, 0, gl.RED_INTEGER, gl.UNSIGNED_SHORT, null);
    if (this.tokens) {
      this.dots = this.program(SHADERS.token, SHADERS.dot);
      this.places = gl.createBuffer();
      this.sizes = this.buffer(new Float32Array(this.data.tokens.size));
    }
  }

  program(vertex, fragment) {
    const gl = this.gl;
    const made = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader) || "no shader");
      gl.attachShader(made, shader);
    }
    gl.linkProgram(made);
    if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(made) || "no program");
    return { made, at: (name) => gl.getUniformLocation(made, name), slot: (name) => gl.getAttribLocation(made, name) };
  }

  buffer(values) {
    const made = this.gl.createBuffer();
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, made);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, values, this.gl.STATIC_DRAW);
    return made;
  }

  texture(unit) {
    const gl = this.gl;
    const made = gl.createTexture();
    gl.activeTexture(gl.TEXTURE0 + unit);
    gl.bindTexture(gl.TEXTURE_2D, made);
    for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
    for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, name, gl.CLAMP_TO_EDGE);
    return made;
  }

  select(name, unit) {
    this.gl.activeTexture(this.gl.TEXTURE0 + unit);
    this.gl.bindTexture(this.gl.TEXTURE_2D, this.textures[name]);
  }

  // Row of the grid, a fraction, at evenly spaced colatitudes from pole to pole; beyond the last node that of its mirror image.
  rowTable() {
    const nodes = this.data.density ? this.data.density.colatitude : [1, 2];
    const n = nodes.length;
    const mirrored = [-nodes[0], ...nodes, 2 * Math.PI - nodes[n - 1]];
    const table = new Float32Array(2048);
    for (let k = 0, i = 0; k < 2048; k++) {
      const theta = (Math.PI * k) / 2047;
      while (i < n && mirrored[i + 1] <= theta) i++;
      table[k] = i - 1 + (theta - mirrored[i]) / (mirrored[i + 1] - mirrored[i]);
    }
    return table;
  }

  // Unit vectors to the east, the north and out of the observer.
  frame() {
    const lon = (this.turn.longitude * Math.PI) / 180, lat = (this.turn.latitude * Math.PI) / 180;
    const [sl, cl, sp, cp] = [Math.sin(lon), Math.cos(lon), Math.sin(lat), Math.cos(lat)];
    return [[-sl, cl, 0], [-sp * cl, -sp * sl, cp], [cp * cl, cp * sl, sp]];
  }

  radius() { return 0.47 * Math.min(this.canvas.width, this.canvas.height) * this.turn.zoom; }

  seen(point) { return this.frame().map((axis) => axis[0] * point[0] + axis[1] * point[1] + axis[2] * point[2]); }

  // The point of the sphere under a place of the window, or null.
  pointAt(x, y) {
    const box = this.canvas.getBoundingClientRect();
    const unit = this.radius() * (box.width / this.canvas.width);
    const a = (x - box.left - box.width / 2) / unit, b = (box.top + box.height / 2 - y) / unit;
    if (a * a + b * b > 1) return null;
    const local = [a, b, Math.sqrt(1 - a * a - b * b)], frame = this.frame();
    return [0, 1, 2].map((k) => frame.reduce((sum, axis, i) => sum + axis[k] * local[i], 0));
  }

  resize() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const size = Math.max(1, Math.round(this.canvas.clientWidth * ratio));
    if (this.canvas.width !== size || this.canvas.height !== size) this.canvas.width = this.canvas.height = size;
  }

  // limits: {low, high, logarithmic} in units of the density.
  draw(frame, limits) {
    const gl = this.gl;
    if (gl.isContextLost()) return;
    this.resize();
    const [width, height] = [this.canvas.width, this.canvas.height];
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    const view = new Float32Array(this.frame().flat());
    const inFront = !this.data.density;
    this.drawSurface(frame, limits, view);
    if (this.tokens && this.showTokens && this.data.tokens.frame[frame] >= 0) {
      if (inFront) this.drawTokens(frame, view, -1);
      this.drawTokens(frame, view, 1);
    }
  }

  drawSurface(frame, limits, view) {
    const gl = this.gl, d = this.data.density, { made, at, slot } = this.surface;
    gl.useProgram(made);
    if (d) {
      this.select("field", 0);
      if (this.loaded !== frame) {
        const part = this.density.subarray(frame * d.nlat * d.nlon, (frame + 1) * d.nlat * d.nlon);
        gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, d.nlon, d.nlat, gl.RED_INTEGER, gl.UNSIGNED_SHORT, part);
        this.loaded = frame;
      }
      const span = d.high - d.low || 1;
      const scaled = limits.logarithmic
        ? [Math.log(limits.low / span), Math.log(limits.high / span)]
        : [(limits.low - d.low) / span, (limits.high - d.low) / span];
      gl.uniform2f(at("limits"), ...scaled);
      gl.uniform1i(at("logarithmic"), limits.logarithmic ? 1 : 0);
      gl.uniform1f(at("levels"), d.levels);
      gl.uniform1f(at("bottom"), d.low / span);
    }
    this.select("rows", 1);
    this.select("palette", 2);
    gl.uniform1i(at("field"), 0);
    gl.uniform1i(at("rows"), 1);
    gl.uniform1i(at("palette"), 2);
    gl.uniform1i(at("filled"), d ? 1 : 0);
    gl.uniform2f(at("centre"), this.canvas.width / 2, this.canvas.height / 2);
    gl.uniform1f(at("radius"), this.radius());
    gl.uniformMatrix3fv(at("view"), false, view);
    gl.uniform1i(at("graticule"), this.graticule ? 1 : 0);
    gl.uniform4f(at("mark"), ...(this.mark ? [...this.seen(this.mark), 1] : [0, 0, 0, 0]));
    gl.bindBuffer(gl.ARRAY_BUFFER, this.corners);
    gl.enableVertexAttribArray(slot("corner"));
    gl.vertexAttribPointer(slot("corner"), 2, gl.FLOAT, false, 0, 0);
    gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
    gl.disableVertexAttribArray(slot("corner"));
  }

  drawTokens(frame, view, side) {
    const gl = this.gl, { made, at, slot } = this.dots, count = this.data.tokens.count;
    gl.useProgram(made);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.places);
    gl.bufferData(gl.ARRAY_BUFFER, this.tokensAt(frame), gl.DYNAMIC_DRAW);
    gl.enableVertexAttribArray(slot("position"));
    gl.vertexAttribPointer(slot("position"), 3, gl.SHORT, true, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.sizes);
    gl.enableVertexAttribArray(slot("size"));
    gl.vertexAttribPointer(slot("size"), 1, gl.FLOAT, false, 0, 0);
    gl.uniformMatrix3fv(at("view"), false, view);
    const r = this.radius();
    gl.uniform2f(at("scale"), (2 * r) / this.canvas.width, (2 * r) / this.canvas.height);
    const ratio = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    gl.uniform1f(at("diameter"), ratio * Math.min(9, Math.max(4, 160 / Math.sqrt(count))));
    gl.uniform1f(at("side"), side);
    const bare = !this.data.density;
    const hex = bare ? "#0072B2" : this.data.tokenColour;
    gl.uniform3f(at("fill"), ...[1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16) / 255));
    gl.uniform1f(at("alpha"), side < 0 ? 0.25 : 0.95);
    gl.drawArrays(gl.POINTS, 0, count);
    gl.disableVertexAttribArray(slot("position"));
    gl.disableVertexAttribArray(slot("size"));
  }

  // Coordinates of the tokens of a frame, three signed integers each.
  tokensAt(frame) {
    const each = 3 * this.data.tokens.count, start = this.data.tokens.frame[frame] * each;
    return new Int16Array(this.tokens.buffer, this.tokens.byteOffset + 2 * start, each);
  }
}
