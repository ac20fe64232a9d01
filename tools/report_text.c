/* SPDX-License-Identifier: Apache-2.0 */
/* Text and numbers as pages show them. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "report.h"

enum { REPLACEMENT = 0xfffd };

/* Control characters and noncharacters are not allowed in XML; what turns the direction of writing
 * round would move text that is not the file's. */
static int is_fit(uint32_t c)
{
	return c >= 0x20 && !(c >= 0x7f && c < 0xa0) && (c & 0xfffe) != 0xfffe && !(c >= 0x202a && c <= 0x202e) &&
	       !(c >= 0x2066 && c <= 0x2069);
}

static void put_character(FILE *f, uint32_t c)
{
	if (c == '&')
		fputs("&amp;", f);
	else if (c == '<')
		fputs("&lt;", f);
	else if (c == '>')
		fputs("&gt;", f);
	else if (c == '"')
		fputs("&quot;", f);
	else if (c == '\'')
		fputs("&#39;", f);
	else if (c == '\n' || c == '\t' || c == '\r')
		fputc(' ', f);
	else if (c < 0x80 && is_fit(c))
		fputc((int)c, f);
	else
		fprintf(f, "&#%u;", is_fit(c) ? (unsigned)c : (unsigned)REPLACEMENT);
}

void report_put_text_cut(FILE *f, const char *text, size_t characters)
{
	uint32_t c, last = 0;
	size_t n = 0;

	for (const char *p = text; *p; n++)
		p += gantry_next_rune(p, &c);
	for (size_t i = 0; *text && i < characters; i++) {
		text += gantry_next_rune(text, &c);
		last = c;
		if (n > characters && i + 1 == characters)
			last = 0x2026; /* ... */
		put_character(f, last);
	}
}

void report_put_text(FILE *f, const char *text)
{
	report_put_text_cut(f, text, SIZE_MAX);
}

const char *report_number(double v, char buf[32])
{
	double a = fabs(v);

	if (a == 0)
		snprintf(buf, 32, "0");
	else if (a >= 1e15 || a < 1e-4)
		snprintf(buf, 32, "%.3g", v);
	else if (a >= 999.5)
		snprintf(buf, 32, "%.0f", v);
	else if (a >= 0.9995)
		snprintf(buf, 32, "%.*f", a >= 99.95 ? 1 : a >= 9.995 ? 2 : 3, v);
	else
		snprintf(buf, 32, "%.4g", v);
	return buf;
}

const char *report_size_name(double bytes, int exact, char buf[32])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = bytes;
	size_t u = 0;

	while (v >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
		v /= 1024;
		u++;
	}
	if (v == floor(v))
		snprintf(buf, 32, "%.0f %s", v, units[u]);
	else if (exact && v * 8 == floor(v * 8) && u)
		snprintf(buf, 32, "%g %s", v, units[u]);
	else if (exact)
		snprintf(buf, 32, "%.0f B", bytes);
	else
		snprintf(buf, 32, "%.3g %s", v, units[u]);
	return buf;
}

/* Three digits that count, and no zeros behind them. */
static const char *short_number(double v, char buf[24])
{
	if (v >= 999.5)
		snprintf(buf, 24, "%.0f", v);
	else
		snprintf(buf, 24, "%.3g", v);
	return buf;
}

const char *report_value(double v, enum report_kind kind, char buf[32])
{
	static const struct {
		double from, scale;
		const char *unit;
	} times[] = {{999500, 1e6, "s"}, {999.5, 1e3, "ms"}, {0.9995, 1, "\302\265s"}, {0, 1e-3, "ns"}};
	char number[24];
	size_t i = 0;

	switch (kind) {
	case REPORT_PLOT_LATENCY:
		while (times[i].from > 0 && v < times[i].from)
			i++;
		snprintf(buf, 32, "%s %s", short_number(v / times[i].scale, number), times[i].unit);
		break;
	case REPORT_PLOT_BANDWIDTH:
		snprintf(buf, 32, "%s GB/s", short_number(v, number));
		break;
	case REPORT_PLOT_CPU:
		snprintf(buf, 32, "%s s/GB", short_number(v, number));
		break;
	default:
		snprintf(buf, 32, "%s\303\227", short_number(v, number));
		break;
	}
	return buf;
}

const char *report_times(double v, char buf[32])
{
	if (v < 0.01 || v >= 1000)
		return report_value(v, REPORT_PLOT_RATIO, buf);
	snprintf(buf, 32, "%.2f\303\227", v);
	return buf;
}
