/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel gone mad: any bytes as control buffer of a receive. What is accepted must be what a kernel that copies
 * without asking may be told; what is refused must leave a list whose tokens can be given back.
 *
 * The input: got (4 bytes), size of the receive's own buffer (4), of the memory in pages (2), dma-buf id (1), msg_flags
 * (1), then the control buffer. If the fragments do not add up to `got`, it is tried again with a `got` that they do.
 */
#include <unistd.h>

#include "base/log.h"
#include "net/devmem_rx.h"
#include "script.h"

enum { HEAD = 12 };

struct input {
	uint32_t got, iov_bytes;
	uint16_t pages;
	uint8_t id, flags;
};

static void check_list(const struct input *in, const struct devmem_list *list, uint64_t page, int accepted)
{
	uint64_t sum = 0, linear = 0, memory = in->pages * page;

	MUST(list->n <= DEVMEM_LIST_MAX);
	for (uint32_t i = 0; i < list->n; i++) {
		const struct devmem_frag *f = &list->frags[i];

		MUST(f->len > 0);
		MUST((f->where == DEVMEM_IN_POOL) == (f->token != 0));
		if (f->where == DEVMEM_IN_POOL) {
			MUST(f->offset < memory && f->len <= memory - f->offset);
			MUST(f->offset / page == (f->offset + f->len - 1) / page);
		} else {
			MUST(f->offset == linear);
			MUST(f->where == DEVMEM_LINEAR || list->n == 1);
			linear += f->len;
			MUST(linear <= in->iov_bytes);
		}
		sum += f->len;
	}
	MUST(sum == list->bytes);
	if (accepted)
		MUST(list->n > 0 && sum == in->got && sum <= in->iov_bytes && !(in->flags & MSG_CTRUNC));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct devmem_list list;
	struct input in;
	struct msghdr msg = {0};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint8_t *control;

	if (size < HEAD)
		return 0;
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null");
	memcpy(&in.got, data, 4);
	memcpy(&in.iov_bytes, data + 4, 4);
	memcpy(&in.pages, data + 8, 2);
	in.id = data[10];
	in.flags = data[11];
	in.got &= INT32_MAX;
	control = script_copy(data + HEAD, size - HEAD, 0);
	msg.msg_control = control;
	msg.msg_controllen = size - HEAD;
	msg.msg_flags = in.flags;
	for (int again = 0; again < 2; again++) {
		struct devmem_binding b = {.dmabuf_id = in.id, .memory = {.size = in.pages * page}};
		gantry_result r = devmem_parse(&msg, (ssize_t)in.got, &b, in.iov_bytes, &list);

		MUST(r == GANTRY_OK || r == GANTRY_ERR_PROTOCOL || (r == GANTRY_ERR_INVALID && in.got == 0));
		check_list(&in, &list, page, r == GANTRY_OK);
		if (r == GANTRY_OK || list.bytes == 0 || list.bytes > INT32_MAX)
			break;
		in.got = (uint32_t)list.bytes;
	}
	free(control);
	return 0;
}
