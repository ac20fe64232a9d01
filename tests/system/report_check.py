# SPDX-License-Identifier: Apache-2.0
"""Checks the pages and pictures of `gantry report`. usage: report_check.py FILE...

Every file is well-formed: tags of a page are closed in order, its rows are JSON, and each SVG parses as XML. Nothing is fetched
from elsewhere, and of a page nothing runs but the template's own script. Coordinates are numbers inside the picture. Colours
have enough contrast in both schemes.
"""
import html.parser
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

VOID = {"meta", "br", "hr", "link", "img", "input"}
SVG = "http://www.w3.org/2000/svg"
TEXT_CONTRAST, GRAPHIC_CONTRAST = 4.5, 3.0  # as WCAG 2.1 asks for


def fail(path, what):
    sys.exit("%s: %s" % (path, what))


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.path, self.open, self.scripts = path, [], []

    def handle_starttag(self, tag, attributes):
        if tag == "script":
            self.scripts.append(dict(attributes))
        if tag in ("link", "img", "iframe", "object", "embed", "base", "form"):
            fail(self.path, "has a <%s>" % tag)
        for name, value in attributes:
            if name in ("src", "srcset", "action", "background") or name.startswith("on"):
                fail(self.path, "has %s=%s" % (name, value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            fail(self.path, "</%s> does not close what is open" % tag)


def luminance(colour):
    colour = colour.lstrip("#")
    if len(colour) == 3:
        colour = "".join(2 * c for c in colour)
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a, b):
    a, b = sorted((luminance(a), luminance(b)))
    return (b + 0.05) / (a + 0.05)


def check_colours(path, text):
    schemes = [dict(re.findall(r"--(\w+):(#\w+)", block)) for block in re.findall(r"\{([^{}]*--s7:[^{}]*)\}", text)]
    if len(schemes) != 2 or "prefers-color-scheme:dark" not in text:
        fail(path, "has not two colour schemes")
    for c in schemes:
        for name in ("fg", "mut", "bad"):
            against = c["badbg"] if name == "bad" else c["card"]
            if contrast(c[name], against) < TEXT_CONTRAST:
                fail(path, "text --%s %s on %s: %.1f" % (name, c[name], against, contrast(c[name], against)))
        if contrast(c["mut"], c["bg"]) < TEXT_CONTRAST:
            fail(path, "text --mut on the page: %.1f" % contrast(c["mut"], c["bg"]))
        for i in range(8):
            if contrast(c["s%d" % i], c["card"]) < GRAPHIC_CONTRAST:
                fail(path, "line --s%d %s: %.1f" % (i, c["s%d" % i], contrast(c["s%d" % i], c["card"])))
        if len({c["s%d" % i] for i in range(8)}) != 8:
            fail(path, "two lines have the same colour")


def check_svg(path, text):
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.get("viewBox").split())
    for e in root.iter():
        for name in ("x", "y", "width", "height"):
            v = e.get(name)
            if v is not None and not 0 <= float(v) <= max(width, height):
                fail(path, "%s=%s is outside of a picture of %g x %g" % (name, v, width, height))
        d = e.get("d")
        if d is not None and not re.fullmatch(r"(?:[MLHVhvmla]?-?[\d.]+ ?|z)*", d.replace(" -", " -")):
            fail(path, "a path that is none: %s" % d[:60])
        if d and e.get("class", "").startswith("l"):
            for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", d):
                if float(x) > width or float(y) > height:
                    fail(path, "a line leaves the picture: %s" % d[:60])


def check(path):
    text = open(path, encoding="utf-8").read()
    urls = set(re.findall(r"https?://[^\s\"'<>)]*", text)) - {SVG}
    if urls or "url(" in text or "@import" in text:
        fail(path, "refers to something outside: %s" % urls)
    check_colours(path, text)
    if path.endswith(".svg"):
        check_svg(path, text)
        return
    page = Page(path)
    page.feed(text)
    page.close()
    if page.open:
        fail(path, "not closed: %s" % page.open)
    if page.scripts != [{"type": "application/json", "id": "rows"}, {}]:
        fail(path, "has other scripts: %s" % page.scripts)
    rows = re.search(r'<script type="application/json" id="rows">(.*?)</script>', text, re.S).group(1)
    if re.search(r"[<>&]|[^\n\x20-\x7e]", rows) or not json.loads(rows)["sections"]:
        fail(path, "has rows that are none, or bytes in them that are not escaped")
    if "<table" not in text or 'name="viewport"' not in text or "default-src 'none'" not in text:
        fail(path, "has no table, no viewport or no policy")


for name in sys.argv[1:]:
    check(name)
print("%d files are well-formed and refer to nothing outside" % (len(sys.argv) - 1))
