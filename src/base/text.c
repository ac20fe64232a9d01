/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts for people, of all kinds: sizes, counts, advice, and the parsing and writing of values. Units are tables that both directions share,
 * largest first. Parsers are strict: no blanks, nothing after the unit, no
 * overflow, because "10 0ms" is more likely a slip than an intention.
 */
#include "base/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/param.h"

struct unit {
	const char *name;
	uint64_t factor;
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Powers of 1024 whatever the spelling, as in nccl-tests: "64k", "64K", "64kB" and "64KiB" are one size. */
static const struct unit size_units[] = {
	{"T", 1ull << 40},
	{"G", 1ull << 30},
	{"M", 1ull << 20},
	{"k", 1ull << 10},
};

static const struct unit duration_units[] = {
	{"h", 3600000000000u}, {"m", 60000000000u}, {"s", 1000000000u}, {"ms", 1000000u}, {"us", 1000u}, {"ns", 1u},
};

/* Digits at *text, and *text moved behind them. */
static gantry_result parse_digits(const char **text, uint64_t *ret)
{
	uint64_t v = 0;

	if (!isdigit((unsigned char)**text))
		return GANTRY_ERR_INVALID;
	for (; isdigit((unsigned char)**text); (*text)++) {
		if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(**text - '0'), &v))
			return GANTRY_ERR_INVALID;
	}
	*ret = v;
	return GANTRY_OK;
}

gantry_result gantry_parse_size(const char *text, uint64_t *ret)
{
	uint64_t v, factor = 1;

	if (parse_digits(&text, &v) != GANTRY_OK)
		return GANTRY_ERR_INVALID;
	for (size_t i = 0; i < COUNT(size_units); i++) {
		if (tolower((unsigned char)*text) != tolower((unsigned char)size_units[i].name[0]))
			continue;
		factor = size_units[i].factor;
		text++;
		if (*text == 'i' && text[1] == 'B')
			text++;
		break;
	}
	if (*text == 'B')
		text++;
	if (*text || __builtin_mul_overflow(v, factor, &v))
		return GANTRY_ERR_INVALID;
	*ret = v;
	return GANTRY_OK;
}

/* The part of a duration behind its point: "5" of "0.5s" is half a unit. At most nine digits, all of them exact. */
static gantry_result parse_fraction(const char **text, uint64_t *ret, uint64_t *ret_scale)
{
	const char *start = *text;
	uint64_t scale = 1;

	if (parse_digits(text, ret) != GANTRY_OK || *text - start > 9)
		return GANTRY_ERR_INVALID;
	for (ptrdiff_t i = 0; i < *text - start; i++)
		scale *= 10;
	*ret_scale = scale;
	return GANTRY_OK;
}

gantry_result gantry_parse_duration(const char *text, uint64_t *ret_ns)
{
	uint64_t v, fraction = 0, scale = 1, factor = 0;
	unsigned __int128 extra;

	if (parse_digits(&text, &v) != GANTRY_OK)
		return GANTRY_ERR_INVALID;
	if (*text == '.') {
		text++;
		if (parse_fraction(&text, &fraction, &scale) != GANTRY_OK)
			return GANTRY_ERR_INVALID;
	}
	if (!*text)
		text = "s";
	for (size_t i = 0; i < COUNT(duration_units); i++) {
		if (!strcmp(text, duration_units[i].name))
			factor = duration_units[i].factor;
	}
	extra = (unsigned __int128)fraction * factor / scale;
	if (!factor || __builtin_mul_overflow(v, factor, &v) || __builtin_add_overflow(v, (uint64_t)extra, &v))
		return GANTRY_ERR_INVALID;
	*ret_ns = v;
	return GANTRY_OK;
}

gantry_result gantry_parse_int(const char *text, int64_t *ret)
{
	char *end;
	long long v;
	int saved = errno, overflow;

	/* strtoll would skip blanks and accept a plus; neither is a number here. */
	if (!isdigit((unsigned char)text[*text == '-']))
		return GANTRY_ERR_INVALID;
	errno = 0;
	v = strtoll(text, &end, 10);
	overflow = errno == ERANGE;
	errno = saved;
	if (*end || overflow)
		return GANTRY_ERR_INVALID;
	*ret = v;
	return GANTRY_OK;
}

gantry_result gantry_parse_bool(const char *text, int *ret)
{
	static const char *const words[] = {"0", "1", "off", "on", "no", "yes", "false", "true"};

	for (size_t i = 0; i < COUNT(words); i++) {
		if (!strcasecmp(text, words[i])) {
			*ret = (int)(i & 1);
			return GANTRY_OK;
		}
	}
	return GANTRY_ERR_INVALID;
}

static void format(uint64_t v, const struct unit *units, size_t nunits, char *buf, size_t n)
{
	for (size_t i = 0; i < nunits; i++) {
		if (v && v % units[i].factor == 0) {
			snprintf(buf, n, "%" PRIu64 "%s", v / units[i].factor, units[i].name);
			return;
		}
	}
	snprintf(buf, n, "%" PRIu64, v);
}

void gantry_format_size(uint64_t bytes, char *buf, size_t n)
{
	format(bytes, size_units, COUNT(size_units), buf, n);
}

void gantry_format_duration(uint64_t ns, char *buf, size_t n)
{
	format(ns, duration_units, COUNT(duration_units), buf, n);
}

unsigned gantry_edit_distance(const char *a, const char *b)
{
	enum { LETTERS = 64 };
	size_t na = strnlen(a, LETTERS - 1), nb = strnlen(b, LETTERS - 1);
	unsigned row[LETTERS]; /* row[j]: the distance from the first i letters of a to the first j of b */

	for (size_t j = 0; j <= nb; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= na; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);
			unsigned other = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);

			diagonal = row[j];
			row[j] = change < other ? change : other;
		}
	}
	return row[nb];
}

/* ---- texts with a syntax ---- */

/* 0 is not a port: a port that is given must be a real one. */
static int parse_port(const char *text, size_t len, uint16_t *ret_port)
{
	const char *end = text;
	uint64_t n;

	if (len > 5 || parse_digits(&end, &n) != GANTRY_OK || end != text + len || n == 0 || n > 65535)
		return 0;
	*ret_port = (uint16_t)n;
	return 1;
}

gantry_result gantry_parse_port_range(const char *text, uint16_t *ret_first, uint16_t *ret_last)
{
	size_t n = strcspn(text, "-");
	uint16_t first = 0, last = 0;

	if (*text) {
		if (!parse_port(text, n, &first))
			return GANTRY_ERR_INVALID;
		last = first;
		if (text[n] && !parse_port(text + n + 1, strlen(text + n + 1), &last))
			return GANTRY_ERR_INVALID;
		if (first > last)
			return GANTRY_ERR_INVALID;
	}
	*ret_first = first;
	*ret_last = last;
	return GANTRY_OK;
}

/* The part behind '%': an interface's name, or its number. */
static int parse_scope(const char *text, uint32_t *ret_scope)
{
	char *end = NULL;
	unsigned long n = if_nametoindex(text);

	if (!n && *text >= '0' && *text <= '9') {
		n = strtoul(text, &end, 10);
		if (*end || n > UINT32_MAX)
			return 0;
	}
	*ret_scope = (uint32_t)n;
	return n != 0;
}

/* host is cut at '%'. */
static int parse_v6(char *host, uint16_t port, struct sockaddr_storage *ret_addr)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	char *scope = strchr(host, '%');

	if (scope)
		*scope++ = 0;
	if (inet_pton(AF_INET6, host, &a.sin6_addr) != 1 || (scope && !parse_scope(scope, &a.sin6_scope_id)))
		return 0;
	memcpy(ret_addr, &a, sizeof(a));
	return 1;
}

static int parse_v4(const char *host, uint16_t port, struct sockaddr_storage *ret_addr)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

	if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
		return 0;
	memcpy(ret_addr, &a, sizeof(a));
	return 1;
}

gantry_result gantry_parse_addr(const char *text, struct sockaddr_storage *ret_addr)
{
	char buf[128], *host = buf, *port_text = NULL, *close, *colon;
	int v6 = 1;
	uint16_t port = 0;

	if (strlen(text) >= sizeof(buf))
		return GANTRY_ERR_INVALID;
	strcpy(buf, text);
	close = strchr(buf, ']');
	colon = strchr(buf, ':');
	if (buf[0] == '[' && close && (close[1] == 0 || close[1] == ':')) {
		host = buf + 1;
		port_text = close[1] ? close + 2 : NULL;
		*close = 0;
	} else if (!colon || colon == strrchr(buf, ':')) { /* two colons: IPv6 without a port */
		v6 = 0;
		port_text = colon ? colon + 1 : NULL;
		if (colon)
			*colon = 0;
	}
	if (port_text && !parse_port(port_text, strlen(port_text), &port))
		return GANTRY_ERR_INVALID;
	return (v6 ? parse_v6(host, port, ret_addr) : parse_v4(host, port, ret_addr)) ? GANTRY_OK : GANTRY_ERR_INVALID;
}

int gantry_split_host(char *text, char **ret_host, uint16_t *ret_port)
{
	char *end = strchr(text, ']'), *port = NULL;
	uint16_t v = 0;

	*ret_host = text;
	if (*text == '[' && !end)
		return -1;
	if (*text == '[') {
		*ret_host = text + 1;
		*end = 0;
		if (end[1] == ':')
			port = end + 2;
		else if (end[1])
			return -1;
	} else if (strchr(text, ':') && strchr(text, ':') == strrchr(text, ':')) {
		port = strchr(text, ':');
		*port++ = 0;
	}
	if (port && !parse_port(port, strlen(port), &v))
		return -1;
	*ret_port = v;
	return 0;
}

/* Those whose default is harmless or that are made for this. What ends or stops a process means something else. */
static const struct {
	const char *name;
	int number;
} signals[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2},   {"HUP", SIGHUP}, {"QUIT", SIGQUIT},
	       {"URG", SIGURG},	  {"WINCH", SIGWINCH}, {"IO", SIGIO},	{"PROF", SIGPROF}};

gantry_result gantry_parse_signal(const char *text, int *ret_number)
{
	int64_t number = 0;

	if (!strncasecmp(text, "SIG", 3))
		text += 3;
	if (gantry_parse_int(text, &number) == GANTRY_OK && number >= SIGRTMIN && number <= SIGRTMAX) {
		*ret_number = (int)number;
		return GANTRY_OK;
	}
	for (size_t i = 0; i < COUNT(signals); i++) {
		if (!strcasecmp(text, signals[i].name) || number == signals[i].number) {
			*ret_number = signals[i].number;
			return GANTRY_OK;
		}
	}
	return GANTRY_ERR_INVALID;
}

const char *gantry_next_entry(const char **pos, char *buf, size_t len)
{
	while (**pos) {
		size_t n = strcspn(*pos, ","), lead = strspn(*pos, " \t"), end = n;
		const char *from = *pos;

		*pos += n + (from[n] == ',');
		if (lead >= n)
			continue;
		while (from[end - 1] == ' ' || from[end - 1] == '\t')
			end--;
		snprintf(buf, len, "%.*s", (int)(end - lead), from + lead);
		return buf;
	}
	return NULL;
}

gantry_result gantry_parse_subsys(const char *text, uint32_t *ret_mask)
{
	uint32_t mask = 0;
	char entry[32];

	while (gantry_next_entry(&text, entry, sizeof(entry))) {
		uint32_t of_entry = strcasecmp(entry, "all") ? 0 : GANTRY_SUBSYS_ALL;

		for (uint32_t bit = 1; bit & GANTRY_SUBSYS_ALL; bit <<= 1)
			if (!strcasecmp(entry, gantry_log_subsys_name((enum gantry_log_subsys)bit)))
				of_entry = bit;
		if (!of_entry)
			return GANTRY_ERR_INVALID;
		mask |= of_entry;
	}
	*ret_mask = mask;
	return GANTRY_OK;
}

/* What params.def names: whether the parser takes the text. */
#define CHECK_BY(name, parse, type, ...)                                                                               \
	int name(const char *text)                                                                                     \
	{                                                                                                              \
		type v;                                                                                                \
		return parse(text, __VA_ARGS__) == GANTRY_OK;                                                          \
	}
CHECK_BY(gantry_check_port_range, gantry_parse_port_range, uint16_t, &v, &v)
CHECK_BY(gantry_check_addr, gantry_parse_addr, struct sockaddr_storage, &v)
CHECK_BY(gantry_check_signal, gantry_parse_signal, int, &v)
CHECK_BY(gantry_check_subsys, gantry_parse_subsys, uint32_t, &v)

int gantry_check_host(const char *text)
{
	char copy[512], *host;
	uint16_t port;

	return (size_t)snprintf(copy, sizeof(copy), "%s", text) < sizeof(copy) &&
	       gantry_split_host(copy, &host, &port) == 0 && *host;
}

int gantry_check_hosts(const char *text)
{
	char entry[512];

	while (gantry_next_entry(&text, entry, sizeof(entry)))
		if (!gantry_check_host(entry))
			return 0;
	return 1;
}

/* ---- what people read ---- */

const char *gantry_size_text(uint64_t bytes, char *buf, size_t len)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	unsigned k = 0;

	while (k + 1 < sizeof(units) / sizeof(units[0]) && bytes >> 10 * (k + 1))
		k++;
	if (bytes % (UINT64_C(1) << 10 * k) == 0)
		snprintf(buf, len, "%llu %s", (unsigned long long)(bytes >> 10 * k), units[k]);
	else if (k < 2)
		snprintf(buf, len, "%llu B", (unsigned long long)bytes);
	else
		snprintf(buf, len, "%.1f %s", (double)bytes / (double)(UINT64_C(1) << 10 * k), units[k]);
	return buf;
}

const char *gantry_count_text(uint64_t n, const char *thing, char *buf, size_t len)
{
	snprintf(buf, len, "%llu %s%s", (unsigned long long)n, thing, n == 1 ? "" : "s");
	return buf;
}

/* The bytes that a first byte of UTF-8 announces; 0: none can begin with it. */
static size_t rune_bytes(unsigned char c)
{
	return c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
}

void gantry_text_add(char *buf, size_t len, const char *fmt, ...)
{
	size_t at = strlen(buf);
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(buf + at, len - at, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= len - at)
		memcpy(buf + len - 4, "...", 4);
}

size_t gantry_next_rune(const char *text, uint32_t *ret)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned char c = (unsigned char)text[0];
	size_t n = rune_bytes(c);
	uint32_t rune = n < 2 ? c : c & (0x7fu >> n);

	*ret = GANTRY_NO_RUNE;
	if (!n)
		return 1;
	for (size_t i = 1; i < n; i++) {
		if (((unsigned char)text[i] & 0xc0) != 0x80)
			return i;
		rune = rune << 6 | ((unsigned char)text[i] & 0x3f);
	}
	/* Not longer than need be, not half of a pair. */
	if (rune >= least[n] && rune <= 0x10ffff && (rune < 0xd800 || rune >= 0xe000))
		*ret = rune;
	return n;
}

enum { PLENTY = 65536 };

const char *gantry_nofile_advice(char buf[GANTRY_ADVICE_TEXT])
{
	struct rlimit l = {0};
	unsigned long long most;

	getrlimit(RLIMIT_NOFILE, &l);
	most = l.rlim_max;
	if (l.rlim_cur >= l.rlim_max)
		snprintf(buf, GANTRY_ADVICE_TEXT,
			 "`ulimit -n` is at its hard limit, %llu: raise the hard limit with nofile in "
			 "/etc/security/limits.conf or LimitNOFILE= in the systemd service",
			 most);
	else
		snprintf(buf, GANTRY_ADVICE_TEXT, "raise it with `ulimit -n %llu`",
			 most > PLENTY && l.rlim_cur < PLENTY ? (unsigned long long)PLENTY : most);
	return buf;
}
