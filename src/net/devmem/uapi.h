/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linux's device-memory TCP interface: numbers and layouts that the headers of older distributions lack. The kernel's
 * own headers win where they have them.
 */
#ifndef GANTRY_NET_DEVMEM_UAPI_H
#define GANTRY_NET_DEVMEM_UAPI_H

#include <stdint.h>
#include <sys/socket.h>

#ifndef MSG_SOCK_DEVMEM
#define MSG_SOCK_DEVMEM 0x2000000
#endif
#ifndef SO_DEVMEM_LINEAR
#if defined(__sparc__)
#define SO_DEVMEM_LINEAR 0x57
#define SO_DEVMEM_DMABUF 0x58
#define SO_DEVMEM_DONTNEED 0x59
#elif defined(__hppa__)
#define SO_DEVMEM_LINEAR 0x404E
#define SO_DEVMEM_DMABUF 0x404F
#define SO_DEVMEM_DONTNEED 0x4050
#else
#define SO_DEVMEM_LINEAR 78
#define SO_DEVMEM_DMABUF 79
#define SO_DEVMEM_DONTNEED 80
#endif
#endif
#ifndef SCM_DEVMEM_LINEAR
#define SCM_DEVMEM_LINEAR SO_DEVMEM_LINEAR
#define SCM_DEVMEM_DMABUF SO_DEVMEM_DMABUF
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef SO_INCOMING_NAPI_ID
#define SO_INCOMING_NAPI_ID 56
#endif

/* Errors of the kernel's own that reach user space here; libc has no names for them. */
enum { DEVMEM_ETOOSMALL = 525, DEVMEM_ENOTSUPP = 524 };
/* Of one return call: ranges, and fragments looked at. */
enum { DEVMEM_MAX_RANGES = 128, DEVMEM_MAX_RETURNED = 1024 };

/* Before 6.12, in kernels with Google's patches: control messages of 12 bytes. */
enum { DEVMEM_VEC12_HEADER = 98, DEVMEM_VEC12_OFFSET = 99 };

/* struct dmabuf_cmsg and struct dmabuf_token of linux/uio.h, under names of our own: newer headers have those. */
struct devmem_cmsg {
	uint64_t frag_offset;
	uint32_t frag_size, frag_token, dmabuf_id, flags;
};
struct devmem_vec12 {
	uint32_t frag_offset, frag_size, frag_token;
};
struct devmem_token {
	uint32_t token_start, token_count;
};
_Static_assert(sizeof(struct devmem_cmsg) == 24, "the kernel writes these");
_Static_assert(sizeof(struct devmem_vec12) == 12, "the kernel writes these");
_Static_assert(sizeof(struct devmem_token) == 8, "the kernel reads these");

#endif
