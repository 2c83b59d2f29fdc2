// Between two steps that follow each other without the host: each row's choice becomes its next
// token, one position on. An ordinary kernel, one warp.
//   next [rows] the step's choices, -1 where logits were not finite; abort [1] not 0: it was aborted
//   tokens [rows], places [rows, 2] (sequence, position): the next step's; last: the last position
//   said [rows + 1] for the host: the choices, then the abort flag

extern "C" __global__ void feed(const int* next, const int* abort, int* tokens, int* places,
                                int* said, int rows, int last) {
  for (int row = threadIdx.x; row < rows; row += 32) {
    said[row] = next[row];
    tokens[row] = next[row] < 0 ? 0 : next[row];  // the host ends such a row; here it must not fault
    if (places[2 * row + 1] < last) places[2 * row + 1] += 1;
  }
  if (threadIdx.x == 0) said[rows] = abort[0];
}
