// Runs speedscope's own importer (npm package speedscope, release 1.15.0) on a file and prints what it understood.
// usage: node speedscope_reader.js PACKAGE_DIR FILE
// The release is two parcel bundles: the application and its importers. Both are loaded as tables of modules, without
// starting the application, and the importer's entry is asked for the file.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const release = path.join(process.argv[2], "dist", "release");
const named = (prefix) =>
  fs.readFileSync(
    path.join(release, fs.readdirSync(release).find((n) => n.startsWith(prefix) && n.endsWith(".js"))),
    "utf8",
  );
const passive = (text) => text.replace(/\},\{\},\[[^\]]*\], ?null\)/, "},{},[],null)");

const quiet = { log() {}, warn() {}, error() {}, info() {} };
const world = { console: quiet, TextDecoder, TextEncoder, setTimeout, clearTimeout, Uint8Array, ArrayBuffer, DataView };
world.window = world.self = world.global = world;
world.navigator = { userAgent: "node" };
world.document = { createElement: () => ({ style: {}, getContext: () => null }) };
vm.createContext(world);
vm.runInContext("var parcelRequire; var exports; var module;", world);
vm.runInContext(passive(named("speedscope.")), world);
vm.runInContext(passive(named("import.")), world);

const entry = named("import.").match(/"([A-Za-z0-9]{4})":\[function\(require,module,exports\) \{(?![^]*"[A-Za-z0-9]{4}":\[function)/)[1];
const importer = world.parcelRequire(entry);
const file = process.argv[3];
const bytes = fs.readFileSync(file);
const copy = vm.runInContext("(n) => new ArrayBuffer(n)", world)(bytes.length);
new Uint8Array(copy).set(bytes);

importer.importProfilesFromArrayBuffer(path.basename(file), copy).then((group) => {
  if (!group) {
    console.log("null");
    return;
  }
  const profiles = group.profiles.map((profile) => {
    const self = {};
    profile.forEachFrame((frame) => {
      self[frame.name] = (self[frame.name] || 0) + frame.getSelfWeight();
    });
    return { name: profile.getName(), unit: profile.getWeightUnit(), total: profile.getTotalWeight(), self };
  });
  console.log(JSON.stringify({ name: group.name, profiles }));
}).catch((error) => {
  process.stderr.write(String(error && error.stack) + "\n");
  process.exit(1);
});
