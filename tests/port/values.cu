namespace layers {
typedef float scalar;
struct Scale { static constexpr int kFactor = 3; typedef float elem; };
enum class Kind : unsigned char { plain, negated };
struct Window { int first, last; float factor; bool negate; };

template <class T>
__global__ void doubled(T* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * T(2);
}
template <class S>
__global__ void scaled(typename S::elem* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * S::kFactor;
}
}  // namespace layers

__global__ void by_double(double a, const float* x, double* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * a;
}
__global__ void by_struct(const layers::Window window, float* x, unsigned mask) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < window.first || i >= window.last) return;
  x[i] *= window.negate ? -window.factor : window.factor;
  if (mask >> 31) x[i] += 1.0f;
}
struct View { const float* data; int n; };
__global__ void by_view(View view, float* y) { y[threadIdx.x] = view.data[threadIdx.x]; }
__global__ void wide(float* x, long long n) {
  if (threadIdx.x < n) x[threadIdx.x] = n >> 32;
}

template <int N> struct Tile {
  enum { STEPS = N / 4 };
  union {
    float4 whole[STEPS];
    float part[N];
  };
  struct { short id; double weight; } tag;
};
__global__ void nested(const float* x, float* y) {
  __shared__ Tile<64> tile;
  __shared__ struct { char kind; int place; } last[2];
  if (threadIdx.x < Tile<64>::STEPS)
    tile.whole[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
  if (threadIdx.x == 0) tile.tag.weight = 0.1, last[1].place = 7;
  __syncthreads();
  y[threadIdx.x] = tile.part[63 - threadIdx.x] * tile.tag.weight + last[1].place;
}
