// The function objects of the headers cuda/functional and cuda/std/functional.
#ifndef MK_FUNCTIONAL
#define MK_FUNCTIONAL

namespace cuda {
namespace std {
template <class T = void>
struct plus {
  template <class A, class B>
  __device__ __forceinline__ auto operator()(const A& a, const B& b) const -> decltype(a + b) {
    return a + b;
  }
};
template <class T = void>
struct multiplies {
  template <class A, class B>
  __device__ __forceinline__ auto operator()(const A& a, const B& b) const -> decltype(a * b) {
    return a * b;
  }
};
template <class T = void>
struct bit_and {
  template <class A, class B>
  __device__ __forceinline__ auto operator()(const A& a, const B& b) const -> decltype(a & b) {
    return a & b;
  }
};
template <class T = void>
struct bit_or {
  template <class A, class B>
  __device__ __forceinline__ auto operator()(const A& a, const B& b) const -> decltype(a | b) {
    return a | b;
  }
};
template <class T = void>
struct bit_xor {
  template <class A, class B>
  __device__ __forceinline__ auto operator()(const A& a, const B& b) const -> decltype(a ^ b) {
    return a ^ b;
  }
};
}  // namespace std

template <class T = void>
struct maximum {
  template <class A>
  __device__ __forceinline__ A operator()(const A& a, const A& b) const {
    return a < b ? b : a;
  }
};
template <class T = void>
struct minimum {
  template <class A>
  __device__ __forceinline__ A operator()(const A& a, const A& b) const {
    return a < b ? a : b;
  }
};
}  // namespace cuda
#endif
