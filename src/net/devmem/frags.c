/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From control messages to fragments.
 *
 * What the kernel promises of one receive, and what is checked here because a fragment's numbers end up in a kernel
 * that copies without asking: the sizes add up to the result; the result is at most the receive's own buffer, though
 * fragments in the pool are not written there; linear bytes are packed back to back in that buffer; a fragment in the
 * pool lies in one page and in our binding. A receive without any such control message brought ordinary bytes.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/devmem_rx.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

struct walk {
	const uint8_t *at;
	size_t left;
};

struct parse {
	const struct devmem_binding *binding;
	uint64_t iov_bytes, page;
	uint64_t linear; /* bytes so far */
	struct devmem_list *list;
};

/* The next control message: 1, 0 at the end, -1: its length is not to be believed. The buffer may lie anywhere: no
 * header is read in place. */
static int next_cmsg(struct walk *w, struct cmsghdr *ret_header, const uint8_t **ret_data)
{
	size_t step;

	if (w->left == 0)
		return 0;
	if (w->left < sizeof(*ret_header))
		return -1;
	memcpy(ret_header, w->at, sizeof(*ret_header));
	if (ret_header->cmsg_len < CMSG_LEN(0) || ret_header->cmsg_len > w->left)
		return -1;
	*ret_data = w->at + CMSG_LEN(0);
	step = CMSG_ALIGN(ret_header->cmsg_len); /* no overflow: it was at most what is left */
	if (step > w->left)
		step = w->left; /* the last one's padding may be missing */
	w->at += step;
	w->left -= step;
	return 1;
}

/* Is it one of ours, and what does it say? 1, 0: somebody else's, -1: of the wrong length. */
static int read_chunk(const struct cmsghdr *h, const uint8_t *data, struct devmem_cmsg *ret_chunk, int *ret_linear)
{
	if (h->cmsg_level != SOL_SOCKET || (h->cmsg_type != SCM_DEVMEM_LINEAR && h->cmsg_type != SCM_DEVMEM_DMABUF))
		return 0;
	if (h->cmsg_len != CMSG_LEN(sizeof(*ret_chunk)))
		return -1;
	memcpy(ret_chunk, data, sizeof(*ret_chunk));
	*ret_linear = h->cmsg_type == SCM_DEVMEM_LINEAR;
	return 1;
}

static gantry_result check_linear(const struct parse *p, const struct devmem_cmsg *c)
{
	if (c->frag_token != 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "linear bytes with token %u", c->frag_token);
	if (c->frag_size > p->iov_bytes - p->linear)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%" PRIu64 " linear bytes in a buffer of %" PRIu64,
			 p->linear + c->frag_size, p->iov_bytes);
	return GANTRY_OK;
}

static gantry_result check_in_pool(const struct parse *p, const struct devmem_cmsg *c)
{
	if (c->frag_token == 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment without a token");
	if (c->dmabuf_id != p->binding->dmabuf_id)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment of dma-buf %u on a flow of dma-buf %u", c->dmabuf_id,
			 p->binding->dmabuf_id);
	if (c->frag_size > p->binding->memory.size || c->frag_offset > p->binding->memory.size - c->frag_size)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment of %u bytes at %" PRIu64 " of memory of %" PRIu64,
			 c->frag_size, c->frag_offset, p->binding->memory.size);
	if (c->frag_offset % p->page + c->frag_size > p->page)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment of %u bytes at %" PRIu64 " is not within one page",
			 c->frag_size, c->frag_offset);
	return GANTRY_OK;
}

static gantry_result add_chunk(struct parse *p, const struct devmem_cmsg *c, int linear)
{
	struct devmem_list *list = p->list;

	if (list->n == DEVMEM_LIST_MAX)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "more than %d fragments in one receive", DEVMEM_LIST_MAX);
	if (c->frag_size == 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "an empty fragment, token %u", c->frag_token);
	/* Nobody sets any yet. One that is new may change what the other fields mean. */
	if (c->flags != 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a fragment with unknown flags 0x%x", c->flags);
	TRY_NOW(linear ? check_linear(p, c) : check_in_pool(p, c));
	list->frags[list->n++] = (struct devmem_frag){.offset = linear ? p->linear : c->frag_offset,
						      .len = c->frag_size,
						      .token = c->frag_token,
						      .where = linear ? DEVMEM_LINEAR : DEVMEM_IN_POOL};
	list->bytes += c->frag_size;
	if (linear)
		p->linear += c->frag_size;
	return GANTRY_OK;
}

gantry_result devmem_parse(const struct msghdr *msg, ssize_t got, const struct devmem_binding *b, uint64_t iov_bytes,
			   struct devmem_list *ret_list)
{
	struct walk w = {.at = msg->msg_control, .left = msg->msg_controllen};
	struct parse p = {.binding = b, .iov_bytes = iov_bytes, .list = ret_list};
	struct cmsghdr header;
	struct devmem_cmsg chunk;
	const uint8_t *data;
	int more, linear = 0;

	ret_list->n = 0;
	ret_list->bytes = 0;
	p.page = (uint64_t)sysconf(_SC_PAGESIZE);
	if (got <= 0 || (!w.at && w.left > 0))
		FAIL_NOW(GANTRY_ERR_INVALID, "control messages of a receive that returned %zd, %zu bytes at %p", got,
			 w.left, msg->msg_control);
	while ((more = next_cmsg(&w, &header, &data)) > 0) {
		int ours = read_chunk(&header, data, &chunk, &linear);

		if (ours < 0)
			FAIL_NOW(GANTRY_ERR_PROTOCOL, "a control message of type %d with %zu bytes", header.cmsg_type,
				 (size_t)header.cmsg_len);
		if (ours > 0)
			TRY_NOW(add_chunk(&p, &chunk, linear));
	}
	if (more < 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a control message runs out of its buffer of %zu bytes",
			 (size_t)msg->msg_controllen);
	if (msg->msg_flags & MSG_CTRUNC)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "control messages were cut off after %u fragments: their tokens are lost",
			 ret_list->n);
	if ((uint64_t)got > iov_bytes)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "a receive of %zd bytes into a buffer of %" PRIu64, got, iov_bytes);
	if (ret_list->n == 0) {
		if ((uint64_t)got > UINT32_MAX)
			FAIL_NOW(GANTRY_ERR_LIMIT, "an ordinary receive of %zd bytes", got);
		ret_list->frags[ret_list->n++] = (struct devmem_frag){.len = (uint32_t)got, .where = DEVMEM_PLAIN};
		ret_list->bytes = (uint64_t)got;
	}
	if (ret_list->bytes != (uint64_t)got)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "fragments of %" PRIu64 " bytes in a receive of %zd", ret_list->bytes,
			 got);
	return GANTRY_OK;
}
