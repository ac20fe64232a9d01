/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C (Castagnoli), as in iSCSI, ext4 and SCTP. A running sum: pass 0 to
 * start and the last result to go on, so that crc("ab") is crc(crc(0, "a"), "b").
 */
#ifndef GANTRY_BASE_CRC32C_H
#define GANTRY_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Uses the CPU's instruction where it has one; found out once. */
uint32_t gantry_crc32c(uint32_t crc, const void *data, size_t len);
/* The same by tables, on any CPU. Exposed for tests and for `gantry doctor`. */
uint32_t gantry_crc32c_soft(uint32_t crc, const void *data, size_t len);
/* "aarch64 crc32", "sse4.2" or "tables": what gantry_crc32c uses here. */
const char *gantry_crc32c_method(void);

#endif
