/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and reductions. The numbers are NCCL's, so that its enums can be passed through. */
#ifndef GANTRY_TYPES_H
#define GANTRY_TYPES_H

/* X(NAME, number, bytes, "name"): the names are those of nccl-tests' -d. */
/* clang-format off */
#define GANTRY_TYPES(X)                     \
	X(INT8,      0, 1, "int8")          \
	X(UINT8,     1, 1, "uint8")         \
	X(INT32,     2, 4, "int32")         \
	X(UINT32,    3, 4, "uint32")        \
	X(INT64,     4, 8, "int64")         \
	X(UINT64,    5, 8, "uint64")        \
	X(FLOAT16,   6, 2, "half")          \
	X(FLOAT32,   7, 4, "float")         \
	X(FLOAT64,   8, 8, "double")        \
	X(BFLOAT16,  9, 2, "bfloat16")      \
	X(FLOAT8E4M3, 10, 1, "f8e4m3")      \
	X(FLOAT8E5M2, 11, 1, "f8e5m2")

/* PREMUL is NCCL's PreMulSum: each input is multiplied by a scalar of the element type, then summed. */
#define GANTRY_OPS(X)         \
	X(SUM,    0, "sum")   \
	X(PROD,   1, "prod")  \
	X(MAX,    2, "max")   \
	X(MIN,    3, "min")   \
	X(AVG,    4, "avg")   \
	X(PREMUL, 5, "mulsum")
/* clang-format on */

enum gantry_type {
#define GANTRY_TYPE_ENUM(name, number, bytes, text) GANTRY_TYPE_##name = number,
	GANTRY_TYPES(GANTRY_TYPE_ENUM)
#undef GANTRY_TYPE_ENUM
		GANTRY_TYPE_COUNT
};

enum gantry_op {
#define GANTRY_OP_ENUM(name, number, text) GANTRY_OP_##name = number,
	GANTRY_OPS(GANTRY_OP_ENUM)
#undef GANTRY_OP_ENUM
		GANTRY_OP_COUNT
};

#endif
