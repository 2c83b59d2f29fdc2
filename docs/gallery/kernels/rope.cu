// Rotary position embedding in place: a block a token, a thread a pair of columns.
__global__ void rotary_embedding(const int *__restrict__ positions, float *query, float *key,
                                 const float *__restrict__ cos_sin, const int rot_dim,
                                 const int num_heads, const int num_kv_heads, const int head_size) {
  const int token_idx = blockIdx.x;
  const int embed_dim = rot_dim / 2;
  const float *cache = cos_sin + positions[token_idx] * rot_dim;

  auto rotate = [&](float *arr, int index) {
    const int head_idx = index / embed_dim, offset = index % embed_dim;
    float *head = arr + head_idx * head_size;
    const float c = __ldg(cache + offset), s = __ldg(cache + embed_dim + offset);
    const float x = head[offset], y = head[embed_dim + offset];
    head[offset] = x * c - y * s;
    head[embed_dim + offset] = y * c + x * s;
  };
  for (int i = threadIdx.x; i < num_heads * embed_dim; i += blockDim.x)
    rotate(query + token_idx * num_heads * head_size, i);
  for (int i = threadIdx.x; i < num_kv_heads * embed_dim; i += blockDim.x)
    rotate(key + token_idx * num_kv_heads * head_size, i);
}
