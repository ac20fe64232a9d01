/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry report`: figures whose points, ticks and ratios are known beforehand; foreign text; files that are not good. How a
 * page looks is tested by tests/system/report.sh. */
#include <math.h>
#include <sys/stat.h>

#include "common/cmd.h"
#include "report/series.h"
#include "tool_folder.h"

#define COMMAND(...) command(cmd_report, (const char *const[]){"report", __VA_ARGS__, NULL})

static int files_in_dir(void)
{
	DIR *d = opendir(test_folder());
	int n = 0;

	CHECK(d != NULL);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

#define MU "\302\265"
#define TIMES "\303\227"

/* The texts of a picture below its heading, ticks first, are these. */
static void check_picture(const char *file, const char *plot, const char *section, const char *expected)
{
	char texts[1024] = "", *svg, *p;

	CHECK_EQ(COMMAND(file, "--svg", plot, "--section", section, "-o", "%picture.svg"), 0);
	svg = slurp("picture.svg");
	p = strstr(svg, "better</text>");
	p = p ? p : strstr(svg, "peer</text>\n");
	CHECK(p != NULL);
	for (p += 10; (p = strchr(p, '>')); p++) {
		size_t n = strcspn(p + 1, "<"), used = strlen(texts);

		if (n && p[1] != '\n')
			snprintf(texts + used, sizeof(texts) - used, "%s%.*s", used ? "|" : "", (int)n, p + 1);
	}
	for (const char *name[] = {"&#8230;", "\342\200\246", "&#39;", "'", NULL}, **e = name; *e; e += 2)
		while ((p = strstr(texts, *e))) {
			memmove(p + strlen(e[1]), p + strlen(*e), strlen(p + strlen(*e)) + 1);
			memcpy(p, e[1], strlen(e[1]));
		}
	CHECK_STR(texts, expected);
	free(svg);
}

/* ---- lines to points ---- */

static const struct report_series *find(const struct report *r, size_t file, enum report_quantity q, const char *name,
					const char *peer)
{
	for (size_t i = 0; i < r->nseries; i++) {
		const struct report_series *s = &r->series[i];

		if (s->file == file && s->quantity == q && !strcmp(s->name, name) &&
		    (peer ? s->peer && !strcmp(s->peer, peer) : !s->peer))
			return s;
	}
	TEST_FAIL("no series %s", name);
}

static void check_point(const struct report_series *s, size_t i, double bytes, double min, double median, double max)
{
	const struct report_point *p = &s->points[i];

	CHECK(i < s->npoints);
	CHECK(p->bytes == bytes || (isnan(bytes) && isnan(p->bytes)));
	CHECK(fabs(p->min - min) < 1e-9);
	CHECK(fabs(p->median - median) < 1e-9);
	CHECK(fabs(p->max - max) < 1e-9);
}

static void read_all(struct report *r, const char *only, const char *const *names)
{
	static char paths[4][256];
	char why[512];

	memset(r, 0, sizeof(*r));
	for (int i = 0; names[i]; i++) {
		if (report_read(r, in_dir(names[i], paths[i]), why, sizeof(why)))
			TEST_FAIL("%s", why);
	}
	CHECK_EQ(report_finish(r, only), 0);
}
#define READ(r, only, ...) read_all(r, only, (const char *const[]){__VA_ARGS__, NULL})

#define HEAD                                                                                                           \
	"{\"machine\": \"m\", \"command\": \"gantry perf net --raw -b 64 --lanes 3\", \"commit\": \"c1\", "            \
	"\"network\": \"gantry\"}\n"

/* Two sizes, out of order; one of them three times, one with the spread that perf gives. */
static const char net[] =
	HEAD "{\"bytes\": 1048576, \"bw_gbs\": 6, \"lat_us\": 100, \"cpu_s_per_gb\": 0.5, \"raw_bw_gbs\": 2, "
	     "\"raw_lat_us\": 300, "
	     "\"raw_cpu_s_per_gb\": 0.25, \"wrong\": 0}\n"
	     "{\"bytes\": 1024, \"bw_gbs\": 3, \"bw_gbs_min\": 2.5, \"bw_gbs_max\": 3.5, \"lat_us\": 4, \"wrong\": 0}\n"
	     "\n"
	     "{\"bytes\": 1048576, \"bw_gbs\": 9, \"raw_bw_gbs\": 2}\n"
	     "{\"bytes\": 1048576, \"bw_gbs\": 7, \"raw_bw_gbs\": 2}\n";

/* How many times better a series is than what it is compared with, a peer or another series, at a size that both have. */
static double ratio(const struct report *r, enum report_quantity q, const char *own, const char *other, double bytes)
{
	for (size_t i = 0; i < r->nseries * r->nseries; i++) {
		const struct report_series *a = &r->series[i / r->nseries], *b = &r->series[i % r->nseries];
		struct report_point points[8];
		size_t n;

		if (a->quantity != q || strcmp(a->name, own) != 0 || !report_is_peer(a, b) ||
		    strcmp(b->peer ? b->peer : b->name, other) != 0)
			continue;
		n = report_ratio(a, b, NULL);
		CHECK(n <= 8);
		CHECK_EQ(report_ratio(a, b, points), n);
		for (size_t k = 0; k < n; k++)
			if (points[k].bytes == bytes)
				return points[k].median;
	}
	return NAN;
}

TEST(test_net)
{
	const struct report_series *s;
	struct report r;

	put("net.jsonl", net);
	READ(&r, NULL, "net.jsonl");
	CHECK_EQ(r.files[0].rows, 4);
	CHECK_EQ(r.files[0].unknown, 0);
	s = find(&r, 0, REPORT_BANDWIDTH, "gantry, lanes 3", NULL);
	CHECK_EQ(s->npoints, 2);
	check_point(s, 0, 1024, 2.5, 3, 3.5);
	check_point(s, 1, 1048576, 6, 7, 9);
	check_point(find(&r, 0, REPORT_LATENCY, "gantry, lanes 3", "raw TCP"), 0, 1048576, 300, 300, 300);

	CHECK_EQ(r.nsections, 1);
	CHECK_STR(r.sections[0].title, "perf net");
	CHECK(!report_is_beside(s) && report_is_beside(find(&r, 0, REPORT_BANDWIDTH, "gantry, lanes 3", "raw TCP")));
	/* Up is better whatever the quantity: 7/2 of the bandwidth, a third of the time, twice the CPU time. */
	CHECK(fabs(ratio(&r, REPORT_BANDWIDTH, "gantry, lanes 3", "raw TCP", 1048576) - 3.5) < 1e-9);
	CHECK(fabs(ratio(&r, REPORT_LATENCY, "gantry, lanes 3", "raw TCP", 1048576) - 3) < 1e-9);
	CHECK(fabs(ratio(&r, REPORT_CPU, "gantry, lanes 3", "raw TCP", 1048576) - 0.5) < 1e-9);
	CHECK(isnan(ratio(&r, REPORT_BANDWIDTH, "gantry, lanes 3", "raw TCP", 1024)));
	report_free(&r);
}

TEST(test_bench)
{
	struct report r;

	put("bench.jsonl",
	    "{\"machine\": \"m\", \"nccl\": \"2.28.9\", \"command\": \"bench/gpu.sh\", \"commit\": \"c\"}\n"
	    "{\"label\": \"raw\", \"streams_per_direction\": 1, \"gbs_per_direction\": 5}\n"
	    "{\"label\": \"gantry\", \"ranks\": 2, \"bytes\": 1024, \"time_us\": 20, \"busbw_gbs\": 0.05}\n"
	    "{\"label\": \"gantry\", \"ranks\": 2, \"bytes\": 1048576, \"time_us\": 100, \"busbw_gbs\": 10}\n"
	    "{\"label\": \"socket\", \"ranks\": 2, \"bytes\": 1024, \"time_us\": 30, \"busbw_gbs\": 0.03}\n"
	    "{\"label\": \"socket\", \"ranks\": 2, \"bytes\": 1048576, \"time_us\": 250, \"busbw_gbs\": 4}\n"
	    "{\"label\": \"socket2x2\", \"error\": \"failed\"}\n"
	    "{\"test\": \"nccl_check\", \"cases\": 27, \"wrong\": 0}\n"
	    "{\"variant\": \"p0\", \"gbs\": {\"copy\": 1}}\n"
	    "{\"variant\": \"p1\", \"gbs\": {\"copy\": 2}}\n"
	    "{\"bytes\": 1, \"time_us\": 1}\n");
	READ(&r, "ALL-REDUCE", "bench.jsonl");
	CHECK_EQ(r.files[0].rows, 5);
	CHECK_EQ(r.files[0].checks, 1);
	CHECK_EQ(r.files[0].failures, 1);
	CHECK_EQ(r.files[0].unknown, 3);
	CHECK_STR(r.files[0].unknown_lines, "9-11");
	CHECK_STR(r.files[0].unknown_keys, "variant, gbs");
	check_point(find(&r, 0, REPORT_BANDWIDTH, "raw TCP, 1 stream", NULL), 0, NAN, 5, 5, 5);
	CHECK_EQ(r.nsections, 1);
	CHECK(report_is_beside(find(&r, 0, REPORT_BANDWIDTH, "raw TCP, 1 stream", NULL)));
	CHECK(report_is_beside(find(&r, 0, REPORT_LATENCY, "NCCL Socket", NULL)));
	CHECK(fabs(ratio(&r, REPORT_LATENCY, "Gantry", "NCCL Socket", 1024) - 1.5) < 1e-9);
	CHECK(fabs(ratio(&r, REPORT_LATENCY, "Gantry", "NCCL Socket", 1048576) - 2.5) < 1e-9);
	CHECK(isnan(ratio(&r, REPORT_BANDWIDTH, "Gantry", "NCCL Socket", 1024))); /* it is the time's */
	report_free(&r);
	READ(&r, "perf net", "bench.jsonl");
	CHECK_EQ(r.nsections, 0);
	report_free(&r);
}

/* Lines of bench/coll_compare.py: a section for each operation, ranks and transport; Gantry beside each library. */
TEST(test_libraries)
{
	struct report r;

#define ROW(library, op, bytes, time)                                                                                  \
	"{\"library\": \"" library "\", \"op\": \"" op "\", \"ranks\": 2, \"transport\": \"net\", \"bytes\": " bytes   \
	", "                                                                                                           \
	"\"setting\": \"default\", \"time_us\": " time ", \"busbw_gbs\": 1, \"wrong\": 0, \"round\": 0}\n"
	/* clang-format off */
	put("libraries.jsonl",
	    "{\"bench\": \"coll_compare\", \"machine\": \"m\", \"note\": \"\"}\n"
	    ROW("openmpi", "all_reduce", "8", "8") ROW("gloo", "all_reduce", "8", "24")
	    ROW("gantry", "all_reduce", "8", "6") ROW("gantry", "all_reduce", "8", "4") ROW("gantry", "all_reduce", "8", "2")
	    ROW("openmpi", "all_reduce", "64", "9") ROW("gantry", "all_reduce", "64", "3")
	    ROW("gantry", "broadcast", "8", "1"));
	/* clang-format on */
#undef ROW
	READ(&r, "coll_compare", "libraries.jsonl");
	CHECK_EQ(r.files[0].rows, 8);
	CHECK_EQ(r.files[0].unknown, 0);
	CHECK_EQ(r.nsections, 2);
	CHECK_STR(r.sections[0].group, "all_reduce, 2 ranks, net");
	CHECK(fabs(ratio(&r, REPORT_LATENCY, "Gantry", "OpenMPI", 8) - 2) < 1e-9);
	CHECK(fabs(ratio(&r, REPORT_LATENCY, "Gantry", "OpenMPI", 64) - 3) < 1e-9);
	CHECK(fabs(ratio(&r, REPORT_LATENCY, "Gantry", "gloo", 8) - 6) < 1e-9);
	report_free(&r);
}

/* Lines of perf of collectives: a section for each; types, operations and roots tell series apart, and in place stands
 * beside out of place. */
TEST(test_collectives)
{
	struct report r;

#define ROW(op, type, redop, root, bytes, time, in_place)                                                              \
	"{\"collective\": \"" op "\", \"ranks\": 2, \"device\": \"host\", \"transport\": \"net\", \"bytes\": " bytes   \
	", \"type\": \"" type "\", \"redop\": \"" redop "\", \"root\": " root ", \"time_us\": " time                   \
	", \"algbw_gbs\": 1, \"busbw_gbs\": 1, \"in_place_time_us\": " in_place ", \"wrong\": 0}\n"
	/* clang-format off */
	put("collectives.jsonl",
	    "{\"op\": \"collectives\", \"machine\": \"m\", \"command\": \"gantry perf collectives -d all -o sum -r -1 --algo ring -b 8\"}\n"
	    ROW("all_reduce", "float", "sum", "-1", "8", "8", "4") ROW("all_reduce", "float", "sum", "-1", "64", "8", "2")
	    ROW("broadcast", "half", "none", "1", "8", "8", "null")
	    "{\"collective\": \"barrier\", \"time_us\": null, \"wrong\": 0}\n"
	    "{\"wrong_elements\": 0, \"avg_busbw_gbs\": 1, \"ok\": true}\n");
	/* clang-format on */
#undef ROW
	READ(&r, "collectives", "collectives.jsonl");
	CHECK_EQ(r.files[0].rows, 3);
	CHECK_EQ(r.files[0].checks, 1);
	CHECK_EQ(r.files[0].unknown, 0);
	CHECK_EQ(r.nsections, 2);
	CHECK_STR(r.sections[0].group, "all_reduce, 2 ranks, host");
	CHECK_STR(r.sections[1].group, "broadcast, 2 ranks, host");
	CHECK_STR(r.series[0].name, "float sum, ring");
	CHECK_STR(r.series[r.nseries - 1].name, "half, root 1, ring");
	CHECK(fabs(ratio(&r, REPORT_LATENCY, "float sum, ring", "in place", 8) - 0.5) < 1e-9);
	report_free(&r);
}

/* Names by options, groups by pattern; bars where there is one size; commits apart; wrong bytes, warnings. */
TEST(test_kinds)
{
	struct report r;

	put("kinds.jsonl", "{\"command\": \"gantry perf sendrecv --transport shm --threads -b 8 -e 64 --json\", "
			   "\"machine\": \"m\", \"commit\": "
			   "\"c1\"}\n"
			   "{\"bytes\": 8, \"time_us\": 1, \"algbw_gbs\": 0.008, \"busbw_gbs\": 0.008, \"pattern\": "
			   "\"ring\", \"ranks\": 2, "
			   "\"flag_us\": 0.5, \"memcpy_gbs\": 3, \"wrong\": 2}\n"
			   "{\"bytes\": 64, \"time_us\": 1, \"algbw_gbs\": 0.064, \"busbw_gbs\": 0.064, \"pattern\": "
			   "\"ring\", \"ranks\": 2}\n"
			   "{\"wrong_bytes\": 2, \"ok\": false, \"warning\": \"busy\"}\n"
			   "{\"kind\": \"unpack\", \"shape\": \"odd\", \"blocks\": 8, \"bytes\": 512, \"gbs\": 300, "
			   "\"seed_gbs\": 100}\n"
			   "{\"command\": \"gantry perf unpack\", \"machine\": \"m\", \"commit\": \"c2\"}\n"
			   "{\"kind\": \"unpack\", \"shape\": \"odd\", \"blocks\": 8, \"bytes\": 512, \"gbs\": 400, "
			   "\"seed_gbs\": 100}\n"
			   "{\"machine\": \"m\", \"rows\": [{\"path\": \"host: because\", \"bytes\": 7, \"gbs\": 5}, "
			   "{\"path\": \"host\", \"gbs\": "
			   "6}]}\n");
	READ(&r, NULL, "kinds.jsonl");
	CHECK_EQ(r.files[0].rows, 6);
	CHECK_EQ(r.files[0].unknown, 0);
	CHECK_EQ(r.files[0].wrong_rows, 1);
	CHECK(r.files[0].wrong == 2);
	CHECK_EQ(r.files[0].failures, 1);
	CHECK_EQ(r.files[0].warnings, 1);
	CHECK_STR(r.files[0].warning, "busy");
	check_point(find(&r, 0, REPORT_LATENCY, "shm, threads", "bare flag"), 0, 8, 0.5, 0.5, 0.5);
	for (size_t i = 0; i < r.nseries; i++) /* memcpy of 8 bytes says nothing */
		CHECK(!r.series[i].peer || strcmp(r.series[i].peer, "memcpy") != 0);

	CHECK_EQ(r.nsections, 3);
	CHECK_STR(r.sections[0].title, "perf sendrecv: ring, 2 ranks");
	CHECK_STR(r.sections[1].title, "perf unpack: unpack, 8 blocks");
	report_free(&r);
	/* Bars: two commits with their peer, both sizes of one name. */
	check_picture("%kinds.jsonl", "bandwidth", "unpack",
		      "odd (c1)|300 GB/s|Gantry|100 GB/s|NCCL's loop|odd (c2)|400 GB/s|Gantry|100 GB/s|NCCL's loop");
	check_picture("%kinds.jsonl", "bandwidth", "perf rx",
		      "host path, any size|6 GB/s|Gantry|host path, 7 B|5 GB/s|Gantry");
}

/* Puts have the keys of perf net and one more. */
TEST(test_gin)
{
	struct report r;

	put("gin.jsonl",
	    "{\"machine\": \"m\", \"command\": \"gantry perf gin --contexts 4 -b 8 --json\", \"commit\": \"c1\"}\n"
	    "{\"bytes\": 8, \"lat_us\": 13, \"bw_gbs\": 0.002, \"puts_per_s\": 250000, \"wrong\": 0, \"ranks\": 2, "
	    "\"contexts\": 4, \"device\": \"host\"}\n");
	READ(&r, NULL, "gin.jsonl");
	CHECK_EQ(r.nsections, 1);
	CHECK_STR(r.sections[0].title, "perf gin: 2 ranks, host");
	check_point(find(&r, 0, REPORT_LATENCY, "contexts 4", NULL), 0, 8, 13, 13, 13);
	report_free(&r);
}

TEST(test_compare)
{
	const struct report_series *a, *b;
	struct report_point at;
	struct report r;

	put("other.jsonl",
	    "{\"machine\": \"m\", \"command\": \"gantry perf net --huge 0\", \"commit\": \"c2\", \"network\": "
	    "\"gantry\"}\n{\"bytes\": 1048576, \"bw_gbs\": 14, \"lat_us\": 200}\n");
	READ(&r, NULL, "net.jsonl", "other.jsonl");
	/* Other options, but the only series of both: B has 14/7 of the bandwidth, and takes 200/100 of the time. */
	a = find(&r, 0, REPORT_BANDWIDTH, "gantry, lanes 3", NULL);
	b = report_counterpart(&r, a, 1);
	CHECK(b == find(&r, 1, REPORT_BANDWIDTH, "gantry, huge 0", NULL));
	CHECK_EQ(report_ratio(b, a, &at), 1);
	CHECK(fabs(at.median - 2) < 1e-9);
	a = find(&r, 0, REPORT_LATENCY, "gantry, lanes 3", NULL);
	b = report_counterpart(&r, a, 1);
	CHECK(b && report_ratio(b, a, &at) == 1);
	CHECK(fabs(at.median - 0.5) < 1e-9);
	report_free(&r);
	CHECK_EQ(COMMAND("%net.jsonl", "%other.jsonl", "--svg", "compare", "-o", "%compare.svg"), 0);
}

/* ---- output ---- */

/* Two points of a picture: the area goes from 70 to 468 and from 366 up to 114; sizes keep 1/42 of it clear at either end. */
TEST(test_places)
{
	char *page;

	put("places.jsonl", HEAD "{\"bytes\": 1024, \"bw_gbs\": 1}\n{\"bytes\": 1048576, \"bw_gbs\": 100}\n");
	check_picture("%places.jsonl", "bandwidth", "perf net",
		      "1|2|5|10|20|50|100|1 KiB|4 KiB|16 KiB|64 KiB|256 KiB|1 MiB|message size|GB/s|gantry, lanes "
		      "3|100 GB/s");
	page = slurp("picture.svg");
	CHECK_HAS(page, "d=\"M79.5 366.0L458.5 114.0\"");
	free(page);
	CHECK_EQ(COMMAND("%places.jsonl", "-o", "%places.html"), 0);
	page = slurp("places.html");
	CHECK_HAS(page, "<td>1 MiB</td><td>100</td>");
	CHECK_HAS(page, "\"command\":\"gantry perf net --raw -b 64 --lanes 3\"");
	CHECK_HAS(page,
		  "\"name\":\"gantry, lanes 3\",\"commit\":null,\"peer\":null,\"beside\":false,\"to\":[],\"later\":[],"
		  "\"points\":[[1024,1,1,1],[1048576,100,100,100]]");
	CHECK(!strstr(page, "{{") && !strstr(page, "https:"));
	free(page);
}

/* Ticks at the ends of the ranges, and units. */
TEST(test_axes)
{
#define ROW(bytes, key, value) "{\"bytes\": " bytes ", \"" key "\": " value ", \"bw_gbs\": 1}\n"
#define TWO(lo, hi, key, from, to) HEAD ROW(lo, key, from) ROW(hi, key, to)
	put("axes.jsonl", TWO("64", "67108864", "lat_us", "3.4", "13252"));
	check_picture("%axes.jsonl", "latency", "",
		      "10 " MU "s|100 " MU
		      "s|1 ms|10 ms|1 KiB|32 KiB|1 MiB|32 MiB|message size|gantry, lanes 3|13.3 ms");
	put("axes.jsonl", TWO("100001", "100003", "lat_us", "0.148", "999.9"));
	check_picture("%axes.jsonl", "latency", "",
		      "100 ns|1 " MU "s|10 " MU "s|100 " MU
		      "s|1 ms|97.7 KiB|97.7 KiB|message size|gantry, lanes 3|1 ms");
	put("axes.jsonl", TWO("1", "1000000000000", "bw_gbs", "1e-9", "1e12"));
	check_picture("%axes.jsonl", "bandwidth", "",
		      "1e-09|1e-06|0.001|1|1000|1e+06|1e+09|1e+12|1 B|1 KiB|1 MiB|1 GiB|message "
		      "size|GB/s|gantry, lanes 3|"
		      "1000000000000 GB/s");
	put("axes.jsonl", TWO("64", "128", "bw_gbs", "7", "7"));
	check_picture("%axes.jsonl", "bandwidth", "", "5|6|8|10|64 B|128 B|message size|GB/s|gantry, lanes 3|7 GB/s");
#undef TWO
#undef ROW
	check_picture("%net.jsonl", "ratio", "",
		      "0.5" TIMES "|0.6" TIMES "|0.8" TIMES "|1" TIMES "|1.5" TIMES "|2" TIMES "|3" TIMES "|4" TIMES
		      "|5" TIMES "|1 MiB|message size|bandwidth to raw TCP|3.5" TIMES "|latency to raw TCP|3" TIMES
		      "|CPU time to raw TCP|0.5" TIMES);
}

static void check_script(const char *json, const char *expected)
{
	char *out = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&out, &n);

	CHECK(f != NULL);
	report_put_script(f, json);
	fclose(f);
	CHECK_STR(out, expected);
	free(out);
}

static char *escaped(const char *text)
{
	char *out = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&out, &n);

	CHECK(f != NULL);
	report_put_text(f, text);
	fclose(f);
	return out;
}

static void check_text(const char *text, const char *expected)
{
	char *out = escaped(text);

	CHECK_STR(out, expected);
	free(out);
}

TEST(test_escape)
{
	static const char evil[] = "{\"machine\": \"</dd><script>alert(1)</script>\", \"command\": \"x --lanes "
				   "\\\"><img>\", \"commit\": \"'&\", "
				   "\"network\": \"<b onclick='1'>\", \"note\": \"\\u0000\\u0007\\u202e\"}\n"
				   "{\"bytes\": 64, \"bw_gbs\": 1}\n{\"<i>\\u001b\": 1}\n";
	char *page;

	check_text("a<b>&\"'", "a&lt;b&gt;&amp;&quot;&#39;");
	check_text("\302\265s", "&#181;s");
	check_text("\360\237\230\200", "&#128512;");
	check_text("\377\300\200x", "&#65533;&#65533;&#65533;x"); /* no UTF-8, and 0 in two bytes */
	check_text("\355\240\200", "&#65533;");			  /* half of a pair */
	check_text("\342\200", "&#65533;");			  /* cut off */
	check_text("\001\033\177", "&#65533;&#65533;&#65533;");
	check_text("a\nb\tc", "a b c");
	check_text("\342\200\256", "&#65533;"); /* right to left from here */
	check_script("\"</script><!-- & \\\" '\"", "\"\\u003c/script\\u003e\\u003c!-- \\u0026 \\\" '\"");
	check_script("\"\342\200\250\342\200\251\342\200\256\177\"", "\"\\u2028\\u2029\\ufffd\\ufffd\"");
	check_script("\"\302\265 \360\237\230\200 \377\"", "\"\\u00b5 \\ud83d\\ude00 \\ufffd\"");
	put("evil.jsonl", evil);
	CHECK_EQ(COMMAND("%evil.jsonl", "-o", "%evil.html", "--title", "<u>"), 0);
	page = slurp("evil.html");
	CHECK(!strstr(page, "<script>alert") && !strstr(page, "<img") && !strstr(page, "<b onclick") &&
	      !strstr(page, "<i>"));
	CHECK(!strstr(page, "<u>"));
	CHECK_HAS(page, "\"machine\":\"\\u003c/dd\\u003e\\u003cscript\\u003ealert(1)\\u003c/script\\u003e\"");
	CHECK_HAS(page, "<title>Gantry: &lt;u&gt;</title>");
	CHECK_HAS(page, "\"unknown\":1,\"unknown_lines\":\"3\",\"unknown_keys\":\"\\u003ci\\u003e?\"");
	CHECK_HAS(page, "<td>A: &lt;b onclick=&#39;1&#39;&gt;, lanes &quot;&gt;&lt;img&gt;</td>");
	free(page);
	CHECK_EQ(COMMAND("%evil.jsonl", "--svg", "bandwidth", "-o", "%evil.svg"), 0);
	page = slurp("evil.svg");
	CHECK(!strstr(page, "<script") && !strstr(page, "<img") && !strstr(page, "<b onclick"));
	free(page);
}

TEST(test_json)
{
	char *text;

	CHECK_EQ(COMMAND("%net.jsonl", "--json", "-o", "%net.json"), 0);
	text = slurp("net.json");
	CHECK_HAS(text,
		  "\"operation\": \"perf net\", \"group\": \"\", \"name\": \"gantry, lanes 3\", \"commit\": \"c1\", "
		  "\"peer\": null, \"quantity\": \"bandwidth\", \"unit\": \"GB/s\", \"bytes\": 1048576, \"median\": 7, "
		  "\"min\": 6, \"max\": 9, \"rows\": 3}");
	CHECK_HAS(text, "\"peer\": \"raw TCP\", \"quantity\": \"latency\"");
	free(text);
	CHECK_EQ(COMMAND("%kinds.jsonl", "--json", "--section", "rx", "-o", "%kinds.json"), 0);
	text = slurp("kinds.json");
	CHECK_HAS(text, "\"operation\": \"perf rx\"");
	CHECK(!strstr(text, "perf unpack"));
	free(text);
}

TEST(test_usage)
{
	CHECK_EQ(COMMAND("--help"), 0);
	CHECK_EQ(COMMAND("-o", "%x.html"), 2);
	CHECK_EQ(COMMAND("%net.jsonl"), 2);
	CHECK_EQ(COMMAND("%net.jsonl", "-o"), 2);
	CHECK_EQ(COMMAND("%net.jsonl", "--ouput", "%x.html"), 2);
	CHECK_EQ(COMMAND("%net.jsonl", "--svg", "bandwith", "-o", "%x.svg"), 2);
	CHECK_EQ(COMMAND("%net.jsonl", "--svg", "cpu", "--json", "-o", "%x.svg"), 2);
	/* Two sections have one: which? */
	CHECK_EQ(COMMAND("%kinds.jsonl", "--svg", "bandwidth", "-o", "%x.svg"), 2);
	CHECK_EQ(COMMAND("%kinds.jsonl", "--svg", "bandwidth", "--section", "unpack", "-o", "%x.svg"), 0);
	CHECK_EQ(COMMAND("%kinds.jsonl", "--svg", "cpu", "-o", "%x.svg"), 1);
	CHECK_EQ(COMMAND("%kinds.jsonl", "--section", "none such", "-o", "%x.svg"), 1);
}

TEST(test_bad_files)
{
	char path[256], *text;
	struct stat st;
	int before;

	put("empty.jsonl", "");
	put("text.jsonl", "size bw\n64 1\n");
	put("cut.jsonl", HEAD "{\"bytes\": 64, \"bw_gbs\": 1");
	put("array.jsonl", "[1, 2]\n");
	put("checks.jsonl", "{\"test\": \"x\", \"cases\": 3}\n");
	put("peer.jsonl", "{\"series\": \"x\", \"bytes\": 8, \"memcpy_gbs\": 1}\n");
	put("negative.jsonl", HEAD "{\"bytes\": -1, \"bw_gbs\": 1}\n");
	put("old.html", "as it was");
	before = files_in_dir();
	CHECK_EQ(COMMAND("%empty.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%text.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%cut.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%array.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%checks.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%negative.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%peer.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%none.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%net.jsonl", "%empty.jsonl", "-o", "%old.html"), 1);
	CHECK_EQ(COMMAND("%net.jsonl", "-o", "%none/x.html"), 1);
	CHECK_EQ(COMMAND("%net.jsonl", "-o", "%"), 1); /* a folder */
	CHECK_EQ(files_in_dir(), before);
	text = slurp("old.html");
	CHECK_STR(text, "as it was");
	free(text);

	/* A device is written to, not replaced; a full one is an error. */
	CHECK_EQ(COMMAND("%net.jsonl", "-o", "/dev/full"), 1);
	CHECK(stat("/dev/full", &st) == 0 && S_ISCHR(st.st_mode));

	/* Rights as they were, or as the umask has them; nothing else is left. */
	CHECK_EQ(chmod(in_dir("old.html", path), 0640), 0);
	CHECK_EQ(symlink("old.html", in_dir("link.html", path)), 0);
	umask(022);
	CHECK_EQ(COMMAND("%net.jsonl", "-o", "%link.html"), 0);
	CHECK_EQ(COMMAND("%net.jsonl", "-o", "%new.html"), 0);
	CHECK(lstat(in_dir("link.html", path), &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(stat(in_dir("old.html", path), &st) == 0);
	CHECK_EQ(st.st_mode & 0777, 0640);
	CHECK(st.st_size > 1000);
	CHECK(stat(in_dir("new.html", path), &st) == 0);
	CHECK_EQ(st.st_mode & 0777, 0644);
	CHECK_EQ(files_in_dir(), before + 2);
}
