// The interactive flame graph of nsprof, in the SVG file and in the report page alike. No library, no network, no
// eval; names reach the document through textContent only. Layout, widths, colours and grey follow
// nsprof/render/flamegraph_layout.py and flamegraph_colours.py exactly (a browser test holds both together).
"use strict";
const NsprofFlame = (function () {
  const SVG = "http://www.w3.org/2000/svg", HTML = "http://www.w3.org/1999/xhtml";
  const ROW = 17, CHAR = 7.23, NARROW = 255, NOISE_Z = 2.576, SEEN = 0.4;
  const KINDS = ["unknown", "kernel", "user", "BPF", "profiler"];

  function make(ns, name, attributes, text) {
    const node = document.createElementNS(ns, name);
    for (const key in attributes || {}) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // ---- numbers for people ------------------------------------------------------------------------------------
  const commas = (v) => Math.round(v).toString().replace(/\B(?=(\d{3})+$)/g, ",");
  function three(v) {
    if (v === 0) return "0";
    if (v >= 99.95) return commas(v);
    return v >= 9.995 ? v.toFixed(1) : v.toFixed(2);
  }
  function quantity(value, unit) {
    if (!isFinite(value)) return "-";
    const sign = value < 0 ? "-" : "";
    const v = Math.abs(value);
    if (unit === "count") unit = "events";
    if (unit === "%") return sign + v.toFixed(v !== 0 && v < 0.095 ? 3 : v < 9.95 ? 2 : 1) + " %";
    if (unit.length > 2) return (v >= 100 && v < 1e6 ? sign + commas(v) : quantity(value, "")) + " " + unit;
    const steps = unit === "ns" ? [["s", 1e9], ["ms", 1e6], ["us", 1e3]] : [["G" + unit, 1e9], ["M" + unit, 1e6], ["k" + unit, 1e3]];
    for (const [name, size] of steps) if (v >= size * 0.9995) return sign + three(v / size) + " " + name;
    return (sign + three(v) + " " + unit).trim();
  }
  const signed = (value, unit) => (value < 0 ? "" : "+") + quantity(value, unit);
  const share = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "-");

  // ---- the tree ----------------------------------------------------------------------------------------------
  // Columns in depth-first order: d(epth) f(rame) n(ew) b(ase) t(icks new) u (ticks base), all of the node itself;
  // g: whether the runs show its inclusive change (of callees first nobody tested it).
  function parents(depth) {
    const up = new Int32Array(depth.length), open = [];
    for (let i = 0; i < depth.length; i++) {
      up[i] = depth[i] ? open[depth[i] - 1] : -1;
      open[depth[i]] = i;
    }
    return up;
  }

  // The same costs by callee: the function itself first, then who called it.
  function reversed(cols, frames) {
    const up = parents(cols.d), trie = [{ f: cols.f[0], kids: new Map(), n: 0, b: 0, t: 0, u: 0 }];
    for (let i = 0; i < cols.d.length; i++) {
      if (!(cols.n[i] || cols.b[i] || cols.t[i] || cols.u[i])) continue;
      let at = trie[0];
      for (let j = i; j > 0; j = up[j]) {
        const f = cols.f[j];
        let kid = at.kids.get(f);
        if (!kid) { kid = { f: f, kids: new Map(), n: 0, b: 0, t: 0, u: 0 }; at.kids.set(f, kid); }
        at = kid;
      }
      at.n += cols.n[i]; at.b += cols.b[i]; at.t += cols.t[i]; at.u += cols.u[i];
    }
    const out = { d: [], f: [], n: [], b: [], t: [], u: [] }, stack = [[trie[0], 0]];
    const last = (f) => (frames.kind[f] === NARROW ? 1 : 0);
    while (stack.length) {
      const [node, depth] = stack.pop();
      out.d.push(depth); out.f.push(node.f); out.n.push(node.n); out.b.push(node.b); out.t.push(node.t); out.u.push(node.u);
      const kids = [...node.kids.values()].sort((p, q) => last(p.f) - last(q.f) || (frames.name[p.f] < frames.name[q.f] ? -1 : 1));
      for (let k = kids.length - 1; k >= 0; k--) stack.push([kids[k], depth + 1]);
    }
    return out;
  }

  function sumUp(up, column) {
    const total = Float64Array.from(column);
    for (let i = total.length - 1; i > 0; i--) total[up[i]] += total[i];
    return total;
  }

  function layOut(cols, frames, view, unit, sizeBy) {
    const size = cols.d.length, up = parents(cols.d), diff = view.diff;
    const ownNew = Float64Array.from(cols.n, (v) => v * unit.fn), ownBase = Float64Array.from(cols.b, (v) => v * unit.fb);
    const cn = sumUp(up, ownNew), cb = sumUp(up, ownBase), tn = sumUp(up, cols.t), tb = sumUp(up, cols.u);
    const own = new Float64Array(size), evidence = new Float64Array(size);
    const judged = diff && unit.own && (view.g !== undefined || Object.values(view.findings).some((f) => f.verdict === "+" || f.verdict === "-" || f.verdict === "~"));
    for (let i = 0; i < size; i++) {
      const a = ownNew[i], z = ownBase[i];
      own[i] = !diff ? a : sizeBy === "both" ? Math.max(a, z) : sizeBy === "base" ? z + (cb[i] === 0 ? a : 0) : a + (cn[i] === 0 ? z : 0);
      if (judged && frames.kind[cols.f[i]] !== NARROW) {
        const found = view.findings[cols.f[i]];
        if (found && (found.verdict === "+" || found.verdict === "-")) evidence[i] = a - z;
      }
    }
    const w = sumUp(up, own), ev = sumUp(up, evidence);
    const x = new Float64Array(size), cursor = new Float64Array(size), end = new Int32Array(size), grey = new Uint8Array(size);
    const tickNew = tn[0] ? cn[0] / tn[0] : 0, tickBase = tb[0] ? cb[0] / tb[0] : 0, noisy = view.kind === "sampled" && (tn[0] || tb[0]);
    let deepest = 0;
    for (let i = 0; i < size; i++) {
      if (i) { x[i] = cursor[up[i]]; cursor[up[i]] += w[i]; }
      cursor[i] = x[i];
      if (cols.d[i] > deepest) deepest = cols.d[i];
      if (!diff) continue;
      const delta = cn[i] - cb[i];
      if (judged && !(cols.g && cols.g[i]) && ev[i] * Math.sign(delta) < 0.5 * Math.abs(delta)) grey[i] = 1;
      if (noisy && Math.abs(delta) < NOISE_Z * Math.sqrt(cn[i] * tickNew + cb[i] * tickBase)) grey[i] = 1;
    }
    for (let i = size - 1; i >= 0; i--) { if (!end[i]) end[i] = i + 1; if (i && end[up[i]] < end[i]) end[up[i]] = end[i]; }
    return { size, depth: cols.d, frame: cols.f, up, ownNew, ownBase, cn, cb, tn, tb, w, x, end, grey, deepest };
  }

  // ---- colours (see flamegraph_colours.py) -------------------------------------------------------------------
  const HUES = { 0: [[188, 188, 188], [212, 212, 212]], 1: [[244, 156, 66], [253, 208, 130]], 2: [[116, 178, 224], [170, 214, 242]],
    3: [[90, 190, 160], [158, 224, 200]], 4: [[188, 168, 216], [214, 200, 232]], 255: [[228, 228, 228], [228, 228, 228]] };
  const MIDDLE = [236, 236, 228], MORE = [224, 102, 31], LESS = [67, 147, 195], GREY = [194, 194, 198];
  const STRIPE = { 2: "#0b5fa5", 3: "#00745a", 4: "#6b4ba3" };
  function mix(a, b, t, dim) {
    return "rgb(" + a.map((v, i) => Math.round((v + (b[i] - v) * t) * dim)).join(",") + ")";
  }
  function hash(name) {
    let h = 7;
    for (const c of name) h = (h * 31 + c.codePointAt(0)) % 65521;
    return h / 65520;
  }
  function colour(lay, i, frames, diff, dim) {
    const f = lay.frame[i], kind = frames.kind[f];
    if (!diff || kind === NARROW) { const pair = HUES[kind] || HUES[0]; return mix(pair[0], pair[1], hash(frames.name[f]), dim); }
    if (lay.grey[i]) return mix(GREY, GREY, 0, dim);
    const a = lay.cn[i], b = lay.cb[i], top = Math.max(a, b), t = top > 0 ? (a - b) / top : 0;
    return t < 0 ? mix(MIDDLE, LESS, -t, dim) : mix(MIDDLE, MORE, t, dim);
  }

  function fit(text, width) {
    const room = Math.floor((width - 6) / CHAR), points = Array.from(text);
    if (room < 3) return "";
    return points.length <= room ? text : points.slice(0, room - 1).join("") + "…";
  }

  // ---- one graph ---------------------------------------------------------------------------------------------
  class Flame {
    // svg: where to draw; group: its <g> for frames; controls: an HTML element; status: live region; views: payload
    constructor(options) {
      Object.assign(this, { view: 0, unit: 0, given: false, sizeBy: "new", zoom: 0, cursor: 0, pattern: "", top: 0 }, options);
      this.flip = this.given;
      this.layers = make(SVG, "g");
      this.group.replaceChildren(this.layers);
      this.tip = make(SVG, "g", { class: "tip", "pointer-events": "none", "aria-hidden": "true" });
      this.svg.appendChild(this.tip);
      const dark = window.matchMedia("(prefers-color-scheme: dark)"), print = window.matchMedia("print");
      const theme = () => { this.dim = dark.matches && !print.matches ? 0.9 : 1; this.draw(); };
      dark.addEventListener("change", theme);
      print.addEventListener("change", theme);
      this.dim = dark.matches ? 0.9 : 1;
      this.sizeBy = this.views[0].sizeBy || "new";
      this.buildControls();
      this.listen();
      this.relayout();
    }

    get current() { return this.views[this.view]; }

    relayout() {
      const view = this.current;
      if (!view.cols) { // the payload's own columns are in caller order
        view.cols = { d: view.d, f: view.f, n: view.n, b: view.b || new Array(view.d.length).fill(0), t: view.t, u: view.u || new Array(view.d.length).fill(0), g: view.g };
      }
      const turned = this.flip !== this.given; // the tree may have been given callee first already
      if (turned && !view.flipped) view.flipped = reversed(view.cols, this.frames);
      const units = this.units();
      if (this.unit >= units.length) this.unit = 0;
      this.lay = layOut(turned ? view.flipped : view.cols, this.frames, view, units[this.unit], this.sizeBy);
      this.zoom = this.cursor = 0;
      this.search(this.pattern);
    }

    units() {
      const view = this.current;
      const total = (col) => col.reduce((a, v) => a + v, 0);
      if (!view.unitList) {
        const n = total(view.n), b = view.diff ? total(view.b) : 0;
        view.unitList = view.units.map((u, k) => Object.assign({ own: k === 0 }, u));
        view.unitList.push({ label: "% of what is counted", unit: "%", per: "", fn: n ? 100 / n : 0, fb: b ? 100 / b : 0, own: false });
      }
      return view.unitList;
    }

    cost(value) { const u = this.units()[this.unit]; return quantity(value, u.unit) + (u.per && u.unit !== "%" ? "/" + u.per : ""); }
    delta(value) { return (value < 0 ? "" : "+") + this.cost(value); }

    // -- drawing
    yOf(depth) { return this.top + (this.flip ? depth : this.lay.deepest - depth) * ROW; }
    get height() { return (this.lay.deepest + 1) * ROW; }

    draw() {
      const lay = this.lay, width = this.width(), z = this.zoom, scale = lay.w[z] > 0 ? width / lay.w[z] : 0, left = lay.x[z];
      const fresh = make(SVG, "g");
      this.seen = [];
      const above = [];
      for (let j = lay.up[z]; j >= 0; j = lay.up[j]) above.push(j);
      for (const j of above.reverse()) this.frame(fresh, j, 0, width, true);
      for (let i = z; i < lay.end[z];) {
        const w = lay.w[i] * scale;
        if (w < SEEN) { i = lay.end[i]; continue; }
        this.frame(fresh, i, (lay.x[i] - left) * scale, w, false);
        i++;
      }
      this.ring = make(SVG, "rect", { class: "ring", fill: "none", "pointer-events": "none", visibility: "hidden" });
      fresh.appendChild(this.ring);
      this.layers.replaceWith(fresh);
      this.layers = fresh;
      if (this.resized) this.resized(this.height);
      this.mark();
    }

    frame(into, i, x, w, faded) {
      const lay = this.lay, f = lay.frame[i], kind = this.frames.kind[f], y = this.yOf(lay.depth[i]), diff = this.current.diff;
      const shown = Math.max(w - (w > 3 ? 0.6 : 0), 0.3), hit = this.hits && this.hits[f];
      const rect = make(SVG, "rect", { x: x.toFixed(2), y: y, width: shown.toFixed(2), height: ROW - 1,
        fill: hit ? "#c77bbf" : colour(lay, i, this.frames, diff, this.dim), class: (faded ? "faded " : "") + (this.hits && !hit ? "missed" : "f") });
      rect.nsprof = i;
      into.appendChild(rect);
      this.seen.push({ i: i, x: x, w: shown, y: y });
      if (diff && lay.cn[i] === 0 && lay.cb[i] > 0 && kind !== NARROW && w > 1) {
        into.appendChild(make(SVG, "rect", { x: x.toFixed(2), y: y, width: shown.toFixed(2), height: ROW - 1, fill: "url(#nsprof-gone)", "pointer-events": "none" }));
      }
      if (diff && lay.cb[i] === 0 && lay.cn[i] > 0 && kind !== NARROW && w > 10) {
        into.appendChild(make(SVG, "rect", { x: x.toFixed(2), y: y, width: 3, height: ROW - 1, class: "added", "pointer-events": "none" }));
      }
      if (STRIPE[kind] && w > 2) {
        into.appendChild(make(SVG, "rect", { x: x.toFixed(2), y: y, width: shown.toFixed(2), height: 2.5, fill: STRIPE[kind], "pointer-events": "none" }));
      }
      const label = fit(this.frames.name[f], w);
      if (label) into.appendChild(make(SVG, "text", { x: (x + 4).toFixed(2), y: y + 12, class: "name" + (kind === NARROW ? " narrow" : "") + (this.hits && !hit ? " dim" : "") }, label));
    }

    mark() {
      const at = this.seen.find((s) => s.i === this.cursor), active = document.activeElement === this.group;
      if (!this.ring) return;
      this.ring.setAttribute("visibility", at && active ? "visible" : "hidden");
      if (at) for (const [k, v] of [["x", at.x], ["y", at.y], ["width", at.w], ["height", ROW - 1]]) this.ring.setAttribute(k, v);
    }

    // -- what is said about a frame
    describe(i) {
      const lay = this.lay, f = lay.frame[i], view = this.current, module = this.frames.module[f], kind = this.frames.kind[f];
      const lines = [this.frames.name[f] + (module ? "  [" + module + "]" : "") + (kind !== 1 && KINDS[kind] && i ? "  (" + KINDS[kind] + ")" : "")];
      const side = (label, total, own, ticks, all) => lines.push(label + this.cost(total) + "  " + share(total, all) + "   self " + this.cost(own) +
        "   " + Math.round(ticks).toLocaleString("en") + " sample" + (Math.round(ticks) === 1 ? "" : "s"));
      side(view.diff ? "new   " : "", lay.cn[i], lay.ownNew[i], lay.tn[i], lay.cn[0]);
      if (!view.diff) return lines;
      side("base  ", lay.cb[i], lay.ownBase[i], lay.tb[i], lay.cb[0]);
      const change = lay.cn[i] - lay.cb[i], state = lay.cn[i] === 0 && lay.cb[i] > 0 ? ", gone" : lay.cb[i] === 0 && lay.cn[i] > 0 ? ", not in base" : "";
      lines.push("delta " + this.delta(change) + (lay.cb[i] > 0 && lay.cn[i] > 0 ? "  (" + (change < 0 ? "" : "+") + (100 * change / lay.cb[i]).toFixed(1) + " %)" : "") +
        state + (lay.grey[i] ? "; not significant" : ""));
      const found = view.findings[f], u = this.units()[this.unit];
      if (found && u.own) {
        let text = "function's self delta";
        if (found.low !== undefined && found.high !== undefined) text += " in [" + signed(found.low, u.unit) + ", " + signed(found.high, u.unit) + "]";
        if (found.q !== undefined) text += "  q = " + found.q.toPrecision(2);
        lines.push(text + (found.verdict === "~" ? "  no significant change" : found.verdict === "+" ? "  significant increase" : found.verdict === "-" ? "  significant decrease" : "  no verdict"));
      }
      return lines;
    }

    showTip(i, px, py) {
      const lines = this.describe(i), limit = this.width();
      const room = Math.max(20, Math.floor((limit - 30) / 6.7)), cut = lines.map((l) => (l.length > room ? l.slice(0, room - 1) + "…" : l));
      const wide = Math.max(...cut.map((l) => l.length)) * 6.65 + 18, high = cut.length * 16 + 12;
      const x = Math.max(2, Math.min(px + 14, limit - wide - 2)), below = py + 18, y = below + high > this.top + this.height + 24 && py - high - 10 > 0 ? py - high - 10 : below;
      const box = make(SVG, "rect", { x: x, y: y, width: wide, height: high, rx: 4, class: "tipbox" });
      this.tip.replaceChildren(box, ...cut.map((l, k) => make(SVG, "text", { x: x + 9, y: y + 18 + 16 * k, class: k ? "tiptext" : "tiptext tiphead" }, l)));
    }
    hideTip() { this.tip.replaceChildren(); }
    say(text) { if (this.status && this.status.textContent !== text) this.status.textContent = text; }

    // -- actions
    zoomTo(i) { this.zoom = i; this.cursor = i; this.draw(); this.say("Zoomed to " + this.describe(i).join("; ")); }
    reset() { this.hideTip(); this.setSearch(""); this.zoomTo(0); this.say("Everything shown"); }

    setSearch(text) { if (this.input) this.input.value = text; this.search(text); }
    search(text) {
      this.pattern = text;
      this.hits = null;
      let message = "", bad = false;
      if (text) {
        let expression = null;
        try { expression = new RegExp(text, "i"); } catch (error) { bad = true; message = "not a valid pattern"; }
        if (expression) message = this.match(expression);
      }
      if (this.found) { this.found.textContent = message; this.input.setAttribute("aria-invalid", bad); }
      this.draw();
      if (this.searched) this.searched(text);
    }
    match(expression) {
      const lay = this.lay, hits = this.frames.name.map((name, f) => this.frames.kind[f] !== NARROW && expression.test(name));
      let a = 0, b = 0, count = 0;
      for (let i = 0; i < lay.size;) {
        if (hits[lay.frame[i]]) { a += lay.cn[i]; b += lay.cb[i]; count++; i = lay.end[i]; } else i++;
      }
      this.hits = hits;
      if (!count) return "no frame matches";
      return "matched " + share(a, lay.cn[0]) + (this.current.diff ? " of new (" + this.cost(a) + "), " + share(b, lay.cb[0]) + " of base (" + this.cost(b) + "), delta " + this.delta(a - b) : " (" + this.cost(a) + ")");
    }

    // -- controls: the same HTML elements in the page and, inside a foreignObject, in the SVG file
    buildControls() {
      const box = this.controls, h = (name, attributes, text) => make(HTML, name, attributes, text);
      const labelled = (text, control) => { const l = h("label", {}, text + " "); l.appendChild(control); box.appendChild(l); return control; };
      box.replaceChildren();
      const select = (text, names, chosen, then) => {
        const s = h("select", {});
        names.forEach((name, k) => { const o = h("option", { value: k }, name); s.appendChild(o); });
        s.selectedIndex = chosen;
        s.addEventListener("change", () => then(s.selectedIndex));
        return labelled(text, s);
      };
      if (this.views.length > 1) this.viewSelect = select("Show", this.views.map((v) => v.label), this.view, (k) => this.setView(k));
      this.unitSelect = select("Unit", this.units().map((u) => u.label), this.unit, (k) => { this.unit = k; this.relayout(); this.announce(); });
      this.sizeSelect = select("Widths", ["new side", "base side", "larger side"], ["new", "base", "both"].indexOf(this.sizeBy),
        (k) => { this.sizeBy = ["new", "base", "both"][k]; this.relayout(); });
      this.sizeSelect.parentNode.hidden = !this.current.diff;
      const flip = this.flipBox = h("input", { type: "checkbox" });
      flip.checked = this.flip;
      flip.addEventListener("change", () => { this.flip = flip.checked; this.relayout(); });
      labelled("", flip).parentNode.append("Reverse");
      const input = this.input = h("input", { type: "search", placeholder: "regular expression  ( / )", spellcheck: "false", autocomplete: "off", size: 24 });
      labelled("Search", input);
      input.addEventListener("input", () => this.search(input.value));
      input.addEventListener("keydown", (e) => { if (e.key === "Escape") { this.setSearch(""); this.group.focus(); e.stopPropagation(); e.preventDefault(); } });
      const button = h("button", { type: "button" }, "Reset");
      button.addEventListener("click", () => this.reset());
      box.appendChild(button);
      this.found = h("output", { "aria-live": "polite", class: "found" });
      box.appendChild(this.found);
    }
    setView(k) {
      this.view = k;
      if (this.viewSelect) this.viewSelect.selectedIndex = k;
      this.sizeSelect.parentNode.hidden = !this.current.diff;
      this.unitSelect.replaceChildren(...this.units().map((u, n) => make(HTML, "option", { value: n }, u.label)));
      if (this.unit >= this.units().length) this.unit = 0;
      this.unitSelect.selectedIndex = this.unit;
      this.relayout();
      if (this.viewed) this.viewed(k);
      this.announce();
    }
    announce() { this.say(this.describe(0).join("; ")); }

    listen() {
      const group = this.group;
      group.setAttribute("tabindex", "0");
      group.setAttribute("role", "application");
      group.setAttribute("aria-roledescription", "flame graph");
      if (!group.hasAttribute("aria-label")) group.setAttribute("aria-label", "Flame graph: arrows walk, Enter zooms, Escape resets, slash searches");
      const point = (e) => { const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(this.group.getScreenCTM().inverse()); return [p.x, p.y]; };
      group.addEventListener("mousemove", (e) => {
        if (e.target.nsprof === undefined) return this.hideTip();
        return this.showTip(e.target.nsprof, ...point(e));
      });
      group.addEventListener("mouseleave", () => this.hideTip());
      group.addEventListener("click", (e) => { if (e.target.nsprof !== undefined) { this.hideTip(); this.zoomTo(e.target.nsprof); } });
      group.addEventListener("focus", () => { this.mark(); this.say(this.describe(this.cursor).join("; ")); });
      group.addEventListener("blur", () => { this.mark(); this.hideTip(); });
      group.addEventListener("keydown", (e) => this.key(e));
      document.addEventListener("keydown", (e) => {
        if (!this.svg.isConnected) return; // another graph has taken its place
        const tag = e.target && e.target.localName;
        if (e.key === "/" && !e.ctrlKey && !e.metaKey && tag !== "input" && tag !== "textarea" && tag !== "select") { e.preventDefault(); this.input.focus(); this.input.select(); }
      });
    }
    key(e) {
      const lay = this.lay, at = this.cursor, seen = new Map(this.seen.map((s) => [s.i, s]));
      const outward = this.flip ? "ArrowDown" : "ArrowUp", inward = this.flip ? "ArrowUp" : "ArrowDown";
      let to = -1;
      if (e.key === outward) { // to the widest child that can be seen
        for (let i = at + 1; i < lay.end[at]; i = lay.end[i]) if (seen.has(i) && (to < 0 || lay.w[i] > lay.w[to])) to = i;
      } else if (e.key === inward) to = lay.up[at];
      else if (e.key === "ArrowRight" || e.key === "ArrowLeft") { // along the row, across parents too
        const row = this.seen.filter((s) => lay.depth[s.i] === lay.depth[at]), k = row.findIndex((s) => s.i === at);
        const next = row[k + (e.key === "ArrowRight" ? 1 : -1)];
        if (k >= 0 && next) to = next.i;
      } else if (e.key === "Home") to = this.zoom;
      else if (e.key === "Enter" || e.key === " ") { e.preventDefault(); return this.zoomTo(at); }
      else if (e.key === "Escape") { e.preventDefault(); return this.reset(); }
      else return undefined;
      e.preventDefault();
      if (to < 0 || !seen.has(to)) return undefined;
      this.cursor = to;
      this.mark();
      const place = seen.get(to);
      this.showTip(to, place.x + Math.min(place.w / 2, 60), place.y + ROW);
      return this.say(this.describe(to).join("; "));
    }
  }

  function framesOf(table) {
    return { name: table.f.map((row) => table.s[row[0]]), module: table.f.map((row) => table.s[row[1]]), kind: table.f.map((row) => row[2]) };
  }
  return { Flame, framesOf, make, quantity, SVG, HTML, ROW };
})();
