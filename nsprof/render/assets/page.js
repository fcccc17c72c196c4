// The report page's own behaviour: the flame graph's place, the function table, links into the page, copying.
// State that a link should carry lives in the address: #fn=NAME (a function), #s=PATTERN, #view=N.
(function () {
  const $ = (id) => document.getElementById(id);
  const make = (name, attributes, text) => NsprofFlame.make(NsprofFlame.HTML, name, attributes, text);
  const data = JSON.parse($("nsprof-data").textContent), quote = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  let flame = null, table = null, written = null;

  // ---- the address -------------------------------------------------------------------------------------------
  const words = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  function remember(changes) {
    const now = words();
    for (const key in changes) { if (changes[key]) now.set(key, changes[key]); else now.delete(key); }
    const text = now.toString();
    if (!text && !location.hash.includes("=")) return;
    written = "#" + text;
    if (location.hash !== written) location.replace(written);
  }

  // ---- flame graph -------------------------------------------------------------------------------------------
  function startFlame() {
    const svg = $("flame-svg");
    const wide = () => Math.max(320, svg.parentNode.clientWidth - 18);
    const extras = (k) => {
      for (const box of document.querySelectorAll(".legend")) box.hidden = (box.dataset.diff === "yes") !== data.flame.views[k].diff;
      $("flame-note").textContent = data.flame.views[k].note;
    };
    flame = new NsprofFlame.Flame({
      svg: svg, group: $("flame-frames"), controls: $("flame-controls"), status: $("flame-status"),
      frames: NsprofFlame.framesOf(data.flame), views: data.flame.views, width: wide, top: 4,
      resized: (height) => { svg.setAttribute("viewBox", "0 0 " + wide() + " " + (height + 12)); svg.setAttribute("width", wide()); svg.setAttribute("height", height + 12); },
      viewed: (k) => { extras(k); remember({ view: k ? String(k) : "" }); }
    });
    flame.group.setAttribute("aria-label", "Flame graph: arrows walk, Enter zooms, Escape resets, slash searches; the function table below has the same figures");
    flame.searched = (text) => { const fn = words().get("fn"); if (!fn || text !== "^" + quote(fn) + "$") remember({ s: text, fn: "" }); };
    extras(0);
    window.addEventListener("resize", () => flame.draw());
  }

  // ---- function table ----------------------------------------------------------------------------------------
  class Functions {
    constructor(spec, node) {
      Object.assign(this, { spec: spec, node: node, sort: spec.sort, down: true, text: "", category: "", significant: false, room: 100, chosen: "" });
      this.tools();
      this.draw();
    }
    cell(row, k) {
      const column = this.spec.columns[k], v = row[k], unit = this.spec.unit;
      if (v === null || v === undefined || v === "") return "";
      switch (column.kind) {
        case "cost": return NsprofFlame.quantity(v, unit);
        case "delta": return (v < 0 ? "" : "+") + NsprofFlame.quantity(v, unit);
        case "interval": return row[k + 1] === null ? "" : "[" + NsprofFlame.quantity(v, unit) + ", " + NsprofFlame.quantity(row[k + 1], unit) + "]";
        case "q": return v.toPrecision(2);
        case "share": return (100 * v).toFixed(1) + " %";
        case "count": return Math.round(v).toLocaleString("en");
        default: return String(v);
      }
    }
    get shownColumns() { return this.spec.columns.map((c, k) => k).filter((k) => this.spec.columns[k].kind !== "hidden"); }
    rows() {
      const key = this.sort, verdict = this.spec.columns.findIndex((c) => c.kind === "verdict"), size = this.spec.columns[key].kind === "delta";
      let test = null;
      try { test = this.text ? new RegExp(this.text, "i") : null; this.bad = false; } catch (error) { this.bad = true; }
      const rows = this.spec.rows.filter((r) => (!test || test.test(r[0]) || test.test(r[1])) && (!this.category || r[2] === this.category) &&
        (!this.significant || r[verdict] === "+" || r[verdict] === "-"));
      const value = (r) => { const v = r[key]; return size && v !== null ? Math.abs(v) : v; };
      return rows.sort((p, q) => {
        const a = value(p), b = value(q);
        if (a === b) return p[0] < q[0] ? -1 : 1;
        if (a === null || a === "") return 1;
        if (b === null || b === "") return -1;
        return (a < b ? -1 : 1) * (this.down ? -1 : 1);
      });
    }
    tools() {
      const box = $("function-tools"), label = (text, control) => { const l = make("label", {}, text + " "); l.append(control); box.append(l); return control; };
      const filter = this.filterBox = make("input", { type: "search", size: 24, placeholder: "regular expression", spellcheck: "false", id: "function-filter" });
      filter.addEventListener("input", () => { this.text = filter.value; this.draw(); });
      label("Filter", filter);
      const names = [...new Set(this.spec.rows.map((r) => r[2]))].filter(Boolean).sort(), pick = make("select", { id: "function-category" });
      pick.append(make("option", { value: "" }, "all"), ...names.map((n) => make("option", { value: n }, n)));
      pick.addEventListener("change", () => { this.category = pick.value; this.draw(); });
      label("Category", pick);
      if (this.spec.columns.some((c) => c.kind === "verdict")) {
        const only = make("input", { type: "checkbox", id: "function-significant" });
        only.addEventListener("change", () => { this.significant = only.checked; this.draw(); });
        const l = make("label", {});
        l.append(only, " significant only");
        box.append(l);
      }
      const copy = make("button", { type: "button", class: "copy" }, "Copy as Markdown");
      copy.addEventListener("click", () => share(markdown(this.shownColumns.map((k) => this.spec.columns[k].title),
        this.rows().map((r) => this.shownColumns.map((k) => this.cell(r, k))), this.shownColumns.map((k) => this.right(k)))));
      box.append(copy);
    }
    extra(k) { return ["Module", "base total", "new total", "samples base", "samples new", "skid"].includes(this.spec.columns[k].title); } // not printed
    kind(k) { return (this.right(k) ? "num" : "") + (this.extra(k) ? " extra" : ""); }
    right(k) { return !["name", "text", "verdict", "status"].includes(this.spec.columns[k].kind); }
    head() {
      const row = make("tr");
      for (const k of this.shownColumns) {
        const column = this.spec.columns[k], th = make("th", { scope: "col", title: column.hint, class: this.kind(k) });
        th.setAttribute("aria-sort", k === this.sort ? (this.down ? "descending" : "ascending") : "none");
        const button = make("button", { type: "button" }, column.title);
        button.addEventListener("click", () => { this.down = this.sort === k ? !this.down : this.right(k); this.sort = k; this.draw(); this.node.querySelectorAll("thead button")[this.shownColumns.indexOf(k)].focus(); });
        th.append(button);
        row.append(th);
      }
      const head = make("thead");
      head.append(row);
      return head;
    }
    line(row) {
      const tr = make("tr", row[0] === this.chosen ? { class: "chosen", "aria-current": "true" } : {});
      for (const k of this.shownColumns) {
        const kind = this.spec.columns[k].kind, text = this.cell(row, k);
        if (kind === "name") {
          const th = make("th", { scope: "row", class: "fn" }), link = make("a", { href: "#fn=" + encodeURIComponent(row[0]) });
          link.append(make("bdi", {}, text));
          th.append(link);
          tr.append(th);
        } else {
          const sign = kind === "delta" && row[k] ? (this.weak(row) ? " weak" : row[k] > 0 ? " up" : " down") : "";
          tr.append(make("td", { class: this.kind(k) + sign }, text));
        }
      }
      return tr;
    }
    weak(row) { // no colour for what is not called significant - where anything is tested at all
      const k = this.spec.columns.findIndex((c) => c.kind === "verdict");
      if (this.tested === undefined) this.tested = k >= 0 && this.spec.rows.some((r) => r[k]);
      return this.tested && row[k] !== "+" && row[k] !== "-";
    }
    draw() {
      const rows = this.rows(), body = make("tbody");
      if (this.chosen) { const at = rows.findIndex((r) => r[0] === this.chosen); if (at >= this.room) this.room = at + 20; }
      body.append(...rows.slice(0, this.room).map((r) => this.line(r)));
      this.node.replaceChildren(make("caption", {}, "Self cost of functions per " + (this.spec.per || "recording") + "; a click on a head sorts, a name shows it in the flame graph."), this.head(), body);
      this.filterBox.setAttribute("aria-invalid", String(this.bad));
      const note = $("function-note");
      note.replaceChildren(Math.min(this.room, rows.length).toLocaleString("en") + " of " + this.spec.rows.length.toLocaleString("en") + " functions shown. ");
      if (this.spec.left) note.append(this.spec.left.toLocaleString("en") + " smaller ones are not in this file (together " + NsprofFlame.quantity(this.spec.rest, this.spec.unit) + "). ");
      if (rows.length > this.room) {
        const more = make("button", { type: "button", class: "copy" }, "Show all " + rows.length.toLocaleString("en"));
        more.addEventListener("click", () => { this.room = Infinity; this.draw(); });
        note.append(more);
      }
    }
    choose(name) { this.chosen = name; if (name && !this.rows().some((r) => r[0] === name)) { this.text = this.filterBox.value = ""; } this.draw(); this.reveal(); }
    reveal() { // scroll the table, not the page
      const row = this.node.querySelector("tr.chosen"), box = this.node.parentNode;
      if (row) box.scrollTop = Math.max(0, row.offsetTop - box.clientHeight / 2);
    }
  }

  // ---- copying -----------------------------------------------------------------------------------------------
  function markdown(heads, rows, right) {
    const cell = (text) => text.trim().replace(/\s+/g, " ").replace(/([\\|`*_<>[\]])/g, "\\$1");
    return ["| " + heads.map(cell).join(" | ") + " |", "|" + right.map((r) => (r ? "---:" : "---")).join("|") + "|",
      ...rows.map((r) => "| " + r.map(cell).join(" | ") + " |")].join("\n") + "\n";
  }
  function toast(text) { $("toast").textContent = text; setTimeout(() => { $("toast").textContent = ""; }, 2500); }
  async function share(text) {
    window.nsprofCopied = text;
    try { await navigator.clipboard.writeText(text); toast("Copied " + text.trim().split("\n").length + " lines of Markdown"); } catch (error) {
      const area = make("textarea", { readonly: "" }, text); // no permission for the clipboard: the old way
      document.body.append(area);
      area.select();
      toast(document.execCommand("copy") ? "Copied" : "The browser does not allow copying");
      area.remove();
    }
  }
  for (const plain of document.querySelectorAll("table.plain")) {
    const button = make("button", { type: "button", class: "copy" }, "Copy as Markdown");
    const texts = (row) => [...row.cells].map((c) => c.textContent);
    button.addEventListener("click", () => share(markdown(texts(plain.tHead.rows[0]), [...plain.tBodies[0].rows].map(texts),
      [...plain.tHead.rows[0].cells].map((c) => c.classList.contains("num")))));
    plain.parentNode.after(button);
  }

  // ---- start -------------------------------------------------------------------------------------------------
  function follow(first) {
    if (!first && location.hash === written) return;
    written = null;
    const now = words(), fn = now.get("fn"), view = Number(now.get("view") || 0);
    if (!now.toString()) return;
    if (flame) {
      if (view !== flame.view && flame.views[view]) flame.setView(view);
      if (fn) flame.setSearch("^" + quote(fn) + "$");
      else if (now.get("s") !== null && now.get("s") !== flame.pattern) flame.setSearch(now.get("s"));
    }
    if (table) table.choose(fn || "");
    if (fn && $("flame")) $("flame").scrollIntoView();
  }
  if (data.flame) startFlame();
  if (data.functions) table = new Functions(data.functions, $("function-table"));
  follow(true);
  window.addEventListener("hashchange", () => follow(false));
  let opened = [];
  window.addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details:not([open])")]; for (const d of opened) d.open = true; });
  window.addEventListener("afterprint", () => { for (const d of opened) d.open = false; });
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // ms since the page began to load
})();
