"""What stands before a ported file's own text: CUDA's headers, and names of the C library."""

from pathlib import Path

# What a composed file may include.
HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "math_constants.h")
# What files have of the C library's headers, which NVRTC lacks.
LIMITS = {
    "FLT_MAX": "3.402823466e+38f", "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f",
    "DBL_MAX": "1.7976931348623158e+308", "INT_MAX": "2147483647", "INT_MIN": "(-2147483647 - 1)",
    "UINT_MAX": "4294967295u", "INFINITY": "__int_as_float(0x7f800000)",
    "NAN": "__int_as_float(0x7fffffff)", "M_PI": "3.14159265358979323846", "M_PI_F": "3.14159274f",
    "M_SQRT2": "1.41421356237309504880", "M_SQRT1_2": "0.70710678118654752440",
    "INT8_MAX": "127", "INT8_MIN": "(-128)", "UINT8_MAX": "255", "INT16_MAX": "32767",
    "INT16_MIN": "(-32768)", "UINT16_MAX": "65535", "INT32_MAX": "2147483647",
    "INT32_MIN": "(-2147483647 - 1)", "UINT32_MAX": "4294967295u",
    "INT64_MAX": "9223372036854775807ll", "INT64_MIN": "(-9223372036854775807ll - 1)",
    "UINT64_MAX": "18446744073709551615ull", "LLONG_MAX": "9223372036854775807ll",
    "ULLONG_MAX": "18446744073709551615ull", "LONG_MAX": "9223372036854775807l",
    "SIZE_MAX": "18446744073709551615ull", "CHAR_BIT": "8", "FLT_MANT_DIG": "24",
    "HUGE_VALF": "__int_as_float(0x7f800000)", "M_PI_2": "1.57079632679489661923",
    "M_PI_4": "0.78539816339744830962", "M_LN2": "0.69314718055994530942",
    "M_LN10": "2.30258509299404568402", "M_E": "2.7182818284590452354",
    "M_2_SQRTPI": "1.12837916709551257390", "M_LOG2E": "1.4426950408889634074", "NULL": "0",
}  # fmt: skip
# For an ordinary file under NVRTC; a composed one has the types already.
PRELUDE = """\
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t;
typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t; typedef unsigned int uint;
typedef unsigned short ushort; typedef unsigned long ulong; typedef unsigned long long uintptr_t;
""" + "".join(f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in LIMITS.items())
# Types and limits of the C++ library, for NVRTC.
STANDARD = Path(__file__).with_name("std.h").read_text(encoding="utf-8")
