// Around a step that was queued before the host knew the results of the one before it. Ordinary
// kernels of one thread: a step has few rows.
//   count [1] tokens of the step; tokens [count], rows [count, 2] (sequence, position) of each
//   latest [sequences]: the token that each sequence's last wanted row chose

// A token below 0 is one that its sequence has just chosen.
extern "C" __global__ void feed(const int* count, const int* rows, const int* latest, int* tokens) {
  for (int i = 0; i < count[0]; ++i)
    if (tokens[i] < 0) tokens[i] = latest[rows[2 * i]];
}

//   wanted [logit_count] the tokens whose rows `next` holds; abort [1] not 0: the step was aborted
//   said [1 + logit_count] for the host: the abort flag, then the choices
extern "C" __global__ void settle(const int* logit_count, const int* wanted, const int* rows,
                                  const int* next, const int* abort, int* latest, int* said) {
  int count = logit_count[0];
  for (int i = 0; i < count; ++i) {
    said[i + 1] = next[i];
    latest[rows[2 * wanted[i]]] = next[i] < 0 ? 0 : next[i];  // such a row ends; it must not fault
  }
  said[0] = abort[0];
}
