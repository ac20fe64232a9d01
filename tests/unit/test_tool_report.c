/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry report`: figures whose points, ticks and ratios can be told beforehand; foreign text; files that are not
 * good. */
#include <math.h>
#include <sys/stat.h>

#include "cmd.h"
#include "report.h"
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

/* ---- axes ---- */

static void check_labels(const struct report_axis *a, const char *labels)
{
	char text[512] = "";

	for (size_t i = 0; i < a->nticks; i++) {
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? ", " : "", a->ticks[i].label);
		CHECK(a->ticks[i].at >= a->lo * 0.999 && a->ticks[i].at <= a->hi * 1.001);
	}
	CHECK_STR(text, labels);
}

#define MU "\302\265"
#define TIMES "\303\227"

TEST(test_axes)
{
	const double kib = 1024, mib = 1048576;
	struct report_axis a;

	report_size_axis(64, 64 * mib, &a);
	check_labels(&a, "64 B, 1 KiB, 64 KiB, 1 MiB, 64 MiB");
	report_size_axis(mib, 64 * mib, &a);
	check_labels(&a, "1 MiB, 2 MiB, 4 MiB, 8 MiB, 16 MiB, 32 MiB, 64 MiB");
	report_size_axis(8, 32 * kib, &a);
	check_labels(&a, "16 B, 64 B, 256 B, 1 KiB, 4 KiB, 16 KiB");
	report_size_axis(1, 1e15, &a);
	check_labels(&a, "1 B, 1 KiB, 1 MiB, 1 GiB, 1 TiB");
	report_size_axis(100001, 100003, &a); /* no power of two between them */
	check_labels(&a, "97.7 KiB, 97.7 KiB");
	report_size_axis(kib, kib, &a);
	check_labels(&a, "1 KiB");
	CHECK(fabs(report_axis_at(&a, kib) - 0.5) < 1e-9);

	report_value_axis(0.15, 12.5, REPORT_PLOT_BANDWIDTH, &a);
	CHECK(fabs(a.lo - 0.1) < 1e-9 && fabs(a.hi - 20) < 1e-9);
	check_labels(&a, "0.1, 0.2, 0.5, 1, 2, 5, 10, 20");
	report_value_axis(3.4, 13252, REPORT_PLOT_LATENCY, &a);
	CHECK(fabs(a.lo - 2) < 1e-9 && fabs(a.hi - 20000) < 1e-6);
	check_labels(&a, "10 " MU "s, 100 " MU "s, 1 ms, 10 ms");
	report_value_axis(1, 3.38, REPORT_PLOT_RATIO, &a);
	check_labels(&a, "1" TIMES ", 1.5" TIMES ", 2" TIMES ", 3" TIMES ", 4" TIMES ", 5" TIMES);
	report_value_axis(1e-9, 1e12, REPORT_PLOT_CPU, &a);
	CHECK(a.nticks >= 2 && a.nticks <= REPORT_TICKS_MAX);
	report_value_axis(7, 7, REPORT_PLOT_BANDWIDTH, &a); /* a single value has room on both sides */
	CHECK(a.lo < 7 && a.hi > 7 && a.nticks >= 2);

	a = (struct report_axis){.lo = 1, .hi = 10000};
	CHECK(fabs(report_axis_at(&a, 100) - 0.5) < 1e-9);
	CHECK(!report_drawable(0) && !report_drawable(-1) && !report_drawable(NAN) && report_drawable(1));
}

static void check_size(double bytes, int exact, const char *name)
{
	char buf[32];

	CHECK_STR(report_size_name(bytes, exact, buf), name);
}

static void check_number(double v, const char *name)
{
	char buf[32];

	CHECK_STR(report_number(v, buf), name);
}

static void check_value(double v, enum report_kind kind, const char *name)
{
	char buf[32];

	CHECK_STR(report_value(v, kind, buf), name);
}

TEST(test_numbers)
{
	check_size(0, 1, "0 B");
	check_size(1023, 1, "1023 B");
	check_size(1536, 1, "1.5 KiB");
	check_size(1048577, 1, "1048577 B");
	check_size(1048577, 0, "1 MiB");
	check_size(67108864, 1, "64 MiB");
	check_number(0, "0");
	check_number(0.029, "0.029");
	check_number(12.4698, "12.47");
	check_number(13252.4, "13252");
	check_value(3.42252, REPORT_PLOT_LATENCY, "3.42 " MU "s");
	check_value(13252.4, REPORT_PLOT_LATENCY, "13.3 ms");
	check_value(999.9, REPORT_PLOT_LATENCY, "1 ms");
	check_value(0.148, REPORT_PLOT_LATENCY, "148 ns");
	check_value(2e6, REPORT_PLOT_LATENCY, "2 s");
	check_value(-0.002, REPORT_PLOT_LATENCY, "-2 ns"); /* no measurement gives that, a file may have it */
	check_value(11.8593, REPORT_PLOT_BANDWIDTH, "11.9 GB/s");
	check_value(0.5, REPORT_PLOT_RATIO, "0.5" TIMES);
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

static void read_all(struct report *r, const char *const *names)
{
	static char paths[4][256];
	char why[512];

	memset(r, 0, sizeof(*r));
	for (int i = 0; names[i]; i++) {
		if (report_read(r, in_dir(names[i], paths[i]), why, sizeof(why)))
			TEST_FAIL("%s", why);
	}
	CHECK_EQ(report_finish(r), 0);
}
#define READ(r, ...) read_all(r, (const char *const[]){__VA_ARGS__, NULL})

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

static const struct report_plot *find_plot(const struct report_plan *p, size_t section, enum report_kind kind)
{
	CHECK(section < p->nsections);
	for (size_t i = 0; i < p->sections[section].nplots; i++)
		if (p->sections[section].plots[i].kind == kind)
			return &p->sections[section].plots[i];
	TEST_FAIL("no plot of kind %d", kind);
}

static const struct report_line *find_line(const struct report_plot *p, const char *name)
{
	for (size_t i = 0; i < p->nlines; i++)
		if (!strcmp(p->lines[i].name, name))
			return &p->lines[i];
	TEST_FAIL("no line %s", name);
}

TEST(test_net)
{
	const struct report_series *s;
	const struct report_plot *p;
	struct report_plan plan;
	struct report r;

	put("net.jsonl", net);
	READ(&r, "net.jsonl");
	CHECK_EQ(r.files[0].rows, 4);
	CHECK_EQ(r.files[0].unknown, 0);
	s = find(&r, 0, REPORT_BANDWIDTH, "gantry, lanes 3", NULL);
	CHECK_EQ(s->npoints, 2);
	check_point(s, 0, 1024, 2.5, 3, 3.5);
	check_point(s, 1, 1048576, 6, 7, 9);
	check_point(find(&r, 0, REPORT_LATENCY, "gantry, lanes 3", "raw TCP"), 0, 1048576, 300, 300, 300);

	CHECK_EQ(report_plan(&r, NULL, &plan), 0);
	CHECK_EQ(plan.nsections, 1);
	CHECK_STR(plan.sections[0].title, "perf net");
	p = find_plot(&plan, 0, REPORT_PLOT_BANDWIDTH);
	CHECK_EQ(p->nlines, 2);
	CHECK(p->lines[0].style != p->lines[1].style && p->lines[1].dashed && !p->lines[0].dashed);
	/* Up is better whatever the quantity: 7/2 of the bandwidth, a third of the time, twice the CPU time. */
	p = find_plot(&plan, 0, REPORT_PLOT_RATIO);
	CHECK_EQ(p->nlines, 3);
	CHECK(fabs(find_line(p, "bandwidth to raw TCP")->points[0].median - 3.5) < 1e-9);
	CHECK(fabs(find_line(p, "latency to raw TCP")->points[0].median - 3) < 1e-9);
	CHECK(fabs(find_line(p, "CPU time to raw TCP")->points[0].median - 0.5) < 1e-9);
	report_plan_free(&plan);
	report_free(&r);
}

TEST(test_bench)
{
	const struct report_plot *p;
	struct report_plan plan;
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
	READ(&r, "bench.jsonl");
	CHECK_EQ(r.files[0].rows, 5);
	CHECK_EQ(r.files[0].checks, 1);
	CHECK_EQ(r.files[0].failures, 1);
	CHECK_EQ(r.files[0].unknown, 3);
	CHECK_STR(r.files[0].unknown_lines, "9-11");
	CHECK_STR(r.files[0].unknown_keys, "variant, gbs");
	check_point(find(&r, 0, REPORT_BANDWIDTH, "raw TCP, 1 stream", NULL), 0, NAN, 5, 5, 5);
	CHECK_EQ(report_plan(&r, "ALL-REDUCE", &plan), 0);
	CHECK_EQ(plan.nsections, 1);
	p = find_plot(&plan, 0, REPORT_PLOT_BANDWIDTH);
	CHECK(find_line(p, "raw TCP, 1 stream")->level && !find_line(p, "Gantry")->level);
	CHECK_STR(p->lines[0].name, "Gantry"); /* not what it is compared with */
	p = find_plot(&plan, 0, REPORT_PLOT_RATIO);
	CHECK_EQ(p->nlines, 1);
	CHECK_STR(p->lines[0].name, "Gantry to NCCL Socket");
	CHECK(fabs(p->lines[0].points[0].median - 1.5) < 1e-9);
	CHECK(fabs(p->lines[0].points[1].median - 2.5) < 1e-9);
	report_plan_free(&plan);
	CHECK_EQ(report_plan(&r, "perf net", &plan), 0);
	CHECK_EQ(plan.nsections, 0);
	report_plan_free(&plan);
	report_free(&r);
}

/* Lines of bench/coll_compare.py: a section for each operation, ranks and transport; Gantry beside each library. */
TEST(test_libraries)
{
	const struct report_plot *p;
	struct report_plan plan;
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
	READ(&r, "libraries.jsonl");
	CHECK_EQ(r.files[0].rows, 8);
	CHECK_EQ(r.files[0].unknown, 0);
	CHECK_EQ(report_plan(&r, "coll_compare", &plan), 0);
	CHECK_EQ(plan.nsections, 2);
	CHECK_STR(plan.sections[0].group, "all_reduce, 2 ranks, net");
	p = find_plot(&plan, 0, REPORT_PLOT_RATIO);
	CHECK_EQ(p->nlines, 2);
	CHECK_STR(p->lines[0].name, "Gantry to OpenMPI");
	CHECK(fabs(p->lines[0].points[0].median - 2) < 1e-9);
	CHECK(fabs(p->lines[0].points[1].median - 3) < 1e-9);
	CHECK(fabs(find_line(p, "Gantry to gloo")->points[0].median - 6) < 1e-9);
	report_plan_free(&plan);
	report_free(&r);
}

/* Lines of perf of collectives: a section for each; types, operations and roots tell series apart, and in place stands
 * beside out of place. */
TEST(test_collectives)
{
	struct report_plan plan;
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
	READ(&r, "collectives.jsonl");
	CHECK_EQ(r.files[0].rows, 3);
	CHECK_EQ(r.files[0].checks, 1);
	CHECK_EQ(r.files[0].unknown, 0);
	CHECK_EQ(report_plan(&r, "collectives", &plan), 0);
	CHECK_EQ(plan.nsections, 2);
	CHECK_STR(plan.sections[0].group, "all_reduce, 2 ranks, host");
	CHECK_STR(plan.sections[1].group, "broadcast, 2 ranks, host");
	CHECK_STR(r.series[0].name, "float sum, ring");
	CHECK_STR(r.series[r.nseries - 1].name, "half, root 1, ring");
	CHECK(fabs(find_plot(&plan, 0, REPORT_PLOT_RATIO)->lines[0].points[0].median - 0.5) < 1e-9);
	report_plan_free(&plan);
	report_free(&r);
}

/* Names by options, groups by pattern; bars where there is one size; commits apart; wrong bytes, warnings. */
TEST(test_kinds)
{
	const struct report_plot *p;
	struct report_plan plan;
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
	READ(&r, "kinds.jsonl");
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

	CHECK_EQ(report_plan(&r, NULL, &plan), 0);
	CHECK_EQ(plan.nsections, 3);
	CHECK_STR(plan.sections[0].title, "perf sendrecv: ring, 2 ranks");
	CHECK_STR(plan.sections[1].title, "perf unpack: unpack, 8 blocks");
	p = find_plot(&plan, 1, REPORT_PLOT_BANDWIDTH);
	CHECK(p->bars);
	CHECK_EQ(p->nlines, 4);
	CHECK_STR(p->lines[0].category, "odd (c1)");
	CHECK_STR(p->lines[3].category, "odd (c2)");
	CHECK_STR(p->lines[3].bar, "NCCL's loop");
	p = find_plot(&plan, 2, REPORT_PLOT_BANDWIDTH);
	CHECK_EQ(p->nlines, 2); /* both sizes of one name have their bars */
	CHECK_STR(p->lines[0].category, "host path");
	CHECK_STR(p->lines[1].category, "host path, 7 B");
	report_plan_free(&plan);
	report_free(&r);
}

TEST(test_compare)
{
	const struct report_plot *p;
	struct report_plan plan;
	struct report r;

	put("other.jsonl",
	    "{\"machine\": \"m\", \"command\": \"gantry perf net --huge 0\", \"commit\": \"c2\", \"network\": "
	    "\"gantry\"}\n{\"bytes\": 1048576, \"bw_gbs\": 14, \"lat_us\": 200}\n");
	READ(&r, "net.jsonl", "other.jsonl");
	CHECK_EQ(report_plan(&r, NULL, &plan), 0);
	/* Other options, but the only series of both: B has 14/7 of the bandwidth, and takes 200/100 of the time. */
	p = find_plot(&plan, 0, REPORT_PLOT_COMPARE);
	CHECK_EQ(p->nlines, 1);
	CHECK_STR(p->lines[0].name, "B: gantry, huge 0");
	CHECK_EQ(p->lines[0].npoints, 1);
	CHECK(fabs(p->lines[0].points[0].median - 2) < 1e-9);
	p = &plan.sections[0].plots[plan.sections[0].nplots - 1];
	CHECK_EQ(p->quantity, REPORT_LATENCY);
	CHECK(fabs(p->lines[0].points[0].median - 0.5) < 1e-9);
	CHECK_STR(find_plot(&plan, 0, REPORT_PLOT_BANDWIDTH)->lines[0].name, "A: gantry, lanes 3");
	report_plan_free(&plan);
	report_free(&r);
}

/* ---- output ---- */

/* Two points: the area goes from 58 to 458 and from 262 up to 30; sizes keep 1/42 of it clear at either end. */
TEST(test_places)
{
	char *page;

	put("places.jsonl", HEAD "{\"bytes\": 1024, \"bw_gbs\": 1}\n{\"bytes\": 1048576, \"bw_gbs\": 100}\n");
	CHECK_EQ(COMMAND("%places.jsonl", "-o", "%places.html"), 0);
	page = slurp("places.html");
	CHECK_HAS(page, "d=\"M67.5 262.0L448.5 30.0\"");
	CHECK_HAS(page, "<th scope=\"row\">1 MiB</th><td>100.0</td>");
	CHECK_HAS(page, "<code>gantry perf net --raw -b 64 --lanes 3</code>");
	CHECK(!strstr(page, "http:") && !strstr(page, "https:") && !strstr(page, "<script"));
	free(page);
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
	put("evil.jsonl", evil);
	CHECK_EQ(COMMAND("%evil.jsonl", "-o", "%evil.html", "--title", "<u>"), 0);
	page = slurp("evil.html");
	CHECK(!strstr(page, "<script") && !strstr(page, "<img") && !strstr(page, "<b onclick") && !strstr(page, "<i>"));
	CHECK(!strstr(page, "<u>"));
	CHECK_HAS(page, "&lt;script&gt;alert(1)&lt;/script&gt;");
	CHECK_HAS(page, "<title>Gantry: &lt;u&gt;</title>");
	CHECK_HAS(page, "1 line, left out: 3 (first keys: &lt;i&gt;?)");
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
