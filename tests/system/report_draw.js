// SPDX-License-Identifier: Apache-2.0
/*
 * Runs the script of pages of `gantry report` without a browser: report_draw.js PAGE...
 *
 * Elements here only remember what was put into them. That is enough for what was drawn where, for the texts, and for
 * zooming and hovering; how it looks needs a browser (report.sh).
 */
"use strict";
const assert = require("assert"), fs = require("fs"), path = require("path"), vm = require("vm");

class Element {
	constructor(tag, space) {
		Object.assign(this, {tag, namespaceURI: space, attributes: {}, children: [], listeners: {}, style: {}, hidden: false});
	}
	setAttribute(name, value) {
		if (name === "hidden")
			this.hidden = true;
		this.attributes[name] = String(value);
	}
	set textContent(text) { this.children = [text]; }
	get textContent() { return this.children.map(c => c instanceof Element ? c.textContent : c).join(""); }
	append(child) { this.children.push(child); }
	replaceChildren() { this.children = []; }
	addEventListener(name, f) { this.listeners[name] = f; }
	send(name, event = {}) { this.listeners[name]({preventDefault() {}, button: 0, pointerType: "mouse", ...event}); }
	setPointerCapture() {}
	focus() {}
	getBoundingClientRect() { return {left: 0, top: 0, width: 480, height: 306}; }
	all(tag, className) {
		const inner = this.children.filter(c => c instanceof Element);
		return inner.flatMap(c => [...(c.tag === tag && (!className || c.attributes.class === className) ? [c] : []), ...c.all(tag, className)]);
	}
}

function run(file) {
	const text = fs.readFileSync(file, "utf8"), page = new Element("div"), rows = new Element("script");
	rows.textContent = text.match(/<script type="application\/json" id="rows">([^]*?)<\/script>/)[1];
	const document = {getElementById: id => ({rows, page})[id], createElement: tag => new Element(tag),
		createElementNS: (space, tag) => new Element(tag, space)};
	const context = vm.createContext({document});
	vm.runInContext(text.match(/<script>\n([^]*?)<\/script>/)[1], context, {filename: file});
	return {page, value: code => vm.runInContext(code, context)};
}

/* Coordinates are numbers inside the picture; each line of a plot has a colour of its own. */
function checkFigure(figure) {
	const svg = figure.children.find(c => c.tag === "svg");
	for (const legend of figure.all("ul", "leg")) {
		const colours = legend.all("svg").map(s => s.attributes.class);
		assert.strictEqual(new Set(colours).size, colours.length, "two lines of one colour");
	}
	assert(figure.all("tbody")[0].all("tr").length > 0, "a table without rows");
	if (!svg)
		return 0;
	const [, , width, height] = svg.attributes.viewBox.split(" ").map(Number);
	for (const e of [...svg.all("path"), ...svg.all("rect"), ...svg.all("text")]) {
		const {d = "", x = 0, y = 0} = e.attributes;
		assert(/^(?:[MLHVhvma]?-?[\d.]+ ?|z)*$/.test(d), "a path that is none: " + d);
		for (const [, u, v] of d.matchAll(/[ML]([\d.]+) ([\d.]+)/g))
			assert(u >= 0 && u <= width && v >= 0 && v <= height, "outside of the picture: " + d);
		assert(x >= 0 && x <= width && y >= 0 && y <= height, "outside of the picture: " + e.textContent);
	}
	assert(svg.all("path", "m").length + svg.all("path", "m o").length + svg.all("rect").length > 0, "nothing drawn");
	return 1;
}

/* The figures of a page by title. */
function titles(page) {
	const count = {};
	for (const h of page.all("figure").map(f => f.all("h3")[0].textContent))
		count[h] = (count[h] || 0) + 1;
	return count;
}

function checkAxes(value) {
	const labels = code => value(code).ticks.map(t => t.label).join(", ");
	assert.strictEqual(labels("sizeAxis(64, 2 ** 26)"), "64 B, 1 KiB, 64 KiB, 1 MiB, 64 MiB");
	assert.strictEqual(labels("sizeAxis(2 ** 20, 2 ** 26)"), "1 MiB, 2 MiB, 4 MiB, 8 MiB, 16 MiB, 32 MiB, 64 MiB");
	assert.strictEqual(labels("sizeAxis(8, 32768)"), "16 B, 64 B, 256 B, 1 KiB, 4 KiB, 16 KiB");
	assert.strictEqual(labels("sizeAxis(1, 1e15)"), "1 B, 1 KiB, 1 MiB, 1 GiB, 1 TiB");
	assert.strictEqual(labels("sizeAxis(100001, 100003)"), "97.7 KiB, 97.7 KiB");
	assert.strictEqual(labels("valueAxis(0.15, 12.5, BANDWIDTH)"), "0.1, 0.2, 0.5, 1, 2, 5, 10, 20");
	assert.strictEqual(labels("valueAxis(3.4, 13252, LATENCY)"), "10 \u00b5s, 100 \u00b5s, 1 ms, 10 ms");
	assert.strictEqual(labels("valueAxis(1, 3.38, RATIO)"), "1\u00d7, 1.5\u00d7, 2\u00d7, 3\u00d7, 4\u00d7, 5\u00d7");
	assert.strictEqual(labels("valueAxis(5.1, 5.4, BANDWIDTH, true)"), "5.1, 5.2, 5.3, 5.4");
	assert(value("valueAxis(7, 7, BANDWIDTH)").ticks.length >= 2);
	assert(value("valueAxis(1e-9, 1e12, CPU)").ticks.length <= 9);
	for (const [code, text] of [["sizeText(1536, true)", "1.5 KiB"], ["sizeText(1048577, true)", "1048577 B"], ["sizeText(1048577)", "1 MiB"],
		["sizeText(0, true)", "0 B"], ["sizeText(1023, true)", "1023 B"], ["numberText(0)", "0"], ["numberText(0.029)", "0.029"],
		["numberText(12.4698)", "12.47"], ["numberText(13252.4)", "13252"], ["valueText(3.42252, LATENCY)", "3.42 \u00b5s"],
		["valueText(999.9, LATENCY)", "1 ms"], ["valueText(0.148, LATENCY)", "148 ns"], ["valueText(2e6, LATENCY)", "2 s"],
		["valueText(-0.002, LATENCY)", "-2 ns"], ["valueText(11.8593, BANDWIDTH)", "11.9 GB/s"], ["valueText(0.5, RATIO)", "0.5\u00d7"]])
		assert.strictEqual(value(code), text, code);
}

/* Two points; the area goes from 58 to 458 and from 262 up to 30, sizes keep 1/42 of it clear at either end. */
function checkPlaces(page) {
	const figure = page.all("figure")[0], svg = figure.children.find(c => c.tag === "svg");
	const tip = figure.all("div", "tip")[0], reset = figure.all("button")[0], line = () => svg.all("path", "l")[0].attributes.d;
	const at = (x, y = 100) => ({clientX: x, clientY: y}), key = name => svg.send("keydown", {key: name});
	const drag = (from, to) => {
		svg.send("pointerdown", from);
		svg.send("pointermove", to);
		svg.send("pointerup", to);
	};
	assert.strictEqual(line(), "M67.5 262.0L448.5 30.0");
	assert(tip.hidden && reset.hidden);
	svg.send("pointermove", at(440));
	assert(!tip.hidden && /^1 MiB.*100 GB\/s$/.test(tip.textContent), tip.textContent);
	svg.send("pointerleave");
	assert(tip.hidden);
	svg.send("pointerdown", {...at(70), pointerType: "touch"}); // a finger scrolls, and does not zoom
	assert(tip.textContent.startsWith("1 KiB"));
	svg.send("pointerup", {...at(300), pointerType: "touch"});
	assert(reset.hidden);
	drag(at(58), at(258));
	assert(!reset.hidden && /^M77\.0 /.test(line()), line());
	drag(at(100), at(102)); // a click chooses nothing
	assert(/^M77\.0 /.test(line()));
	svg.send("dblclick");
	assert(reset.hidden && line() === "M67.5 262.0L448.5 30.0");
	drag(at(200), at(300)); // no point there: nothing to show
	assert.strictEqual(line(), "M67.5 262.0L448.5 30.0");
	drag(at(40, 20), at(258, 200));
	assert(!reset.hidden && line() !== "M67.5 262.0L448.5 30.0");
	reset.send("click");
	assert(reset.hidden);
	key("ArrowRight");
	assert(tip.textContent.startsWith("1 KiB"));
	key("ArrowRight");
	assert(tip.textContent.startsWith("1 MiB"));
	key("ArrowRight"); // there is no other
	assert(tip.textContent.startsWith("1 MiB"));
	key("+");
	assert(!reset.hidden && tip.hidden);
	for (let i = 0; i < 4; i++)
		key("-");
	assert(reset.hidden);
	key("+");
	key("Escape");
	assert(reset.hidden && line() === "M67.5 262.0L448.5 30.0");
}

let plots = 0;
for (const file of process.argv.slice(2)) {
	const {page, value} = run(file), name = path.basename(file, ".html"), count = titles(page);
	for (const figure of page.all("figure"))
		plots += checkFigure(figure);
	assert(page.all("figure").length > 0, file + ": no plot");
	assert(page.all("script").length + page.all("img").length === 0, "foreign elements");
	if (name === "places") {
		checkAxes(value);
		checkPlaces(page);
	} else if (name === "compared") {
		assert(count["Compared with A: Bandwidth"], "two files are not compared");
	} else if (name === "many") {
		assert.strictEqual(count.Bandwidth, 8, "60 lines of bandwidth (30 files, raw TCP beside each) need 8 plots");
		assert.strictEqual(page.all("h3").filter(h => h.textContent === "AD: 39.jsonl").length, 1);
	} else if (name === "hostile") {
		assert(page.textContent.includes("</script><script>alert(1)</script>") && page.textContent.includes("<b>&"), "text is lost");
	} else if (name === "fresh") {
		assert.deepStrictEqual(Object.keys(count), ["Bandwidth", "Latency, one way", "CPU time per GB", "Times better than the peer"]);
		assert.deepStrictEqual(page.all("div", "card tile").map(t => t.children[0].textContent), ["Peak bandwidth", "Lowest latency", "Lowest CPU time"]);
	}
}
console.log(`${plots} plots of ${process.argv.length - 2} pages are drawn`);
