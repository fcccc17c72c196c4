// The report page's own behaviour: the flame graph's place, the function table, links into the page, copying.
// State that a link should carry lives in the address: #fn=NAME (a function), #s=PATTERN, #view=N, #at=SECTION and,
// where the file holds several comparisons ("sheets"), #sheet=LABEL for all but the first.
(function () {
  const $ = (id) => document.getElementById(id);
  const make = (name, attributes, text) => NsprofFlame.make(NsprofFlame.HTML, name, attributes, text);
  const data = JSON.parse($("nsprof-data").textContent), quote = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const sheets = data.sheets.map((spec) => ({ spec: spec, head: null, nav: null, main: null, flame: null, table: null }));
  let flame = null, table = null, written = null, current = 0;

  // ---- the address -------------------------------------------------------------------------------------------
  // Where `changes` of the present comparison are.
  function address(changes) {
    const to = new URLSearchParams(changes);
    if (current) to.set("sheet", sheets[current].spec.name);
    return "#" + to.toString();
  }
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
  const frames = data.flame && NsprofFlame.framesOf(data.flame);
  function startFlame(numbers) {
    const svg = $("flame-svg"), views = numbers.map((n) => data.flame.views[n]), status = $("flame-status"), note = $("flame-note");
    const legends = [...svg.parentNode.querySelectorAll(".legend")];
    const wide = () => Math.max(320, svg.parentNode.clientWidth - 18);
    const extras = (k) => {
      for (const box of legends) box.hidden = (box.dataset.diff === "yes") !== views[k].diff;
      note.textContent = views[k].note;
    };
    const made = new NsprofFlame.Flame({
      svg: svg, group: $("flame-frames"), controls: $("flame-controls"), status: status,
      frames: frames, views: views, width: wide, top: 4,
      resized: (height) => { svg.setAttribute("viewBox", "0 0 " + wide() + " " + (height + 12)); svg.setAttribute("width", wide()); svg.setAttribute("height", height + 12); },
      viewed: (k) => { extras(k); remember({ view: k ? String(k) : "" }); }
    });
    made.group.setAttribute("aria-label", "Flame graph: arrows walk, Enter zooms, Escape resets, slash searches; the function table below has the same figures");
    made.searched = (text) => { const fn = words().get("fn"); if (!fn || text !== "^" + quote(fn) + "$") remember({ s: text, fn: "" }); };
    extras(0);
    return made;
  }
  window.addEventListener("resize", () => { if (flame) flame.draw(); if (table) table.fit(); });

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
    get shownColumns() { // those that say something of any function
      if (!this.shown) {
        const says = (k) => this.spec.rows.some((r) => r[k] !== null && r[k] !== undefined && r[k] !== "");
        this.shown = this.spec.columns.map((c, k) => k).filter((k) => this.spec.columns[k].kind !== "hidden" && (says(k) || !this.spec.rows.length));
      }
      return this.shown;
    }
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
      const every = this.every = make("input", { type: "checkbox", id: "function-columns" }), whole = make("label", {});
      every.addEventListener("change", () => this.fit());
      whole.append(every, " all columns");
      box.append(whole);
      const copy = make("button", { type: "button", class: "copy" }, "Copy as Markdown");
      copy.addEventListener("click", () => share(markdown(this.shownColumns.map((k) => this.spec.columns[k].title),
        this.rows().map((r) => this.shownColumns.map((k) => this.cell(r, k))), this.shownColumns.map((k) => this.right(k)))));
      box.append(copy);
    }
    kind(k) { return (this.right(k) ? "num" : "") + (this.spec.columns[k].rank ? " rank" + this.spec.columns[k].rank : ""); }
    fit() { // where there is no room for all columns, the least needed give way
      const box = this.node.parentNode, columns = this.spec.columns, most = this.every.checked ? 0 : Math.max(...columns.map((c) => c.rank || 0));
      let level = 0;
      for (; ; level++) {
        this.node.className = level ? "less" + level : "";
        if (level >= most || this.node.offsetWidth <= box.clientWidth) break;
      }
      const gone = this.shownColumns.filter((k) => columns[k].rank && columns[k].rank <= level).length;
      this.every.parentNode.hidden = !gone && !this.every.checked;
      this.every.nextSibling.textContent = this.every.checked ? " all columns" : " all columns (" + gone + " more than fit)";
    }
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
          const th = make("th", { scope: "row", class: "fn" }), link = make("a", { href: address({ fn: row[0] }) });
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
    weak(row) { // no colour for what is not called significant; where nothing is called, for what may be nothing
      const find = (kind) => this.spec.columns.findIndex((c) => c.kind === kind), k = find("verdict"), i = find("interval");
      if (this.tested === undefined) {
        this.tested = k >= 0 && this.spec.rows.some((r) => r[k]);
        this.known = i >= 0 && this.spec.rows.some((r) => r[i] !== null);
      }
      if (this.tested) return row[k] !== "+" && row[k] !== "-";
      return this.known && (row[i] === null || (row[i] <= 0 && row[i + 1] >= 0));
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
      this.fit();
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
  function copyButtons(root) {
    for (const plain of root.querySelectorAll("table.plain")) {
      const button = make("button", { type: "button", class: "copy" }, "Copy as Markdown");
      const texts = (row) => [...row.cells].map((c) => c.textContent);
      button.addEventListener("click", () => share(markdown(texts(plain.tHead.rows[0]), [...plain.tBodies[0].rows].map(texts),
        [...plain.tHead.rows[0].cells].map((c) => c.classList.contains("num")))));
      plain.parentNode.after(button);
    }
  }

  // ---- comparisons -------------------------------------------------------------------------------------------
  const pristine = sheets.length > 1 ? $("main").cloneNode(true) : null; // what the further ones do not repeat
  function unpack(k) {
    const copy = document.importNode($("sheet-" + k).content, true);
    for (const hole of copy.querySelectorAll("[data-same]")) hole.replaceWith(pristine.querySelector('[id="' + hole.dataset.same + '"]').cloneNode(true));
    const [head, nav, main] = copy.children;
    return { head: head, nav: [...nav.childNodes], main: [...main.childNodes] };
  }
  function show(k) {
    const sheet = sheets[k], fresh = !sheet.main, before = sheets[current];
    if (k !== current) {
      Object.assign(before, { head: $("head"), nav: [...$("nav-list").childNodes], main: [...$("main").childNodes] });
      if (fresh) Object.assign(sheet, unpack(k));
      $("head").replaceWith(sheet.head);
      $("nav-list").replaceChildren(...sheet.nav);
      $("main").replaceChildren(...sheet.main);
    }
    current = k;
    document.title = sheet.spec.title;
    if ($("sheet")) $("sheet").value = String(k);
    if (fresh) {
      if (k) for (const link of $("nav-list").querySelectorAll("a")) link.setAttribute("href", address({ at: link.getAttribute("href").slice(1) }));
      sheet.main = true;
      copyButtons($("main"));
      if (sheet.spec.views.length) sheet.flame = startFlame(sheet.spec.views);
      if (sheet.spec.functions) sheet.table = new Functions(sheet.spec.functions, $("function-table"));
    } else { // the window may have changed meanwhile
      if (sheet.flame) sheet.flame.draw();
      if (sheet.table) sheet.table.fit();
    }
    flame = sheet.flame;
    table = sheet.table;
  }
  function startSheets() {
    const pick = $("sheet");
    if (!pick) return;
    $("sheets").hidden = false;
    pick.addEventListener("change", () => {
      const now = words(), k = Number(pick.value), kept = {}; // a function or a search goes along, a place does not
      for (const key of ["fn", "s"]) if (now.get(key)) kept[key] = now.get(key);
      if (k) kept.sheet = sheets[k].spec.name;
      written = "#" + new URLSearchParams(kept).toString();
      if (written !== "#" || location.hash) history.replaceState(null, "", written === "#" ? location.pathname + location.search : written);
      show(k);
      restore(words());
      toast("Showing " + sheets[k].spec.name);
    });
  }

  // ---- start -------------------------------------------------------------------------------------------------
  function restore(now) {
    const fn = now.get("fn"), view = Number(now.get("view") || 0), text = now.get("s") || "";
    if (flame) {
      if (view !== flame.view && flame.views[view]) flame.setView(view);
      if (fn) flame.setSearch("^" + quote(fn) + "$");
      else if (text !== flame.pattern) flame.setSearch(text);
    }
    if (table) table.choose(fn || "");
  }
  function follow(first) {
    if (!first && location.hash === written) return;
    written = null;
    const now = words(), k = Math.max(0, sheets.findIndex((sheet) => sheet.spec.name === now.get("sheet")));
    if (!now.toString()) { if (!first && !location.hash && current) show(0); return; }
    const other = k !== current, section = now.get("at") && document.querySelector('section[id="' + CSS.escape(now.get("at")) + '"]');
    if (other) show(k);
    if (first || other || !section) restore(now); // a jump within the page leaves the rest as it is
    if (section) { section.setAttribute("tabindex", "-1"); section.focus({ preventScroll: true }); section.scrollIntoView(); }
    else if (now.get("fn") && $("flame")) $("flame").scrollIntoView();
  }
  show(0);
  startSheets();
  follow(true);
  window.addEventListener("hashchange", () => follow(false));
  let opened = [];
  window.addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details:not([open])")]; for (const d of opened) d.open = true; });
  window.addEventListener("afterprint", () => { for (const d of opened) d.open = false; });
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // ms since the page began to load
})();
