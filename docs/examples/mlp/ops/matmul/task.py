"""The matmul body: 32 output columns of every row."""

from mkport.machines.cpu.vector import body, get_f32, set_f32


@body
def matmul(a, tile, arena):
    """y[:, 32 tile : 32 tile + 32] = x w^T."""
    for t in range(a.rows):
        for n in range(tile * 32, min(tile * 32 + 32, a.n)):
            total = get_f32(a.x, t * a.k) * get_f32(a.w, n * a.k)
            for i in range(1, a.k):
                total += get_f32(a.x, t * a.k + i) * get_f32(a.w, n * a.k + i)
            set_f32(a.y, t * a.n + n, total)
