// What kernels use of the C++ library's headers for types and limits, which NVRTC lacks.
#if defined(__CUDACC_RTC__) && !defined(MK_STD)
#define MK_STD
namespace std {
template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  typedef T value_type;
  typedef integral_constant type;
  __host__ __device__ constexpr operator T() const { return v; }
  __host__ __device__ constexpr T operator()() const { return v; }
};
template <bool v> using bool_constant = integral_constant<bool, v>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <class T, class U> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <class T, class U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <bool, class T, class U> struct conditional { typedef T type; };
template <class T, class U> struct conditional<false, T, U> { typedef U type; };
template <bool c, class T, class U> using conditional_t = typename conditional<c, T, U>::type;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool c, class T = void> using enable_if_t = typename enable_if<c, T>::type;
template <class...> using void_t = void;
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_cv { typedef remove_const_t<typename remove_volatile<T>::type> type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct decay { typedef remove_cv_t<remove_reference_t<T>> type; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T*> : true_type {};
template <class T> inline constexpr bool is_pointer_v = is_pointer<T>::value;
template <class T> struct is_const : false_type {};
template <class T> struct is_const<const T> : true_type {};
template <class T> struct is_void : is_same<remove_cv_t<T>, void> {};
template <class T, class... U> inline constexpr bool mk_is_one_of = (is_same<remove_cv_t<T>, U>::value || ...);
template <class T> struct is_floating_point : bool_constant<mk_is_one_of<T, float, double>> {};
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
struct is_integral
    : bool_constant<mk_is_one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int,
                                 unsigned, long, unsigned long, long long, unsigned long long>> {};
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T, bool = is_arithmetic<T>::value> struct is_signed : false_type {};
template <class T> struct is_signed<T, true> : bool_constant<T(-1) < T(0)> {};
template <class T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <class T> struct is_unsigned : bool_constant<is_arithmetic<T>::value && !is_signed<T>::value> {};
template <class T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> inline constexpr bool is_enum_v = is_enum<T>::value;
template <class T, class U> struct is_base_of : bool_constant<__is_base_of(T, U)> {};
template <class T, class U> inline constexpr bool is_base_of_v = is_base_of<T, U>::value;
template <class T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};
template <class T> inline constexpr bool is_trivially_copyable_v = is_trivially_copyable<T>::value;
template <class T> struct make_unsigned;
template <class T> struct make_signed;
#define MK_SIGNS(S, U)                                        \
  template <> struct make_unsigned<S> { typedef U type; };    \
  template <> struct make_unsigned<U> { typedef U type; };    \
  template <> struct make_signed<S> { typedef S type; };      \
  template <> struct make_signed<U> { typedef S type; };
MK_SIGNS(signed char, unsigned char)
MK_SIGNS(short, unsigned short)
MK_SIGNS(int, unsigned)
MK_SIGNS(long, unsigned long)
MK_SIGNS(long long, unsigned long long)
#undef MK_SIGNS
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> using make_signed_t = typename make_signed<T>::type;
template <class T>
struct numeric_limits {
  static constexpr bool is_specialized = false;
};
template <class T>
struct mk_whole_limits {
  static constexpr bool is_specialized = true, is_integer = true, is_signed = T(-1) < T(0);
  static constexpr bool has_infinity = false, has_quiet_NaN = false;
  static constexpr int digits = int(sizeof(T) * 8) - (is_signed ? 1 : 0);
  __host__ __device__ static constexpr T min() {
    return is_signed ? T(1ull << (sizeof(T) * 8 - 1)) : T(0);
  }
  __host__ __device__ static constexpr T max() { return T(~T(0)) ^ min(); }
  __host__ __device__ static constexpr T lowest() { return min(); }
};
#define MK_LIMITS(T) template <> struct numeric_limits<T> : mk_whole_limits<T> {};
MK_LIMITS(char)
MK_LIMITS(signed char)
MK_LIMITS(unsigned char)
MK_LIMITS(short)
MK_LIMITS(unsigned short)
MK_LIMITS(int)
MK_LIMITS(unsigned)
MK_LIMITS(long)
MK_LIMITS(unsigned long)
MK_LIMITS(long long)
MK_LIMITS(unsigned long long)
#undef MK_LIMITS
#define MK_LIMITS(T, least, most, step, bits, huge, nan)                                        \
  template <> struct numeric_limits<T> {                                                        \
    static constexpr bool is_specialized = true, is_integer = false, is_signed = true;          \
    static constexpr bool has_infinity = true, has_quiet_NaN = true;                            \
    static constexpr int digits = bits;                                                         \
    __host__ __device__ static constexpr T min() { return least; }                              \
    __host__ __device__ static constexpr T max() { return most; }                               \
    __host__ __device__ static constexpr T lowest() { return -most; }                           \
    __host__ __device__ static constexpr T epsilon() { return step; }                           \
    __host__ __device__ static constexpr T infinity() { return huge; }                          \
    __host__ __device__ static constexpr T quiet_NaN() { return nan; }                          \
  };
MK_LIMITS(float, 1.17549435e-38f, 3.40282347e+38f, 1.1920929e-7f, 24, __builtin_bit_cast(float, 0x7f800000),
          __builtin_bit_cast(float, 0x7fc00000))
MK_LIMITS(double, 2.2250738585072014e-308, 1.7976931348623157e+308, 2.2204460492503131e-16, 53,
          __builtin_bit_cast(double, 0x7ff0000000000000ll), __builtin_bit_cast(double, 0x7ff8000000000000ll))
#undef MK_LIMITS
template <class T>
__host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T>
__host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T>
__host__ __device__ constexpr void swap(T& a, T& b) {
  T c = a;
  a = b;
  b = c;
}
}  // namespace std
#endif
