#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# `gantry report`: pages and pictures of all results in bench/results and of a fresh run are well-formed and refer to nothing
# outside; lost output is an error; where there is node, the script of each page draws, zooms and reads figures
# (report_draw.js); and where there is a browser, pages fit into the window of a desktop and of a phone, light and dark, with no
# text cut off or over another.
. "$(dirname "$0")/lib.sh"
results=$SOURCE_DIR/bench/results
clean_environment
tested=("$gantry" report)

for file in "$results"/*.jsonl; do
	name=$(basename "$file" .jsonl)
	case $name in
	*-device) expect 1 "$file" -o "$tmp/$name.html" ;; # checks, and no figures
	*) expect 0 "$file" -o "$tmp/$name.html" ;;
	esac
done
expect 0 "$results/2026-11-15-h200-unpack.jsonl" -o "$tmp/unpack.html"
grep -q '132 lines of a kind that this version does not know, left out: 76-129, ' "$tmp/err" || die "unknown lines are not named"
expect 0 "$results"/2026-11-1[56]-h200-sendrecv.jsonl -o "$tmp/compared.html"
grep -q '"later":\[[0-9]' "$tmp/compared.html" || die "two files are not compared"
for plot in bandwidth latency ratio; do
	expect 0 "$results/2026-11-15-h200-allreduce.jsonl" --svg $plot -o "$tmp/$plot.svg"
done
expect 0 "$results/2026-11-15-aarch64-rx.jsonl" --svg bandwidth -o "$tmp/bars.svg"
expect 0 "$results/2026-11-15-aarch64.jsonl" "$results/2026-11-15-aarch64-huge0.jsonl" --svg compare --section "perf net" -o - ||
	die "no single plot to compare by"

# What perf prints now, from a pipe. Only that it is read matters here, not what was measured.
timeout 120 "$gantry" perf net -b 64 -e 4k -f 4 -n 16 -w 2 --repeats 2 --raw --json >"$tmp/fresh.jsonl" 2>"$tmp/err" || die "perf net"
timeout 60 "$gantry" report - -o "$tmp/fresh.html" <"$tmp/fresh.jsonl" 2>"$tmp/err" || die "report of a pipe"
grep -q 'left out' "$tmp/err" && die "lines of perf net are unknown"
expect 0 "$tmp/fresh.jsonl" --json
for bytes in 64 256 1024 4096; do
	for quantity in bandwidth latency cpu; do
		[ "$(grep -c "\"quantity\": \"$quantity\", .*\"bytes\": $bytes, " "$tmp/out")" = 2 ] ||
			die "$quantity of $bytes bytes should be there twice: of the network and of raw TCP"
	done
done
echo "ok: every result has its page"

# All results on one page, whose file without figures is named; and more files of one operation than there are letters and colours:
# 60 lines (raw TCP beside each) in eight plots, in each of which every line has a colour of its own.
expect 0 "$results"/*.jsonl -o "$tmp/all.html"
like err 'h200-device.jsonl: no line has a figure that can be drawn$'
[ "$(grep -o '"name":"[^"]*","rows":' "$tmp/all.html" | sort -u | wc -l)" = "$(ls "$results"/*.jsonl | wc -l)" ] || die "not every file is there"
mkdir "$tmp/many"
for ((i = 10; i < 40; i++)); do cp "$tmp/fresh.jsonl" "$tmp/many/$i.jsonl"; done
expect 0 "$tmp/many"/*.jsonl -o "$tmp/many.html"
has many.html '"name":"39.jsonl"'
echo "ok: many files"

# Lost output, wherever it goes; a page that was there stays.
timeout 60 "$gantry" report "$tmp/fresh.jsonl" -o - >/dev/full 2>"$tmp/err"
[ $? = 1 ] || die "a full disk should be an error"
grep -q 'No space left' "$tmp/err" || die "the reason is not given"
expect 1 "$tmp/fresh.jsonl" --json -o /dev/full
if mkdir "$tmp/small" && mount -t tmpfs -o size=8k none "$tmp/small" 2>/dev/null; then
	echo before >"$tmp/small/page.html"
	expect 1 "$tmp/fresh.jsonl" -o "$tmp/small/page.html"
	left=$(cat "$tmp/small/"*)
	umount "$tmp/small"
	[ "$left" = before ] || die "a full disk left half a page"
	echo "ok: a full disk leaves the page that was there"
else
	echo "skipped: a disk that fills up (mounting a tmpfs is not permitted)"
fi

{
	head -n 1 "$tmp/fresh.jsonl"
	echo '{"bytes": 1024, "bw_gbs": 1}'
	echo '{"bytes": 1048576, "bw_gbs": 100}'
} >"$tmp/places.jsonl"
expect 0 "$tmp/places.jsonl" -o "$tmp/places.html"
# What no measurement gives: texts that would be markup or script, and figures beyond all bounds.
{
	echo '{"machine": "</script><script>alert(1)</script>", "command": "x --lanes \"><img src=x>\u2028", "commit": "\u202e", "network": "<b>&\u0000"}'
	echo '{"bytes": 64, "bw_gbs": 1e308, "lat_us": -5, "cpu_s_per_gb": 1e308}'
	echo '{"bytes": 64, "bw_gbs": 3, "lat_us": 0, "cpu_s_per_gb": 1e308}'
	echo '{"bytes": 0, "bw_gbs": 2, "lat_us": 1e-300}'
	echo '{"bytes": 999999999999999, "bw_gbs": 1e11, "lat_us": 1e13, "raw_bw_gbs": 0}'
	echo '{"path": "a", "bytes": 7, "gbs": 1e300, "raw_gbs": -1}'
} >"$tmp/hostile.jsonl"
expect 0 "$tmp/hostile.jsonl" -o "$tmp/hostile.html"
expect 0 "$tmp/hostile.jsonl" --svg bandwidth --section net -o "$tmp/hostile.svg"
if command -v python3 >/dev/null; then
	python3 "$SOURCE_DIR/tests/system/report_check.py" "$tmp"/*.html "$tmp"/*.svg \
		"$SOURCE_DIR"/docs/images/*.svg 2>"$tmp/err" || die "a page is not well-formed"
else
	echo "skipped: whether pages are well-formed (there is no python3)"
fi
if command -v node >/dev/null; then
	node "$SOURCE_DIR/tests/system/report_draw.js" "$tmp"/*.html 2>"$tmp/err" || die "a page does not draw what it should"
else
	echo "skipped: what the pages draw (there is no node)"
fi

browser=
for name in chromium chromium-browser google-chrome; do
	[ -n "$browser" ] || browser=$(command -v $name)
done
if [ -z "$browser" ]; then
	echo "skipped: pages in a browser (there is no chromium)"
	exit 0
elif [ -n "${GANTRY_SANITIZED:-}" ]; then
	echo "skipped: pages in a browser (the plain build has shown them)"
	exit 0
fi

# Every page says itself how it came out. Boxes of text in one plot may touch by a pixel of rounding.
cat >"$tmp/measure" <<'EOF'
<script>
addEventListener("load", () => {
	const bad = [], box = e => e.getBoundingClientRect(), root = document.documentElement;
	const plots = document.querySelectorAll("figure > svg");
	for (const svg of plots) {
		const texts = [...svg.querySelectorAll("text")], whole = box(svg);
		if (whole.width < 200 || !svg.querySelector(".m, .b"))
			bad.push("nothing drawn: " + svg.getAttribute("aria-label"));
		texts.forEach((t, i) => {
			const a = box(t);
			if (a.left < whole.left - 1 || a.right > whole.right + 1 || a.top < whole.top - 1 || a.bottom > whole.bottom + 1)
				bad.push("cut off: " + t.textContent);
			for (const u of texts.slice(i + 1)) {
				const b = box(u);
				if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
					bad.push("overlap: " + t.textContent + " / " + u.textContent);
			}
		});
	}
	frameElement.dataset.result = ["width", innerWidth, "content", root.scrollWidth, "plots", plots.length,
		"background", getComputedStyle(document.body).backgroundColor.replace(/ /g, ""),
		"bad", bad.length, bad.slice(0, 5).join("; ")].join(" ").trim();
});
</script>
EOF
# A browser that cannot even show a word cannot run here.
no_answer() {
	timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$tmp/profile" --dump-dom \
		'data:text/html,<p>here' 2>/dev/null | grep -q here && die "$browser has shown nothing"
	echo "skipped: pages in a browser ($browser does not run here: $(tail -n 1 "$tmp/browser"))"
	exit 0
}
# look 0|1 BACKGROUND PAGE WIDTH...: dark or light, and pages in windows so wide; in frames, because the browser's own has a
# least width.
look() {
	local scheme=$1 background=$2 n=0 result
	shift 2
	{
		printf '<!DOCTYPE html><html><head><meta charset="utf-8"><meta name="color-scheme" content="light dark"></head><body>\n'
		while [ $# -gt 0 ]; do
			printf '<iframe name="%s" width="%d" height="900" style="border:0" srcdoc="' "$1" "$2"
			cat "$tmp/$1.html" "$tmp/measure" | sed 's/&/\&amp;/g; s/"/\&quot;/g'
			printf '"></iframe>\n'
			shift 2
		done
		printf '</body></html>\n'
	} >"$tmp/look.html"
	timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$tmp/profile" \
		--blink-settings=preferredColorScheme="$scheme" --window-size=1500,1000 --dump-dom "file://$tmp/look.html" 2>"$tmp/browser" |
		sed -n 's/.* data-result="\([^"]*\)".*/\1/p' >"$tmp/looks"
	[ -s "$tmp/looks" ] || no_answer
	while read -r result; do
		n=$((n + 1))
		[[ $result =~ ^width\ ([0-9]+)\ content\ ([0-9]+)\ plots\ [1-9][0-9]*\ background\ (.*)\ bad\ 0$ ]] &&
			[ "${BASH_REMATCH[1]}" = "${BASH_REMATCH[2]}" ] && [ "${BASH_REMATCH[3]}" = "$background" ] ||
			die "a page in the browser: $result; expected the content as wide as the window, $background and bad 0"
		echo "ok: $result"
	done <"$tmp/looks"
	[ $n = "$(grep -c '<iframe ' "$tmp/look.html")" ] || die "$browser has shown $n pages"
}
{
	echo '<!DOCTYPE html><html><head><meta charset="utf-8"></head><body style="background:rgb(246,247,249);margin:0"><figure style="width:760px;margin:0">'
	cat "$tmp/bandwidth.svg" "$tmp/latency.svg" "$tmp/ratio.svg" "$tmp/bars.svg"
	echo '</figure></body></html>'
} >"$tmp/pictures.html"
look 1 "rgb(246,247,249)" pictures 800 2026-11-15-aarch64 1400 compared 390 2026-11-15-h200-unpack 390 2026-11-15-h200-allreduce 390
look 0 "rgb(14,17,22)" 2026-11-15-aarch64 390 fresh 1400
