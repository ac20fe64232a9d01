/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest real use of devmem TCP, for a machine that has such a NIC: host memory through udmabuf, one connection
 * from another machine, every byte checked where the NIC has put it. docs/devmem.md says when to run it.
 *
 *   receiver:  devmem_receive --nic IF --port P [--bytes N] [--pool N]
 *   sender:    devmem_receive --connect ADDRESS --port P [--bytes N]      (ordinary sends)
 *
 * Exit status: 0 all bytes came, and most by device memory; 1 not; 77 this machine cannot, with the reason.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "common/options.h"
#include "common/raw_tcp.h"
#include "device/device.h"
#include "net/devmem.h"
#include "net/devmem/detect.h"

enum { PIECE = 1 << 20, CONTROL = 1024 * 40, SECONDS = 60 };

static struct request {
	const char *nic, *connect;
	int port;
	uint64_t bytes, pool;
} opt = {.port = 5201, .bytes = 1 << 30, .pool = 64 << 20};

static uint8_t pattern(uint64_t at)
{
	return (uint8_t)((at * 2654435761u) >> 13);
}

static int fail(const char *what)
{
	fprintf(stderr, "devmem_receive: %s: %s\n", what, strerror(errno));
	return 1;
}

static int send_all(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
	uint8_t *piece = malloc(PIECE);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r = 0;
	char end;

	if (!piece || inet_pton(AF_INET, opt.connect, &a.sin_addr) != 1 ||
	    connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		free(piece);
		return fail("connect");
	}
	for (uint64_t done = 0; done < opt.bytes && !r;) {
		uint64_t left = opt.bytes - done, n = left < PIECE ? left : PIECE;

		for (uint64_t i = 0; i < n; i++)
			piece[i] = pattern(done + i);
		if (raw_tcp_move(fd, piece, n, 1))
			r = fail("send");
		done += n;
	}
	if (!r)
		(void)!recv(fd, &end, 1, 0); /* until the receiver closes */
	close(fd);
	free(piece);
	return r;
}

struct counts {
	uint64_t got, pool, linear, plain, receives, frags, wrong;
};

static void check(struct counts *c, const uint8_t *data, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		c->wrong += data[i] != pattern(c->got + i);
	c->got += n;
}

/* One receive: what it brought is compared and given back. 0 or 1. */
static int take(struct devmem_binding *b, struct devmem_flow *f, uint8_t *linear, char *control, struct counts *c)
{
	struct iovec iov = {.iov_base = linear, .iov_len = PIECE};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CONTROL};
	struct devmem_token tokens[DEVMEM_MAX_RANGES];
	ssize_t got = b->ops->receive(f, &msg, 0);
	uint64_t described = 0, at = 0;
	size_t n = 0;

	if (got <= 0) {
		fprintf(stderr, "devmem_receive: after %" PRIu64 " bytes: %s\n", c->got,
			got ? strerror(errno) : "the sender closed");
		return 1;
	}
	c->receives++;
	for (struct cmsghdr *m = CMSG_FIRSTHDR(&msg); m; m = CMSG_NXTHDR(&msg, m)) {
		struct devmem_cmsg d;

		if (m->cmsg_level != SOL_SOCKET || m->cmsg_len < CMSG_LEN(sizeof(d)))
			continue;
		memcpy(&d, CMSG_DATA(m), sizeof(d));
		described += d.frag_size;
		if (m->cmsg_type == SCM_DEVMEM_LINEAR) {
			check(c, linear + at, d.frag_size);
			at += d.frag_size;
			c->linear += d.frag_size;
			continue;
		}
		if (m->cmsg_type != SCM_DEVMEM_DMABUF || d.dmabuf_id != b->dmabuf_id ||
		    d.frag_offset > b->memory.size || d.frag_size > b->memory.size - d.frag_offset) {
			fprintf(stderr, "devmem_receive: a fragment of dma-buf %u at %" PRIu64 "\n", d.dmabuf_id,
				d.frag_offset);
			return 1;
		}
		check(c, b->memory.host + d.frag_offset, d.frag_size);
		c->pool += d.frag_size;
		c->frags++;
		tokens[n++] = (struct devmem_token){d.frag_token, 1};
		if (n == DEVMEM_MAX_RANGES) {
			if (b->ops->give_back(f, tokens, n) != (int)n)
				return fail("giving back");
			n = 0;
		}
	}
	if (n && b->ops->give_back(f, tokens, n) != (int)n)
		return fail("giving back");
	if (!described) {
		check(c, linear, (uint64_t)got);
		c->plain += (uint64_t)got;
	} else if (described != (uint64_t)got) {
		fprintf(stderr, "devmem_receive: %zd bytes, %" PRIu64 " described\n", got, described);
		return 1;
	}
	return 0;
}

static int receive_from(struct devmem_binding *b, int fd)
{
	uint8_t *linear = malloc(PIECE);
	char *control = malloc(CONTROL), text[512];
	struct devmem_flow *f = NULL;
	struct counts c = {0};
	int r = !linear || !control || b->ops->attach(b, fd, &f) != GANTRY_OK;

	while (!r && c.got < opt.bytes)
		r = take(b, f, linear, control, &c);
	b->ops->detach(f);
	b->ops->describe(b, text, sizeof(text));
	printf("%s\n", text);
	printf("{\"bytes\": %" PRIu64 ", \"device_memory\": %" PRIu64 ", \"linear\": %" PRIu64 ", \"plain\": %" PRIu64
	       ", \"receives\": %" PRIu64 ", \"fragments\": %" PRIu64 ", \"wrong\": %" PRIu64 "}\n",
	       c.got, c.pool, c.linear, c.plain, c.receives, c.frags, c.wrong);
	free(linear);
	free(control);
	return r || c.wrong || c.pool < opt.bytes / 2;
}

static int receive_all(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
	struct timeval limit = {.tv_sec = SECONDS};
	struct devmem_memory memory = {.size = opt.pool};
	struct devmem_binding *b = NULL;
	struct gantry_device *dev = NULL;
	int listener, fd, on = 1, r = 1;
	char why[512];
	void *p = NULL;

	if (gantry_device_host(&dev) != GANTRY_OK)
		return 1;
	if (!devmem_kernel_usable(opt.nic, dev, why, sizeof(why))) {
		printf("skipped: %s: %s\n", opt.nic, why);
		gantry_device_close(dev);
		return 77;
	}
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 1) < 0) {
		fail("listen");
	} else if (dev->ops->alloc(dev, opt.pool, &p) == GANTRY_OK) {
		memory.device = dev;
		memory.host = memory.device_ptr = p;
		if (devmem_kernel.bind(&memory, opt.nic, &b) == GANTRY_OK) {
			printf("waiting for a connection to port %d\n", opt.port);
			fflush(stdout);
			fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
			if (fd < 0) {
				fail("accept");
			} else {
				setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
				r = receive_from(b, fd);
				close(fd);
			}
		}
		devmem_kernel.unbind(b);
		dev->ops->free(dev, p);
	}
	close(listener);
	gantry_device_close(dev);
	return r;
}

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_TEXT, "nic", AT(nic), 0, 0, NULL, "IF", "receive by this interface"},
	{0, OPTION_TEXT, "connect", AT(connect), 0, 0, NULL, "ADDRESS", "or send there, by ordinary sends"},
	{0, OPTION_INT, "port", AT(port), 1, 65535, NULL, "P", "(5201)"},
	{0, OPTION_SIZE, "bytes", AT(bytes), 1, UINT64_MAX, NULL, "N", "(1G)"},
	{0, OPTION_SIZE, "pool", AT(pool), 1, UINT64_MAX, NULL, "N", "(64M)"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "devmem_receive",
	.about = "",
	.notes = "",
	OPTION_SPECS(specs),
};

int main(int argc, char **argv)
{
	int status = options_parse(&set, argc, argv, &opt);

	if (status)
		return status - 1;
	if (!opt.nic == !opt.connect)
		return options_wrong(&set, "either --nic or --connect");
	return opt.connect ? send_all() : receive_all();
}
