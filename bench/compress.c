/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lossless compression of floating-point data, for bench/compress.sh: what it saves, what it costs in CPU time, and what a
 * transfer takes with it. liblz4 and libzstd are opened by dlopen, no headers are needed.
 *
 * cc -O3 -march=native -D_GNU_SOURCE -pthread -Itools -o compress bench/compress.c tools/common/raw_tcp.c -ldl -lm
 * usage: compress measure ROUNDS FILE...                  FILE's name ends in .f32, .bf16 or .f16; one JSON line each and way
 *        compress receive ADDRESS WAY PASSES FILE         prints its port, then a JSON line about all passes but the first
 *        compress send ADDRESS PORT WAY PASSES FILE       prints a JSON line with its CPU time
 *
 * A way is TRANSFORM+CODEC. Every block of 512 KiB is compressed by itself, as a lane would do with its pieces; one that
 * does not get smaller travels as it is. Transforms: "plain"; "bytes", the bytes of equal significance one after another,
 * after the sign has been moved behind the mantissa, so that the exponent of f32 and bf16 is one whole byte; "bits", the
 * same for bits. "exponent" compresses the plane with the exponent and copies the others. Codec huff is zstd with
 * Huffman codes of literals and no search for matches, "copy" none. CPU time is that of the measuring thread.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "common/raw_tcp.h"

enum { BLOCK = 512 << 10, ROOM = BLOCK + (64 << 10), DEPTH = 8, ROUNDS_MAX = 64 };
static const uint64_t LIMIT_NS = 60000000000u;

/* liblz4 and libzstd */
static int (*lz4_compress)(const char *, char *, int, int, int);
static int (*lz4_expand)(const char *, char *, int, int);
static void *(*zstd_cctx)(void), *(*zstd_dctx)(void);
static size_t (*zstd_cctx_free)(void *), (*zstd_dctx_free)(void *);
static size_t (*zstd_set)(void *, int, int), (*zstd_compress)(void *, void *, size_t, const void *, size_t);
static size_t (*zstd_expand)(void *, void *, size_t, const void *, size_t);
static unsigned (*zstd_failed)(size_t);
/* Parameters of ZSTD_CCtx_setParameter, as numbers: zstd.h is not needed. */
enum { ZSTD_LEVEL = 100, ZSTD_HASH_LOG = 102, ZSTD_MIN_MATCH = 105, ZSTD_TARGET = 106, ZSTD_LITERALS = 1002 };

enum transform { PLAIN, BYTES, BITS, EXPONENT };
static const char *const transform_names[] = {"plain", "bytes", "bits", "exponent"};
enum kind { COPY, LZ4, ZSTD, HUFF };
static const struct codec {
	const char *name;
	enum kind kind;
	int level; /* LZ4: acceleration */
} codecs[] = {{"copy", COPY, 0},    {"lz4", LZ4, 1},	  {"zstd1", ZSTD, 1},
	      {"zstd-1", ZSTD, -1}, {"zstd-5", ZSTD, -5}, {"huff", HUFF, -1}};
enum { CODECS = sizeof(codecs) / sizeof(codecs[0]) };

/* A way, and what one thread needs for it. */
struct way {
	enum transform transform;
	const struct codec *codec;
	size_t esize;
	void *cctx, *dctx;
	unsigned char *planes, *scratch; /* BLOCK each */
};

struct data {
	unsigned char *bytes;
	size_t size, esize; /* size: whole blocks */
	int exponent_bits;
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room(size_t n)
{
	void *p = malloc(n);

	if (!p)
		die("malloc");
	memset(p, 1, n);
	return p;
}

static void open_codecs(void)
{
	void *l = dlopen("liblz4.so.1", RTLD_NOW), *z = dlopen("libzstd.so.1", RTLD_NOW);

	if (!l || !z) {
		fprintf(stderr, "skipped: %s\n", dlerror());
		exit(77);
	}
	*(void **)&lz4_compress = dlsym(l, "LZ4_compress_fast");
	*(void **)&lz4_expand = dlsym(l, "LZ4_decompress_safe");
	*(void **)&zstd_cctx = dlsym(z, "ZSTD_createCCtx");
	*(void **)&zstd_dctx = dlsym(z, "ZSTD_createDCtx");
	*(void **)&zstd_cctx_free = dlsym(z, "ZSTD_freeCCtx");
	*(void **)&zstd_dctx_free = dlsym(z, "ZSTD_freeDCtx");
	*(void **)&zstd_set = dlsym(z, "ZSTD_CCtx_setParameter");
	*(void **)&zstd_compress = dlsym(z, "ZSTD_compress2");
	*(void **)&zstd_expand = dlsym(z, "ZSTD_decompressDCtx");
	*(void **)&zstd_failed = dlsym(z, "ZSTD_isError");
	if (!lz4_compress || !lz4_expand || !zstd_cctx || !zstd_dctx || !zstd_cctx_free || !zstd_dctx_free ||
	    !zstd_set || !zstd_compress || !zstd_expand || !zstd_failed) {
		fprintf(stderr, "skipped: a function of liblz4 or libzstd is missing\n");
		exit(77);
	}
}

static void way_open(struct way *w, enum transform t, const struct codec *c, size_t esize)
{
	*w = (struct way){.transform = t, .codec = c, .esize = esize};
	w->planes = room(BLOCK);
	w->scratch = room(BLOCK);
	w->cctx = zstd_cctx();
	w->dctx = zstd_dctx();
	zstd_set(w->cctx, ZSTD_LEVEL, c->level);
	if (c->kind == HUFF &&
	    (zstd_failed(zstd_set(w->cctx, ZSTD_LITERALS, 1)) || zstd_failed(zstd_set(w->cctx, ZSTD_TARGET, 131072)) ||
	     zstd_failed(zstd_set(w->cctx, ZSTD_MIN_MATCH, 7)) || zstd_failed(zstd_set(w->cctx, ZSTD_HASH_LOG, 6)))) {
		fprintf(stderr, "libzstd refuses to code literals alone\n");
		exit(1);
	}
}

static void way_close(struct way *w)
{
	zstd_cctx_free(w->cctx);
	zstd_dctx_free(w->dctx);
	free(w->planes);
	free(w->scratch);
}

static int way_named(struct way *w, const char *name, size_t esize)
{
	const char *plus = strchr(name, '+');

	for (size_t t = 0; plus && t < sizeof(transform_names) / sizeof(transform_names[0]); t++)
		for (size_t c = 0; c < CODECS; c++)
			if (strlen(transform_names[t]) == (size_t)(plus - name) &&
			    !strncmp(name, transform_names[t], (size_t)(plus - name)) &&
			    !strcmp(plus + 1, codecs[c].name)) {
				way_open(w, (enum transform)t, &codecs[c], esize);
				return 0;
			}
	return -1;
}

/* ---- transforms: plane 0 has the least significant bytes, the last one the exponent ---- */

static void split2(const uint16_t *restrict s, unsigned char *restrict p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t v = (uint16_t)(s[i] << 1 | s[i] >> 15);

		p[i] = (unsigned char)v;
		p[n + i] = (unsigned char)(v >> 8);
	}
}

static void join2(uint16_t *restrict d, const unsigned char *restrict p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t v = (uint16_t)(p[i] | p[n + i] << 8);

		d[i] = (uint16_t)(v >> 1 | v << 15);
	}
}

static void split4(const uint32_t *restrict s, unsigned char *restrict p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t v = s[i] << 1 | s[i] >> 31;

		p[i] = (unsigned char)v;
		p[n + i] = (unsigned char)(v >> 8);
		p[2 * n + i] = (unsigned char)(v >> 16);
		p[3 * n + i] = (unsigned char)(v >> 24);
	}
}

static void join4(uint32_t *restrict d, const unsigned char *restrict p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t v = (uint32_t)p[i] | (uint32_t)p[n + i] << 8 | (uint32_t)p[2 * n + i] << 16 |
			     (uint32_t)p[3 * n + i] << 24;

		d[i] = v >> 1 | v << 31;
	}
}

static void split(const unsigned char *s, unsigned char *p, size_t esize)
{
	if (esize == 2)
		split2((const uint16_t *)s, p, BLOCK / 2);
	else
		split4((const uint32_t *)s, p, BLOCK / 4);
}

static void join(unsigned char *d, const unsigned char *p, size_t esize)
{
	if (esize == 2)
		join2((uint16_t *)d, p, BLOCK / 2);
	else
		join4((uint32_t *)d, p, BLOCK / 4);
}

/* The bits of n bytes, n a multiple of 32: plane k has bit k of all of them, n / 8 bytes. */
static void bits_out(const unsigned char *restrict s, unsigned char *restrict p, size_t n)
{
	for (size_t i = 0; i < n; i += 32) {
#ifdef __AVX2__
		__m256i v = _mm256_loadu_si256((const __m256i *)(s + i));

		for (int k = 7; k >= 0; k--, v = _mm256_add_epi8(v, v)) {
			uint32_t m = (uint32_t)_mm256_movemask_epi8(v);

			memcpy(p + (size_t)k * (n / 8) + i / 8, &m, 4);
		}
#else
		for (int k = 0; k < 8; k++) {
			uint32_t m = 0;

			for (int j = 0; j < 32; j++)
				m |= (uint32_t)(s[i + (size_t)j] >> k & 1) << j;
			memcpy(p + (size_t)k * (n / 8) + i / 8, &m, 4);
		}
#endif
	}
}

static void bits_back(unsigned char *restrict d, const unsigned char *restrict p, size_t n)
{
#ifdef __AVX2__
	const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
	const __m256i one_each = _mm256_set1_epi64x((long long)0x8040201008040201);
#endif

	for (size_t i = 0; i < n; i += 32) {
#ifdef __AVX2__
		__m256i v = _mm256_setzero_si256();

		for (int k = 0; k < 8; k++) {
			__m256i m;
			int word;

			memcpy(&word, p + (size_t)k * (n / 8) + i / 8, 4);
			m = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), spread), one_each);
			m = _mm256_cmpeq_epi8(m, one_each);
			v = _mm256_or_si256(v, _mm256_and_si256(m, _mm256_set1_epi8((char)(1 << k))));
		}
		_mm256_storeu_si256((__m256i *)(d + i), v);
#else
		uint32_t m[8];

		for (int k = 0; k < 8; k++)
			memcpy(&m[k], p + (size_t)k * (n / 8) + i / 8, 4);
		for (int j = 0; j < 32; j++) {
			unsigned v = 0;

			for (int k = 0; k < 8; k++)
				v |= (m[k] >> j & 1) << k;
			d[i + (size_t)j] = (unsigned char)v;
		}
#endif
	}
}

/* ---- one block ---- */

/* 0: it does not get smaller. */
static size_t code(struct way *w, const unsigned char *src, size_t n, unsigned char *dst, size_t cap)
{
	size_t got;

	if (w->codec->kind == LZ4) {
		int m = lz4_compress((const char *)src, (char *)dst, (int)n, (int)cap, w->codec->level);

		return m > 0 && (size_t)m < n ? (size_t)m : 0;
	}
	if (w->codec->kind == COPY) {
		memcpy(dst, src, n);
		return n;
	}
	got = zstd_compress(w->cctx, dst, cap, src, n);
	return !zstd_failed(got) && got < n ? got : 0;
}

static int decode(struct way *w, const unsigned char *src, size_t len, unsigned char *dst, size_t n)
{
	if (w->codec->kind == LZ4)
		return lz4_expand((const char *)src, (char *)dst, (int)len, (int)n) == (int)n ? 0 : -1;
	if (w->codec->kind == COPY) {
		if (len != n)
			return -1;
		memcpy(dst, src, n);
		return 0;
	}
	return zstd_expand(w->dctx, dst, n, src, len) == n ? 0 : -1;
}

/* Writes at most ROOM bytes. BLOCK: dst has the block as it was. */
static size_t block_compress(struct way *w, const unsigned char *src, unsigned char *dst)
{
	size_t plane = BLOCK / w->esize, rest = BLOCK - plane, got;

	if (w->transform != PLAIN)
		split(src, w->planes, w->esize);
	if (w->transform == EXPONENT) {
		got = code(w, w->planes + rest, plane, dst + rest, plane);
		if (got) {
			memcpy(dst, w->planes, rest);
			got += rest;
		}
	} else {
		for (size_t k = 0; w->transform == BITS && k < w->esize; k++)
			bits_out(w->planes + k * plane, w->scratch + k * plane, plane);
		got = code(w,
			   w->transform == PLAIN  ? src
			   : w->transform == BITS ? w->scratch
						  : w->planes,
			   BLOCK, dst, ROOM);
	}
	if (got && (got < BLOCK || w->codec->kind == COPY))
		return got;
	memcpy(dst, src, BLOCK);
	return BLOCK;
}

static int block_expand(struct way *w, const unsigned char *src, size_t len, unsigned char *dst)
{
	size_t plane = BLOCK / w->esize, rest = BLOCK - plane;

	if (len == BLOCK && w->codec->kind != COPY) {
		memcpy(dst, src, BLOCK);
		return 0;
	}
	if (w->transform == PLAIN)
		return decode(w, src, len, dst, BLOCK);
	if (w->transform == EXPONENT) {
		if (len < rest || decode(w, src + rest, len - rest, w->planes + rest, plane))
			return -1;
		memcpy(w->planes, src, rest);
	} else if (decode(w, src, len, w->transform == BITS ? w->scratch : w->planes, BLOCK)) {
		return -1;
	}
	for (size_t k = 0; w->transform == BITS && k < w->esize; k++)
		bits_back(w->planes + k * plane, w->scratch + k * plane, plane);
	join(dst, w->planes, w->esize);
	return 0;
}

/* ---- measure ---- */

static void data_read(struct data *d, const char *name)
{
	const char *type = strrchr(name, '.');
	FILE *f = fopen(name, "rb");
	long size = 0;

	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < BLOCK || fseek(f, 0, SEEK_SET))
		die(name);
	d->esize = type && !strcmp(type, ".f32") ? 4 : 2;
	d->exponent_bits = type && !strcmp(type, ".f16") ? 5 : 8;
	d->size = (size_t)size / BLOCK * BLOCK;
	d->bytes = room(d->size);
	if (fread(d->bytes, 1, d->size, f) != d->size)
		die(name);
	fclose(f);
}

static double entropy(const uint64_t *count, size_t symbols, double total)
{
	double h = 0;

	for (size_t i = 0; i < symbols; i++)
		if (count[i])
			h -= (double)count[i] * log2((double)count[i] / total);
	return h; /* bits, of all together */
}

/* What no coder without a memory can go below, tables not counted: of the exponents, all else stored; and of every byte
 * plane by itself. Statistics are per block. */
static void bounds(const struct data *d, double *ret_exponent_bits, double *ret_exponent, double *ret_planes)
{
	double exponent_sum = 0, planes_sum = 0, values = (double)d->size / (double)d->esize;
	unsigned char *planes = room(BLOCK);

	for (size_t at = 0; at < d->size; at += BLOCK) {
		size_t n = BLOCK / d->esize;

		split(d->bytes + at, planes, d->esize);
		for (size_t k = 0; k < d->esize; k++) {
			uint64_t count[256] = {0}, fields[256] = {0};

			for (size_t i = 0; i < n; i++) {
				count[planes[k * n + i]]++;
				fields[planes[k * n + i] >> (8 - d->exponent_bits)]++;
			}
			planes_sum += entropy(count, 256, (double)n);
			if (k == d->esize - 1)
				exponent_sum += entropy(fields, 256, (double)n);
		}
	}
	free(planes);
	*ret_exponent_bits = exponent_sum / values;
	*ret_exponent = 8.0 * (double)d->esize / (*ret_exponent_bits + 8.0 * (double)d->esize - d->exponent_bits);
	*ret_planes = 8.0 * (double)d->size / planes_sum;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_size);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct row {
	struct way way;
	double compress[ROUNDS_MAX], expand[ROUNDS_MAX];
	size_t out;
};

static void measure_round(struct row *row, const struct data *d, int round)
{
	static unsigned char *packed, *back;
	double expand = 0, compress = 0, t;

	packed = packed ? packed : room(ROOM);
	back = back ? back : room(BLOCK);
	row->out = 0;
	for (size_t at = 0; at < d->size; at += BLOCK) {
		size_t len;
		int failed;

		t = seconds(CLOCK_THREAD_CPUTIME_ID);
		len = block_compress(&row->way, d->bytes + at, packed);
		compress += seconds(CLOCK_THREAD_CPUTIME_ID) - t;
		t = seconds(CLOCK_THREAD_CPUTIME_ID);
		failed = block_expand(&row->way, packed, len, back);
		expand += seconds(CLOCK_THREAD_CPUTIME_ID) - t;
		if (failed || memcmp(back, d->bytes + at, BLOCK)) {
			fprintf(stderr, "%s+%s: the block at %zu comes back changed\n",
				transform_names[row->way.transform], row->way.codec->name, at);
			exit(1);
		}
		row->out += len;
	}
	row->compress[round] = compress / (double)d->size * 1e9;
	row->expand[round] = expand / (double)d->size * 1e9;
}

static void row_print(struct row *r, const char *data, size_t size, int rounds)
{
	double compress = median(r->compress, rounds), expand = median(r->expand, rounds);

	printf("{\"data\": \"%s\", \"way\": \"%s+%s\", \"rounds\": %d, \"ratio\": %.4f, ", data,
	       transform_names[r->way.transform], r->way.codec->name, rounds, (double)size / (double)r->out);
	/* Sorted: the least is the first. */
	printf("\"compress_s_per_gb\": %.4f, \"expand_s_per_gb\": %.4f, \"compress_least\": %.4f, \"expand_least\": "
	       "%.4f}\n",
	       compress, expand, r->compress[0], r->expand[0]);
}

static void measure(const char *name, int rounds)
{
	static struct row rows[4 * CODECS];
	double exponent_bits, exponent, planes;
	const char *base = strrchr(name, '/');
	struct data d;
	int n = 0;

	base = base ? base + 1 : name;
	data_read(&d, name);
	for (int t = PLAIN; t <= EXPONENT; t++)
		for (size_t c = 0; c < CODECS; c++)
			if (t != EXPONENT || codecs[c].kind == HUFF || codecs[c].level == 1)
				way_open(&rows[n++].way, (enum transform)t, &codecs[c], d.esize);
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < n; i++)
			measure_round(&rows[i], &d, r);
	bounds(&d, &exponent_bits, &exponent, &planes);
	printf("{\"data\": \"%s\", \"bytes\": %zu, \"exponent_bits\": %.3f, \"bound_exponent\": %.4f, "
	       "\"bound_planes\": %.4f}\n",
	       base, d.size, exponent_bits, exponent, planes);
	for (int i = 0; i < n; i++) {
		row_print(&rows[i], base, d.size, rounds);
		way_close(&rows[i].way);
	}
	fflush(stdout);
	free(d.bytes);
}

/* ---- transfer: compress, send, receive and expand each in a thread ---- */

struct queue {
	pthread_mutex_t mu;
	pthread_cond_t changed;
	unsigned char *block[DEPTH];
	size_t len[DEPTH];
	uint64_t head, tail;
};

static struct transfer {
	struct way way;
	struct data data;
	struct queue queue;
	uint64_t blocks; /* of all passes */
	int fd;
	int plain; /* "none": the socket is read into and written from the data's own place */
} x;

static void queue_wait(int for_room)
{
	pthread_mutex_lock(&x.queue.mu);
	while (for_room ? x.queue.tail - x.queue.head >= DEPTH : x.queue.tail == x.queue.head)
		pthread_cond_wait(&x.queue.changed, &x.queue.mu);
	pthread_mutex_unlock(&x.queue.mu);
}

static void queue_step(uint64_t *index)
{
	pthread_mutex_lock(&x.queue.mu);
	(*index)++;
	pthread_cond_signal(&x.queue.changed);
	pthread_mutex_unlock(&x.queue.mu);
}

static unsigned char *place(unsigned char *of, uint64_t block)
{
	return of + block * BLOCK % x.data.size;
}

static void *compress_thread(void *unused)
{
	for (uint64_t i = 0; i < x.blocks; i++) {
		size_t s = i % DEPTH;

		queue_wait(1);
		x.queue.len[s] = block_compress(&x.way, place(x.data.bytes, i), x.queue.block[s]);
		queue_step(&x.queue.tail);
	}
	return unused;
}

static void *receive_thread(void *unused)
{
	for (uint64_t i = 0; i < x.blocks; i++) {
		size_t s = i % DEPTH;
		uint32_t len;

		queue_wait(1);
		if (raw_tcp_move(x.fd, &len, sizeof(len), 0) || len > ROOM ||
		    raw_tcp_move(x.fd, x.queue.block[s], len, 0))
			die("receive");
		x.queue.len[s] = len;
		queue_step(&x.queue.tail);
	}
	return unused;
}

static void send_all(uint64_t pass, double *ret_cpu)
{
	for (uint64_t i = 0; i < x.blocks; i++) {
		size_t s = i % DEPTH;
		uint32_t len = BLOCK;

		if (i == pass)
			*ret_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
		if (!x.plain) {
			queue_wait(0);
			len = (uint32_t)x.queue.len[s];
		}
		if (raw_tcp_move(x.fd, &len, sizeof(len), 1) ||
		    raw_tcp_move(x.fd, x.plain ? place(x.data.bytes, i) : x.queue.block[s], len, 1))
			die("send");
		if (!x.plain)
			queue_step(&x.queue.head);
	}
}

static void check(const unsigned char *out)
{
	if (memcmp(out, x.data.bytes, x.data.size)) {
		fprintf(stderr, "data arrive changed\n");
		exit(1);
	}
}

static uint64_t receive_all(uint64_t pass, unsigned char *out, double *ret_start, double *ret_cpu)
{
	uint64_t wire = 0;

	for (uint64_t i = 0; i < x.blocks; i++) {
		size_t s = i % DEPTH;
		uint32_t len;

		if (i == pass) {
			*ret_start = seconds(CLOCK_MONOTONIC);
			*ret_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
			wire = 0;
		}
		if (x.plain) {
			if (raw_tcp_move(x.fd, &len, sizeof(len), 0) || len != BLOCK ||
			    raw_tcp_move(x.fd, place(out, i), len, 0))
				die("receive");
		} else {
			queue_wait(0);
			len = (uint32_t)x.queue.len[s];
			if (block_expand(&x.way, x.queue.block[s], len, place(out, i)))
				die("expand");
			queue_step(&x.queue.head);
		}
		wire += sizeof(len) + len;
		/* The first and the last pass are checked. */
		if (i + 1 == x.blocks - pass)
			memset(out, 0, x.data.size);
		if (i + 1 == pass)
			check(out);
	}
	return wire;
}

static void transfer_open(const char *way, const char *passes, const char *file)
{
	data_read(&x.data, file);
	x.plain = !strcmp(way, "none");
	if (!x.plain && way_named(&x.way, way, x.data.esize)) {
		fprintf(stderr, "no such way: %s\n", way);
		exit(2);
	}
	if (atoi(passes) < 3) {
		fprintf(stderr, "%s passes: at least 3 are needed\n", passes);
		exit(2);
	}
	x.blocks = (uint64_t)atoi(passes) * (x.data.size / BLOCK);
	pthread_mutex_init(&x.queue.mu, NULL);
	pthread_cond_init(&x.queue.changed, NULL);
	for (int i = 0; i < DEPTH; i++)
		x.queue.block[i] = room(ROOM);
}

static int transfer(int receiving, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	struct raw_tcp w = {.n = 0};
	char **rest = argv + (receiving ? 1 : 2);
	double start = 0, cpu = 0, end;
	unsigned char *out = NULL;
	uint64_t pass, wire = 0;
	uint16_t port = 0;
	pthread_t t;

	if (inet_pton(AF_INET, argv[0], &a.sin_addr) != 1)
		return 2;
	transfer_open(rest[0], rest[1], rest[2]);
	pass = x.data.size / BLOCK;
	if (receiving) {
		if (raw_tcp_listen(&w, (struct sockaddr *)&a, sizeof(a), LIMIT_NS, &port))
			die("listen");
		printf("%u\n", port);
		fflush(stdout);
	} else {
		a.sin_port = htons((uint16_t)atoi(argv[1]));
	}
	if (raw_tcp_join(&w, 1, receiving ? NULL : (struct sockaddr *)&a, sizeof(a), LIMIT_NS))
		die("connect");
	x.fd = w.fd[0];
	if (!x.plain && pthread_create(&t, NULL, receiving ? receive_thread : compress_thread, NULL))
		die("pthread_create");
	if (receiving)
		wire = receive_all(pass, out = room(x.data.size), &start, &cpu);
	else
		send_all(pass, &cpu);
	end = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	if (receiving) {
		check(out);
		printf("{\"way\": \"%s\", \"bytes\": %llu, \"wire_bytes\": %llu, \"seconds\": %.4f, "
		       "\"receiver_cpu_s\": %.4f}\n",
		       rest[0], (unsigned long long)((x.blocks - pass) * BLOCK), (unsigned long long)wire, end - start,
		       cpu);
	} else {
		printf("{\"way\": \"%s\", \"sender_cpu_s\": %.4f}\n", rest[0], cpu);
	}
	if (!x.plain)
		pthread_join(t, NULL);
	raw_tcp_close(&w);
	free(out);
	return 0;
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 0;

	open_codecs();
	if (argc > 3 && !strcmp(argv[1], "measure") && rounds > 0 && rounds <= ROUNDS_MAX) {
		for (int i = 3; i < argc; i++)
			measure(argv[i], rounds);
		return 0;
	}
	if (argc == 6 && !strcmp(argv[1], "receive"))
		return transfer(1, argv + 2);
	if (argc == 7 && !strcmp(argv[1], "send"))
		return transfer(0, argv + 2);
	fprintf(stderr, "usage: see the head of bench/compress.c\n");
	return 2;
}
