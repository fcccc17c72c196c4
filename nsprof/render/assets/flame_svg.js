// Starts the flame graph in an SVG file: takes over from the drawing that is in the file (which is what viewers
// without scripts show), follows the window's width, and honours #s=PATTERN and #fn=NAME in the address.
(function () {
  const svg = document.documentElement.localName === "svg" ? document.documentElement : document.currentScript.closest("svg");
  const find = (name) => svg.querySelector("#nsprof-" + name);
  const data = JSON.parse(find("data").textContent), head = find("head"), legend = find("legend"), status = find("status");
  const make = NsprofFlame.make, fixed = data.width;
  const whole = svg === document.documentElement;
  const wide = () => (whole ? Math.max(480, window.innerWidth || fixed) : fixed);
  const shell = make(NsprofFlame.SVG, "foreignObject", { x: 10, height: 34 });
  const controls = make(NsprofFlame.HTML, "div", { class: "controls" });
  shell.appendChild(controls);
  svg.insertBefore(shell, find("frames"));
  function headUp(width) { // the same rule as flamegraph.py: _wrap
    const room = Math.floor((width - 24) / 6.4);
    let y = 8;
    head.replaceChildren();
    for (const [kind, text] of data.head) {
      const size = kind === "title" ? Math.floor(room * 0.72) : room;
      let line = "";
      if (kind === "more") {
        const [shown, ...rest] = text.split("\n"), row = make(NsprofFlame.SVG, "text", { x: 12, y: y += 17, class: "line more" }, shown);
        row.appendChild(make(NsprofFlame.SVG, "title", {}, rest.join("\n")));
        head.appendChild(row);
        continue;
      }
      const put = () => { y += kind === "title" ? 22 : 17; head.appendChild(make(NsprofFlame.SVG, "text", { x: 12, y: y, class: kind }, line)); line = ""; };
      for (const word of text.split(" ")) {
        if (line && line.length + 1 + word.length > size) put();
        line = line ? line + " " + word : word;
      }
      if (line) put();
    }
    return y + 8;
  }
  let flame = null, top = 0;
  function arrange() {
    const width = wide();
    let y = headUp(width);
    // the legend wraps like the text: its items know their own width
    let x = 12;
    for (const item of legend.children) {
      const need = Number(item.getAttribute("data-width"));
      if (x > 12 && x + need > width - 10) { x = 12; y += 18; }
      item.setAttribute("transform", "translate(" + x + "," + (y + 2) + ")");
      x += need;
    }
    y += 22;
    shell.setAttribute("y", y);
    shell.setAttribute("width", width - 20);
    const high = Math.max(30, controls.getBoundingClientRect().height / (svg.getScreenCTM() || { a: 1 }).a || 30);
    shell.setAttribute("height", high);
    top = y + high + 6;
  }
  function resized(height) {
    const width = wide(), whole_height = top + height + 30;
    svg.setAttribute("viewBox", "0 0 " + width + " " + whole_height);
    svg.setAttribute("width", width);
    svg.setAttribute("height", whole_height);
    status.setAttribute("y", top + height + 20);
  }
  const frames = find("frames");
  frames.setAttribute("transform", "translate(10,0)");
  flame = new NsprofFlame.Flame({ svg: svg, group: frames, controls: controls, status: status, frames: NsprofFlame.framesOf(data), views: data.views,
    width: () => wide() - 20, resized: resized, given: data.flip });
  flame.tip.setAttribute("transform", "translate(10,0)");
  const again = () => { arrange(); flame.top = top; flame.draw(); };
  again();
  window.addEventListener("resize", again);
  const words = new URLSearchParams(window.location.hash.slice(1));
  if (words.get("fn")) flame.setSearch("^" + words.get("fn").replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + "$");
  else if (words.get("s")) flame.setSearch(words.get("s"));
  flame.searched = (text) => { if (whole) window.location.replace("#" + (text ? "s=" + encodeURIComponent(text) : "")); };
  svg.setAttribute("data-ready", "yes");
})();
